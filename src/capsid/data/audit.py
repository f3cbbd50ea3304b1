"""Is the order of a dataset worth learning? Ties, the direction inside them, and what accuracy survives shuffling.

Interactions with equal times have no order; a file gives them one, and a model learns it. This module counts them,
asks whether they follow item ids, and measures with followers alone how much of the accuracy
goes when ties, and when whole histories, are shuffled ("Sequence or Pseudo-Sequence?", 2021; "Does It Look
Sequential?", arXiv 2408.12008). The probe adds one feature, whether a candidate's id sorts after that of the last item:
whatever it gains comes from how the file was sorted. Takes a dataset in file order; writes nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.base.storage.mapped_arrays import counted
from capsid.base.vocabulary import id_ranks
from capsid.data.dataset import Dataset
from capsid.data.split import Cases, leave_one_out
from capsid.data.ties import tied, with_order
from capsid.errors import DataError
from capsid.ragged import Ragged

DISTANCES = 3
BATCH = 1024
# What the order of ids may add to a score; the best of them for validation is used.
WEIGHTS = (-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0)
# More cases than this are sampled.
CASES = 20_000
RARE = 5
PARTS = 10
# Ties follow ids if at least this many are there, and their direction is this far from chance in both measures.
LEAST_TIED, LEAST_LEAN, LEAST_SIGMAS = 0.01, 0.05, 4.0
# The probe tells if it gains this much, relative to followers alone, and more than two standard errors.
LEAST_GAIN = 0.05


@dataclass(frozen=True, eq=False)
class FollowerScores:
    """For every distance a sparse matrix of scores: row i holds what followed item i.

    A candidate's score is sum_j log(1 + c_j) / j, where c_j counts how often it came j places after the j-th last item
    of the history. Only candidates that followed are ranked, and items of the history are left out. With `ranks`,
    candidates that sort after the last item get `weight` more: the order of ids as a feature.
    """

    by_distance: tuple[Any, ...]

    @classmethod
    def count(cls, sequences: Ragged, items: int) -> FollowerScores:
        """From training sequences."""
        from scipy.sparse import csr_array

        found = []
        for distance in range(1, DISTANCES + 1):
            lengths = np.maximum(sequences.lengths - distance, 0)
            before, after = (sequences.slices(start, lengths).values for start in (0, distance))
            counts = csr_array((np.ones(len(before)), (before, after)), shape=(items, items))
            counts.sum_duplicates()
            counts.data = np.log1p(counts.data) / distance
            found.append(counts)
        return cls(tuple(found))

    def hits(self, cases: Cases, k: int = 10, ranks: np.ndarray | None = None, weight: float = 0.0) -> np.ndarray:
        """Whether each target is among the best k; equal scores share their places. Shape: (cases,)."""
        starts = range(0, len(cases), BATCH)
        batches = (cases.take(np.arange(start, min(start + BATCH, len(cases)))) for start in starts)
        return np.concatenate([_hits(part, self, k, ranks, weight) for part in batches] or [np.zeros(0, bool)])

    def known(self, cases: Cases) -> float:
        """Share of the cases whose target followed their last item in training."""
        if not len(cases):
            return 0.0
        first = self.by_distance[0]
        return float((first[_last(cases, 1), cases.targets] > 0).mean())


def probe_weight(scores: FollowerScores, cases: Cases, ranks: np.ndarray) -> float:
    """What the order of ids is worth for these cases, 0 if it is worth nothing."""
    recall = {weight: float(scores.hits(cases, ranks=ranks, weight=weight).mean()) for weight in WEIGHTS}
    return max(WEIGHTS, key=lambda weight: (recall[weight], -abs(weight)))


def _hits(cases: Cases, scores: FollowerScores, k: int, ranks: np.ndarray | None, weight: float) -> np.ndarray:
    from scipy.sparse import csr_array

    items = scores.by_distance[0].shape[0]
    total: Any = 0
    for distance, matrix in enumerate(scores.by_distance, start=1):
        place = np.flatnonzero(cases.histories.lengths >= distance)
        last = _last(cases, distance)[place]
        # The rows of the matrix for these items, each at its place; other rows are empty.
        total = total + csr_array((np.ones(len(place)), (place, last)), shape=(len(cases), items)) @ matrix
    row_E = np.repeat(np.arange(len(cases)), np.diff(total.indptr))
    column_E, score_E = total.indices.astype(np.int64), total.data
    if ranks is not None:
        score_E = score_E + weight * (ranks[column_E] > ranks[_last(cases, 1)][row_E])
    seen = np.isin(row_E * items + column_E, cases.histories.row_numbers * items + cases.histories.values)
    row_E, column_E, score_E = row_E[~seen], column_E[~seen], score_E[~seen]
    target_C = np.full(len(cases), np.inf)
    own = column_E == cases.targets[row_E]
    target_C[row_E[own]] = score_E[own]
    above = np.bincount(row_E[score_E > target_C[row_E]], minlength=len(cases))
    level = np.bincount(row_E[score_E == target_C[row_E]], minlength=len(cases)) - 1
    return np.isfinite(target_C) & (above + level / 2 < k)


def _last(cases: Cases, distance: int) -> np.ndarray:
    """The item that many places before the end of each history, its first where it is shorter."""
    place = cases.histories.offsets[1:] - np.minimum(distance, cases.histories.lengths)
    found: np.ndarray = cases.histories.values[place].astype(np.int64)
    return found


@dataclass(frozen=True)
class OrderFacts:
    """Neighbouring interactions of a user: how many tie, and how many ascend in item id within and between ties.

    `knows`: times, days or only an order. `target_tied`: share of last items that tie with the item before.
    """

    knows: str
    neighbours: int
    ties: int
    tied: float
    ascending_within: float | None
    ascending_between: float | None
    target_tied: float

    @property
    def follows_ids(self) -> bool:
        """Whether the order within ties depends on item ids; where no times are known, all neighbours may be tied."""
        share = self.ascending_within if self.knows != "order" else self.ascending_between
        count = self.ties if self.knows != "order" else self.neighbours
        if share is None or (self.knows != "order" and self.tied < LEAST_TIED):
            return False
        lean = abs(share - 0.5)
        return lean >= LEAST_LEAN and 2 * lean * count**0.5 >= LEAST_SIGMAS

    def __str__(self) -> str:
        ascend = [
            f"{100 * share:.0f} % {where}"
            for where, share in (("within ties", self.ascending_within), ("between them", self.ascending_between))
            if share is not None
        ]
        if self.knows == "order":
            share = f"{100 * (self.ascending_between or 0):.0f} % of neighbours ascend in item id"
            return f"no times are known, so ties cannot be seen; {share}"
        return f"{100 * self.tied:.0f} % of neighbouring interactions tie; in item id ascend {' and '.join(ascend)}"


@dataclass(frozen=True)
class Accuracy:
    """Recall@10 of followers alone in one order; `with_ids` with the probe's feature. Shares are of the targets."""

    order: str
    followers: float
    with_ids: float
    known_follower: float
    rare: float


@dataclass(frozen=True)
class Audit:
    """Everything that the page shows. `by_time`: of each tenth of the interactions, the share with items that had not
    been taken before it began; `later`: share of training interactions after the median test target (both need times).
    `popular`: share of the interactions of each tenth of the items, most popular first.
    """

    dataset: str
    order: OrderFacts
    accuracy: tuple[Accuracy, ...]
    cases: int
    repeats: float
    popular: tuple[float, ...]
    by_time: tuple[float, ...] = ()
    later: float | None = None

    @property
    def suspicious(self) -> bool:
        """Whether ties follow ids and a model can win by that."""
        given = self.accuracy[0]
        gain = given.with_ids - given.followers
        error = (given.with_ids * (1 - given.with_ids) / max(self.cases, 1)) ** 0.5
        return self.order.follows_ids and gain >= LEAST_GAIN * given.followers and gain > 2 * error

    @property
    def verdict(self) -> str:
        """One plain sentence."""
        o, given = self.order, self.accuracy[0]
        gain = f"the id-order probe lifts Recall@10 of followers from {given.followers:.4f} to {given.with_ids:.4f}"
        if self.suspicious and o.knows == "order":
            return f"No times are known and neighbours follow item ids ({gain}); do not rank sequential models on it."
        if self.suspicious:
            share = f"{100 * o.tied:.0f} % of the order is unknown"
            return f"{share}; within ties it follows item ids ({gain}); do not rank sequential models on it."
        if o.knows == "order":
            return "No times are known, so ties cannot be seen; the order of ids gives nothing away."
        return f"{100 * o.tied:.0f} % of the order is unknown; the order of ids gives nothing away."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `capsid data audit --json` prints them."""
        return {**asdict(self), "suspicious": self.suspicious, "verdict": self.verdict}


def order_facts(dataset: Dataset) -> OrderFacts:
    """Count ties and directions; the dataset should be in file order."""
    ranks_E = id_ranks(dataset.items)[dataset.sequences.values]
    starts = dataset.sequences.offsets[:-1]
    pair_E = np.ones(len(ranks_E), dtype=bool)
    pair_E[starts[starts < len(ranks_E)]] = False
    tied_E = tied(dataset)
    up_E, same_E = np.diff(ranks_E, prepend=0) > 0, np.diff(ranks_E, prepend=-1) == 0
    # An item taken twice in a row has no direction.
    within_E, between_E = pair_E & tied_E & ~same_E, pair_E & ~tied_E & ~same_E
    last = dataset.sequences.offsets[1:][dataset.sequences.lengths > 1] - 1
    return OrderFacts(
        knows="order" if dataset.times is None else "days" if dataset.days else "times",
        neighbours=int(pair_E.sum()),
        ties=int(tied_E.sum()),
        tied=float(tied_E.sum() / max(pair_E.sum(), 1)),
        ascending_within=_share(up_E[within_E]),
        ascending_between=_share(up_E[between_E]),
        target_tied=_share(tied_E[last]) or 0.0,
    )


def audit(dataset: Dataset) -> Audit:
    """Measure a dataset that is in file order."""
    if dataset.interactions == 0 or not (dataset.sequences.lengths >= 3).any():
        raise DataError("no user has three or more items, so nothing can be audited", hint="give longer histories")
    orders = {"as in the file": dataset}
    if dataset.times is not None:
        orders["ties shuffled"] = with_order(dataset)
    whole = replace(dataset, times=np.zeros(dataset.interactions, dtype=np.int64), days=True)
    orders["whole histories shuffled"] = with_order(whole)
    measured = [_accuracy(name, ordered) for name, ordered in orders.items()]
    counts = np.sort(counted(dataset.sequences.values, len(dataset.items)))[::-1]
    by_time, later = _over_time(dataset)
    pairs = dataset.sequences.row_numbers * max(len(dataset.items), 1) + dataset.sequences.values
    return Audit(
        dataset=dataset.name,
        order=order_facts(dataset),
        accuracy=tuple(found for found, _ in measured),
        cases=measured[0][1],
        # Share of the interactions with an item that the user has taken before.
        repeats=1 - len(np.unique(pairs)) / len(pairs),
        popular=tuple(float(part.sum() / counts.sum()) for part in np.array_split(counts, PARTS)),
        by_time=by_time,
        later=later,
    )


def _accuracy(name: str, dataset: Dataset) -> tuple[Accuracy, int]:
    split, ranks = leave_one_out(dataset), id_ranks(dataset.items)
    scores = FollowerScores.count(split.train, len(dataset.items))
    valid, test = _sample(split.valid), _sample(split.test)
    weight = probe_weight(scores, valid, ranks)
    counts = counted(split.train.values, len(dataset.items))
    found = Accuracy(
        order=name,
        followers=float(scores.hits(test).mean()),
        with_ids=float(scores.hits(test, ranks=ranks, weight=weight).mean()),
        known_follower=scores.known(test),
        rare=float((counts[test.targets] < RARE).mean()),
    )
    return found, len(test)


def _sample(cases: Cases) -> Cases:
    chosen = numpy_rng(0, "audit").permutation(len(cases))[:CASES]
    return cases.take(np.sort(chosen))


def _over_time(dataset: Dataset) -> tuple[tuple[float, ...], float | None]:
    if dataset.times is None or dataset.days:
        return (), None
    items = dataset.sequences.values[np.argsort(dataset.times, kind="stable")]
    first = np.full(len(dataset.items), len(items))
    np.minimum.at(first, items, np.arange(len(items)))
    bounds = np.linspace(0, len(items), PARTS + 1).astype(int)
    new = tuple(float((first[items[a:b]] >= a).mean()) for a, b in itertools.pairwise(bounds) if b > a)
    held = dataset.sequences.lengths >= 3
    last = dataset.sequences.offsets[1:][held] - 1
    in_train = np.ones(dataset.interactions, dtype=bool)
    in_train[last], in_train[last - 1] = False, False
    later = float((dataset.times[in_train] > np.median(dataset.times[last])).mean())
    return new, later


def _share(mask: np.ndarray) -> float | None:
    return float(mask.mean()) if len(mask) else None
