"""k-core: repeatedly remove users and items with fewer than k interactions until all have at least k.

Interactions may be in memory or come in blocks: only one count per user and per item is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged

# The users and the items of some interactions.
Pairs = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Core:
    """Some users and some items, as masks, and with them the interactions between them."""

    users_U: np.ndarray
    items_I: np.ndarray

    def keeps(self, users_B: np.ndarray, items_B: np.ndarray) -> np.ndarray:
        return self.users_U[users_B] & self.items_I[items_B]

    def counts(self, blocks: Iterable[Pairs]) -> tuple[np.ndarray, np.ndarray]:
        """How many of the interactions that remain each user and each item has."""
        counts_U, counts_I = (np.zeros(len(mask), dtype=np.int64) for mask in (self.users_U, self.items_I))
        for users_B, items_B in blocks:
            kept_B = self.keeps(users_B, items_B)
            np.add.at(counts_U, users_B[kept_B], 1)
            np.add.at(counts_I, items_B[kept_B], 1)
        return counts_U, counts_I


def k_core(dataset: Dataset, k: int = 5) -> Dataset:
    """The largest subset in which every user and every item has at least k interactions; order is kept."""
    items_E, users_E = dataset.sequences.values, dataset.sequences.row_numbers
    core = find_core(lambda: [(users_E, items_E)], (len(dataset.users), len(dataset.items)), k, dataset.name)
    kept = restrict(dataset, core.keeps(users_E, items_E), core.users_U, core.items_I)
    return replace(kept, provenance=core_provenance(dataset.provenance, k))


def find_core(
    blocks: Callable[[], Iterable[Pairs]], sizes: tuple[int, int], k: int, name: str, progress: Progress = silent
) -> Core:
    """Count in passes over all blocks until a pass removes nobody. `sizes`: of users and of items.

    Counts only fall, so who is in the core at the end decides which interactions are: no mask of them is held.
    """
    check_k(k)
    core, passes = everything(sizes), 0
    while True:
        counts_U, counts_I = core.counts(blocks())
        enough_U, enough_I = counts_U >= k, counts_I >= k
        same = np.array_equal(enough_U, core.users_U) and np.array_equal(enough_I, core.items_I)
        core, passes = Core(enough_U, enough_I), passes + 1
        progress.update(f"{k}-core: {enough_U.sum():,} users and {enough_I.sum():,} items after pass {passes}")
        if same:
            break
    if not core.users_U.any():
        raise DataError(f"the {k}-core of {name!r} is empty", hint="choose a smaller k")
    return core


def everything(sizes: tuple[int, int]) -> Core:
    """All users and items."""
    return Core(*(np.ones(size, dtype=bool) for size in sizes))


def check_k(k: int) -> None:
    """Refuse a k below 1."""
    if k < 1:
        raise ConfigError(f"k of the k-core must be at least 1, got {k}", hint="such as --k-core 5")


def core_provenance(provenance: Mapping[str, str], k: int) -> dict[str, str]:
    """What a k-core says about its origin."""
    return {**provenance, "k_core": str(k)}


def restrict(dataset: Dataset, interactions_E: np.ndarray, users_U: np.ndarray, items_I: np.ndarray) -> Dataset:
    """The chosen interactions, users and items (three masks) with new numbers in the old order."""
    new_number_I = np.cumsum(items_I) - 1
    kept = dataset.sequences.keep(interactions_E)
    values = new_number_I[kept.values].astype(kept.values.dtype)
    return replace(
        dataset,
        users=Vocabulary(dataset.users.ids(np.flatnonzero(users_U))),
        items=Vocabulary(dataset.items.ids(np.flatnonzero(items_I))),
        sequences=Ragged.from_lengths(values, kept.lengths[users_U]),
        attributes=dataset.attributes.filter(items_I),
        times=None if dataset.times is None else dataset.times[interactions_E],
    )
