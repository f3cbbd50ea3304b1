"""Splits: which interactions are for training, and which (history, target) cases for validation and test.

A split is made before anything is fitted. A user's items keep the dataset's order, which also breaks time ties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.base.storage.mapped_arrays import int64_blocks
from capsid.data.dataset import Dataset
from capsid.errors import ConfigError, DataError, nearest
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Cases:
    """Evaluation cases: a user, their history, and their next item."""

    users: np.ndarray
    histories: Ragged
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> Cases:
        return Cases(self.users[rows], self.histories.take(rows), self.targets[rows])


@dataclass(frozen=True, eq=False)
class Split:
    """`train` has one row per user of the dataset (possibly empty). `cold`: items kept out of training, if any."""

    kind: str
    train: Ragged
    valid: Cases
    test: Cases
    cold: np.ndarray | None = None

    def cases(self, name: str) -> Cases:
        """The cases called "valid" or "test"."""
        if name not in ("valid", "test"):
            raise DataError(f"there is no split {name!r}", hint="allowed: valid, test")
        return self.valid if name == "valid" else self.test

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the training part, the cases or the kind of split."""
        digest = hashlib.sha256(self.kind.encode())
        for cases in (self.valid, self.test):
            digest.update(np.asarray(cases.targets, dtype=np.int64).tobytes())
        for array in (self.train.values, self.train.offsets):
            for block in int64_blocks(array):
                digest.update(block)
        return digest.hexdigest()[:16]


def leave_one_out(dataset: Dataset) -> Split:
    """The last item is for test, the one before for validation, the rest for training.

    This is the split of TIGER (arXiv 2305.05065, section 4). Users with fewer than three items are used only for
    training: two held-out items would leave no history.
    """
    sequences, lengths = dataset.sequences, dataset.sequences.lengths
    held = np.flatnonzero(lengths >= 3)
    ends = np.where(lengths >= 3, lengths - 2, lengths)
    if not len(held):
        raise DataError("no user has three or more items, so nothing can be held out", hint="give longer histories")
    last = sequences.offsets[1:][held] - 1
    return Split(
        "leave-one-out",
        sequences.slices(0, ends),
        Cases(held, sequences.slices(0, lengths[held] - 2, held), sequences.values[last - 1].astype(np.int64)),
        Cases(held, sequences.slices(0, lengths[held] - 1, held), sequences.values[last].astype(np.int64)),
    )


def no_holdout(dataset: Dataset) -> Split:
    """Everything is for training: for a model that goes into production. There are no cases."""
    nobody = np.zeros(0, dtype=np.int64)
    cases = Cases(nobody, Ragged.from_rows([], np.int64), nobody)
    return Split("none", dataset.sequences, cases, cases)


def temporal_split(
    dataset: Dataset, valid_fraction: float = 0.1, test_fraction: float = 0.1, target: str = "last"
) -> Split:
    """Cut at the same times for all users: everything before the validation cut trains, and nothing after it.

    The last `test_fraction` of the interactions lie after the test cut, and `valid_fraction` between the two cuts.
    Interactions with equal times stay together. Of a user's items after a cut, the `last` one is a case, or each of
    the `successive` ones; validation asks the same of the items between the cuts. A history holds everything before
    its target, also what lies after the cut. Items first seen after a cut stay in the catalogue: as targets they are
    cold. The names are those of "Time to Split" (arXiv 2507.16289), which leaves cold items out.
    """
    _check_times(dataset)
    assert dataset.times is not None
    if not (valid_fraction > 0 and test_fraction > 0 and valid_fraction + test_fraction < 1):
        raise ConfigError("the fractions of a temporal split must be positive and add up to less than 1")
    count = len(dataset.times)
    places = [int(count * (1 - valid_fraction - test_fraction)), int(count * (1 - test_fraction))]
    valid_cut, test_cut = np.partition(dataset.times, places)[places]
    before_valid_U, before_test_U = _counts_before(dataset, valid_cut), _counts_before(dataset, test_cut)
    choose = TARGETS[check_target(target)]
    split = Split(
        f"temporal-{target}",
        dataset.sequences.slices(0, before_valid_U),
        choose(dataset.sequences, before_valid_U, before_test_U),
        choose(dataset.sequences, before_test_U, dataset.sequences.lengths),
    )
    if not len(split.valid) or not len(split.test):
        raise DataError(
            "no user has items both before and after the time cuts", hint="use larger fractions, or leave-one-out"
        )
    return split


def cold_item_split(dataset: Dataset, share: float = 0.1, seed: int = 0) -> Split:
    """Leave one out, with a sample of cold items removed from training: some targets are cold, the others warm.

    Cold items are also removed from the histories of cases: only the target is new to the model.
    """
    if not 0 < share < 1:
        raise ConfigError(f"the share of cold items must be above 0 and below 1, got {share}")
    base = leave_one_out(dataset)
    seen = np.unique(dataset.sequences.values)
    count = max(1, round(share * len(seen)))
    cold = np.sort(numpy_rng(seed, "split", "cold-items").choice(seen, size=count, replace=False)).astype(np.int64)
    is_cold_I = np.zeros(len(dataset.items), dtype=bool)
    is_cold_I[cold] = True
    valid, test = (_without(cases, is_cold_I) for cases in (base.valid, base.test))
    for cases in (valid, test):
        if not 0 < is_cold_I[cases.targets].sum() < len(cases):
            raise DataError("not both cold and warm items are targets of cases", hint="use another share")
    return Split("cold-item", _drop(base.train, is_cold_I), valid, test, cold)


def check_target(target: str) -> str:
    """Refuse a word that names no target of a temporal split."""
    if target not in TARGETS:
        raise ConfigError(f"the target is {' or '.join(TARGETS)}, got {target!r}", hint=nearest(target, TARGETS))
    return target


def _check_times(dataset: Dataset) -> None:
    if dataset.times is None or dataset.days:
        has = "days since each user's first interaction, but no dates" if dataset.days else "no times"
        raise DataError(
            f"{dataset.name!r} has {has}, so it cannot be split by time",
            hint="use leave-one-out, or import from a source with timestamps",
        )


def _counts_before(dataset: Dataset, cut: float) -> np.ndarray:
    """How many interactions every user has before the cut."""
    assert dataset.times is not None
    times = Ragged(dataset.times, dataset.sequences.offsets)
    return np.concatenate([part.sums((part.values < cut).astype(np.int64)) for part in times.parts()])


def _last_items(sequences: Ragged, before_U: np.ndarray, until_U: np.ndarray) -> Cases:
    """The last item between the two positions, of users who have one and a history."""
    rows = np.flatnonzero((until_U > before_U) & (until_U > 1))
    return _cases(sequences, rows, until_U[rows] - 1)


def _successive_items(sequences: Ragged, before_U: np.ndarray, until_U: np.ndarray) -> Cases:
    """Every item between the two positions that has a history, user after user."""
    first_U = np.maximum(before_U, 1)
    places = Ragged.ranges(first_U, np.maximum(until_U - first_U, 0))
    return _cases(sequences, places.row_numbers, places.values)


def _cases(sequences: Ragged, rows: np.ndarray, places: np.ndarray) -> Cases:
    """Cases whose targets are at these places of these rows."""
    targets = sequences.values[sequences.offsets[:-1][rows] + places].astype(np.int64)
    return Cases(rows, sequences.slices(0, places, rows), targets)


TARGETS: Mapping[str, Callable[[Ragged, np.ndarray, np.ndarray], Cases]] = {
    "last": _last_items,
    "successive": _successive_items,
}


def _without(cases: Cases, dropped_I: np.ndarray) -> Cases:
    """Cases with these items taken out of their histories; those without any history are left out."""
    histories = _drop(cases.histories, dropped_I)
    kept = np.flatnonzero(histories.lengths > 0)
    return Cases(cases.users[kept], histories.take(kept), cases.targets[kept])


def _drop(sequences: Ragged, dropped_I: np.ndarray) -> Ragged:
    return sequences.keep(~dropped_I[sequences.values])


@dataclass(frozen=True)
class Holdout:
    """Which interactions are held out, as `capsid fit --holdout` names it.

    `share`: of the interactions after each time cut, or of the items that are cold. `target`: which items after a time
    cut are asked for. Other kinds use neither.
    """

    kind: str = "last"
    share: float = 0.1
    target: str = "last"

    def __post_init__(self) -> None:
        if self.kind not in HOLDOUTS:
            raise ConfigError(f"there is no holdout {self.kind!r}", hint=nearest(self.kind, HOLDOUTS))
        if check_target(self.target) != "last" and self.kind != "time":
            raise ConfigError(f"the holdout {self.kind!r} has no targets to choose", hint="only time has them")

    def __str__(self) -> str:
        return {"last": "leave-one-out", "time": f"temporal-{self.target}", "cold": "cold-item"}.get(self.kind, "none")

    def split(self, dataset: Dataset) -> Split:
        """Split a dataset. Cold items do not depend on the seed of a run, so that its seeds can be compared."""
        return HOLDOUTS[self.kind](self, dataset)


HOLDOUTS: Mapping[str, Callable[[Holdout, Dataset], Split]] = {
    "last": lambda held, dataset: leave_one_out(dataset),
    "time": lambda held, dataset: temporal_split(dataset, held.share, held.share, held.target),
    "cold": lambda held, dataset: cold_item_split(dataset, held.share),
    "none": lambda held, dataset: no_holdout(dataset),
}
