"""Statistics of capsule training: code usage, winner mass, growing residuals, lengths, collisions, collapse.

Takes traces, returns numbers and one progress line.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.stopping import SharedPrefixes, Stops, prefix_keys, stop
from capsid.tokenize.trace import Trace

# Below this share of usable codes in use, the ids carry almost no information.
FEW = 0.2


class CollapseWarning(UserWarning):
    """Routing gives nearly all items the same codes."""


@dataclass(frozen=True, eq=False)
class Watch:
    """Statistics of one inspection. Lists are by depth."""

    utilization: list[float]
    mass: list[float]
    grew: list[float]
    hard: list[float]
    error_at_end: float
    collision_rate: float
    mean_length: float
    stops: Stops
    causes: dict[str, float]

    @property
    def score(self) -> float:
        """Higher is better: little error at the ends of ids, few collisions."""
        return -(self.error_at_end + self.collision_rate)

    def line(self) -> str:
        """All statistics as one progress line."""
        percent = lambda values: "/".join(f"{100 * v:.0f}" for v in values)  # noqa: E731
        points = lambda values: "/".join(f"{v:.2f}".lstrip("0") for v in values)  # noqa: E731
        causes = ", ".join(f"{name} {100 * share:.0f}" for name, share in self.causes.items())
        return (
            f"used {percent(self.utilization)} %, winner mass {points(self.mass)}, hard {points(self.hard)}, "
            f"length {self.mean_length:.2f}, collisions {100 * self.collision_rate:.1f} %, stops {causes} %, "
            f"growing {percent(self.grew)} %"
        )


def look(settings: CapsuleSettings, seen: Trace, shared: SharedPrefixes | None = None) -> Watch:
    """Statistics of a trace; prefixes are counted among these items unless a table is given.

    The error is that of the centres, or, where the loss leaves them untrained, that of the routed mixtures.
    """
    shared = shared or SharedPrefixes.count(seen.codes, settings.codebooks, settings.max_sharing)
    residual = seen.hard if settings.residual_of == "hard" else seen.soft
    stops = stop(seen.confidence, residual, shared.mask(seen.codes), settings.rules)
    error_NL = seen.hard if settings.hard_weight else seen.soft
    rows = np.arange(len(seen))
    live_NL = np.arange(seen.codes.shape[1]) < stops.lengths[:, None]
    return Watch(
        utilization=[len(np.unique(seen.codes[:, d])) / k for d, k in enumerate(settings.codebooks)],
        mass=seen.mass.mean(0).tolist(),
        grew=seen.grew.mean(0).tolist(),
        hard=[float(seen.hard[rows, np.minimum(d, stops.lengths - 1)].mean()) for d in range(live_NL.shape[1])],
        error_at_end=float(error_NL[rows, stops.lengths - 1].mean()),
        collision_rate=collision_rate(Ragged.from_dense(seen.codes, stops.lengths)),
        mean_length=float(stops.lengths.mean()),
        stops=stops,
        causes=stops.shares(with_prefix=settings.max_sharing > 0),
    )


def collision_rate(codes: Ragged) -> float:
    """Share of items whose id another item has too, not counting one item per id."""
    # An absent code counts as a code of its own, so an id differs from a longer one that begins with it.
    return 1 - len(np.unique(prefix_keys(codes.dense())[:, -1])) / len(codes)


def warn_of_collapse(watch: Watch, codebooks: Sequence[int], items: int, progress: Progress) -> None:
    """Warn if depths use few of the codes that this many items could use."""
    poor = [d + 1 for d, (u, k) in enumerate(zip(watch.utilization, codebooks)) if u * k < FEW * min(k, items)]
    if not poor:
        return
    text = (
        f"the capsules collapsed: depths {poor} use less than {100 * FEW:.0f} % of their codes, "
        f"and {100 * watch.collision_rate:.0f} % of the ids collide. "
        "Raise tokenizer.balance_weight, start from data, or calibrate tokenizer.winner_mass."
    )
    progress.line(f"WARNING: {text}")
    warnings.warn(text, CollapseWarning, stacklevel=2)
