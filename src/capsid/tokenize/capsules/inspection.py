"""What is looked at while capsules train: use of capsules, winner mass, growing residuals, lengths, stop causes.

Takes traces and codes, returns numbers and one progress line. The score that selects weights is the Recall@10 of plain
counts over the ids, which does not punish confidence; collisions of the whole catalogue stand beside. The counts take
seconds and train nothing: the last training item of some users is held out, and all other pairs of neighbours are
counted by the prefixes of their ids. A candidate scores the share of followers of the last item's prefix that have the
candidate's prefix, times the candidate's popularity among the items of that prefix, summed over depths. Items that
share an id can thus only be told apart by popularity. Never sees validation or test.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.ids.order import SharedPrefixes, prefix_keys
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.base import Trace
from capsid.tokenize.capsules.catalogue import stop
from capsid.tokenize.capsules.settings import CapsuleSettings

USERS, BLOCK, TOP = 2_000, 250, 10


@dataclass(frozen=True, eq=False)
class Followers:
    """Pairs of neighbours that are counted, and the held-out last pairs."""

    items: int
    before_E: np.ndarray
    after_E: np.ndarray
    last_U: np.ndarray
    target_U: np.ndarray

    @classmethod
    def of(cls, sequences: Ragged, items: int, *, users: int = USERS, seed: int = 0) -> Followers | None:
        """Hold out the last item of at most `users` users with two or more; None without such users."""
        able = np.flatnonzero(sequences.lengths >= 2)
        if not len(able):
            return None
        chosen = np.sort(numpy_rng(seed, "followers").permutation(able)[:users])
        ends = np.asarray(sequences.offsets[1:])[chosen]
        values = np.asarray(sequences.values)
        inside = np.ones(len(values), dtype=bool)
        inside[np.asarray(sequences.offsets[:-1])[sequences.lengths > 0]] = False
        inside[ends - 1] = False
        after = np.flatnonzero(inside)
        return cls(items, values[after - 1], values[after], values[ends - 2], values[ends - 1])

    def recall(self, codes: Ragged) -> float:
        """The share of held-out items among the ten best of all items."""
        prefixes = _prefixes(codes)
        popularity_N = np.bincount(self.after_E, minlength=self.items) + 1.0
        levels = [self._level(prefix_N, popularity_N) for prefix_N in prefixes]
        hits = 0
        for start in range(0, len(self.last_U), BLOCK):
            last_B, target_B = self.last_U[start : start + BLOCK], self.target_U[start : start + BLOCK]
            scores_BN = np.zeros((len(last_B), self.items), dtype=np.float32)
            for prefix_N, (shares, own_N) in zip(prefixes, levels):
                scores_BN += shares[prefix_N[last_B]].toarray()[:, prefix_N] * own_N
            scores_BN[np.arange(len(last_B)), last_B] = -1.0
            target_B1 = scores_BN[np.arange(len(last_B)), target_B][:, None]
            # Ties count half: without any information the measure is chance, whatever the order of items.
            rank_B = (scores_BN > target_B1).sum(1) + 0.5 * ((scores_BN == target_B1).sum(1) - 1)
            hits += int((rank_B < TOP).sum())
        return hits / len(self.last_U)

    def _level(self, prefix_N: np.ndarray, popularity_N: np.ndarray) -> tuple[Any, np.ndarray]:
        """Shares of followers between prefixes, and every item's share of its prefix's popularity."""
        from scipy.sparse import csr_matrix, diags

        size = int(prefix_N.max()) + 1
        pairs = (np.ones(len(self.before_E), dtype=np.float32), (prefix_N[self.before_E], prefix_N[self.after_E]))
        counts = csr_matrix(pairs, shape=(size, size))
        totals = np.asarray(counts.sum(1)).ravel()
        own_N = popularity_N / np.bincount(prefix_N, weights=popularity_N)[prefix_N]
        return (diags(1 / np.maximum(totals, 1)) @ counts).tocsr(), own_N.astype(np.float32)


def _prefixes(codes: Ragged) -> list[np.ndarray]:
    """The number of every item's prefix at each depth; a shorter id counts with the whole of it."""
    keys_NL = prefix_keys(codes.dense())
    return [np.unique(keys_N, return_inverse=True)[1].ravel() for keys_N in keys_NL.T]


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
