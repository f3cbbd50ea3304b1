"""k-core: repeatedly remove users and items with fewer than k interactions until all have at least k."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from capsid.data.dataset import Dataset
from capsid.errors import ConfigError, DataError
from capsid.ragged import Ragged
from capsid.vocabulary import Vocabulary


def k_core(dataset: Dataset, k: int = 5) -> Dataset:
    """The largest subset in which every user and every item has at least k interactions; order is kept."""
    if k < 1:
        raise ConfigError(f"k of the k-core must be at least 1, got {k}", hint="such as --k-core 5")
    items_E = dataset.sequences.values
    users_E = dataset.sequences.row_numbers
    kept_E = np.ones(len(items_E), dtype=bool)
    while True:
        enough_U = np.bincount(users_E[kept_E], minlength=len(dataset.users)) >= k
        enough_I = np.bincount(items_E[kept_E], minlength=len(dataset.items)) >= k
        still_E = kept_E & enough_U[users_E] & enough_I[items_E]
        if still_E.sum() == kept_E.sum():
            break
        kept_E = still_E
    if not kept_E.any():
        raise DataError(f"the {k}-core of {dataset.name!r} is empty", hint="choose a smaller k")
    core = restrict(dataset, kept_E, enough_U, enough_I)
    return replace(core, provenance={**dataset.provenance, "k_core": str(k)})


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
