"""The order of a user's interactions that have equal times: as in the file, or by a hash.

A file must write tied interactions in some order, often that of item ids; a model that predicts the last item then
learns how the file was sorted. The hash of user id, item id and the order's own seed knows neither file nor model, and
does not change with a training seed. Times stay as they are, so only items change places. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from capsid.base.randomness import child_seed, mixed
from capsid.base.storage.mapped_arrays import in_file, mapped_scratch
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import FILE_ORDER, Dataset
from capsid.errors import ConfigError, DataError, nearest
from capsid.ragged import Ragged

SHUFFLE = "shuffle"
TIES = (SHUFFLE, FILE_ORDER)


def check_ties(ties: str | None) -> None:
    """Refuse a word that names no order."""
    if ties is not None and ties not in TIES:
        raise ConfigError(f"ties are ordered by {' or '.join(TIES)}, got {ties!r}", hint=nearest(ties, TIES))


def with_order(dataset: Dataset, ties: str | None = None, seed: int = 0) -> Dataset:
    """The dataset, which is in file order, with its ties in the wanted order; None: shuffled where times are known."""
    check_ties(ties)
    if ties == FILE_ORDER or (ties is None and dataset.times is None):
        return dataset
    if dataset.times is None:
        raise DataError(
            f"{dataset.name!r} knows only an order and no times, so its ties cannot be found and shuffled",
            hint="give it times.txt.gz or days.txt.gz, or keep the order of the file with --ties file",
        )
    return replace(dataset, sequences=_shuffled(dataset, seed), order=f"{SHUFFLE} {seed}")


def order_of(text: str) -> tuple[str, int]:
    """The word and the seed of a stored order: "file" or "shuffle 0"."""
    word, _, seed = text.partition(" ")
    return word, int(seed or 0)


def tied(dataset: Dataset) -> np.ndarray:
    """Whether each interaction has the same user and time as the one before it."""
    if dataset.times is None:
        return np.zeros(dataset.interactions, dtype=bool)
    return _joined(dataset.times, dataset.sequences.offsets)


def _joined(times: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    same = np.zeros(len(times), dtype=bool)
    same[1:] = times[1:] == times[:-1]
    starts = offsets[:-1]
    same[starts[starts < len(same)]] = False
    return same


def _shuffled(dataset: Dataset, seed: int) -> Ragged:
    sequences = dataset.sequences
    if not tied(dataset).any():
        return sequences
    parts = _shuffled_parts(dataset, seed)
    if in_file(sequences.values):
        return Ragged(mapped_scratch(parts, sequences.values.dtype), sequences.offsets)
    values = np.concatenate([sequences.values[:0], *parts])
    return Ragged(values, sequences.offsets)


def _shuffled_parts(dataset: Dataset, seed: int) -> Iterator[np.ndarray]:
    """The item numbers of some users at a time: a large dataset is not read as a whole."""
    assert dataset.times is not None
    of_item, user, begin = _hashes(dataset.items, slice(None), seed, "item"), 0, 0
    for part in dataset.sequences.parts():
        same = _joined(dataset.times[begin : begin + len(part.values)], part.offsets)
        of_user = _hashes(dataset.users, slice(user, user + len(part)), seed, "user")
        key = mixed(np.repeat(of_user, part.lengths) ^ of_item[part.values])
        yield part.values[np.lexsort((key, np.cumsum(~same)))]
        user, begin = user + len(part), begin + len(part.values)


def _hashes(ids: Vocabulary, chosen: slice, seed: int, what: str) -> np.ndarray:
    return np.array([child_seed(seed, "ties", what, id_) for id_ in ids[chosen]], dtype=np.uint64)
