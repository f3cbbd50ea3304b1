"""What is looked at while capsules train: use of capsules, winner mass, growing residuals, lengths, stop causes.

Takes traces and codes, returns numbers and one progress line. The score that selects weights is the Recall@10 of plain
counts over the ids (`followers.py`), which does not punish confidence; collisions of the whole catalogue stand beside.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsid.ids.prefixes import SharedPrefixes, prefix_keys
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.base import Trace
from capsid.tokenize.capsules.catalogue import stop
from capsid.tokenize.capsules.settings import CapsuleSettings

# Below this share of usable codes in use, the ids carry almost no information.
FEW = 0.2


class CollapseWarning(UserWarning):
    """Routing gives nearly all items the same codes."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """Statistics of a trace, and of the whole catalogue's codes where they are known. Lists are by depth."""

    utilization: list[float]
    mass: list[float]
    grew: list[float]
    soft: list[float]
    hard: list[float]
    mean_length: float
    causes: dict[str, float]
    collisions: float
    recall: float | None = None

    @property
    def score(self) -> float:
        """Higher is better."""
        return -self.collisions if self.recall is None else self.recall

    def line(self) -> str:
        percent = lambda values: "/".join(f"{100 * v:.0f}" for v in values)  # noqa: E731
        points = lambda values: "/".join(f"{v:.2f}".lstrip("0") for v in values)  # noqa: E731
        causes = ", ".join(f"{name} {100 * share:.0f}" for name, share in self.causes.items())
        recall = "" if self.recall is None else f", followers' recall@10 {self.recall:.4f}"
        return (
            f"used {percent(self.utilization)} %, winner mass {points(self.mass)}, residual {points(self.soft)}, "
            f"of codes {points(self.hard)}, length {self.mean_length:.2f}, stops {causes} %, "
            f"growing {percent(self.grew)} %, collisions {100 * self.collisions:.1f} %{recall}"
        )


def inspect(
    settings: CapsuleSettings, seen: Trace, shared: SharedPrefixes | None = None, codes: Ragged | None = None
) -> Inspection:
    """Statistics of a trace. Prefixes are counted among these items unless a table is given; lengths and collisions
    are those of `codes`, where the whole catalogue's are known."""
    shared = shared or SharedPrefixes.count(seen.codes, settings.codebooks, settings.max_sharing)
    stops = stop(seen.confidence, seen.soft, shared.mask(seen.codes), settings.rules)
    codes = Ragged.from_dense(seen.codes, stops.lengths) if codes is None else codes
    rows = np.arange(len(seen))
    depths = range(seen.codes.shape[1])
    at_end = [np.minimum(d, stops.lengths - 1) for d in depths]
    return Inspection(
        utilization=[len(np.unique(seen.codes[:, d])) / k for d, k in enumerate(settings.codebooks)],
        mass=seen.mass.mean(0).tolist(),
        grew=seen.grew.mean(0).tolist(),
        soft=[float(seen.soft[rows, d].mean()) for d in at_end],
        hard=[float(seen.hard[rows, d].mean()) for d in at_end],
        mean_length=float(codes.lengths.mean()),
        causes=stops.shares(with_prefix=settings.max_sharing > 0),
        collisions=collision_rate(codes),
    )


def collision_rate(codes: Ragged) -> float:
    """Share of items whose id another item has too, not counting one item per id."""
    # An absent code counts as a code of its own, so an id differs from a longer one that begins with it.
    return 1 - len(np.unique(prefix_keys(codes.dense())[:, -1])) / len(codes)


def warn_of_collapse(seen: Inspection, codebooks: Sequence[int], items: int, progress: Progress) -> None:
    """Warn if depths use few of the codes that this many items could use."""
    poor = [d + 1 for d, (u, k) in enumerate(zip(seen.utilization, codebooks)) if u * k < FEW * min(k, items)]
    if not poor:
        return
    text = (
        f"the capsules collapsed: depths {poor} use less than {100 * FEW:.0f} % of their codes, "
        f"and {100 * seen.collisions:.0f} % of the ids collide. "
        "Raise tokenizer.balance_weight or start from data (tokenizer.start=data)."
    )
    progress.line(f"WARNING: {text}")
    warnings.warn(text, CollapseWarning, stacklevel=2)
