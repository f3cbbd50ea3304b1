"""The mapped folder: a dataset as arrays that are mapped instead of read, so that histories need not fit into memory.

`sequences.npy` holds item numbers, user after user, oldest first; `offsets.npy` where each user begins; `times.npy` the
times, or `days.npy` the days. The ids of users and items are mapped texts, `attributes.parquet` has one row per item.
Written from a dataset in memory here, and block by block in `streaming`; both write the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_array
from capsid.base.storage.artifacts import new_folder, open_folder, read_json, write_json
from capsid.base.storage.mapped_arrays import ArrayWriter, TextsWriter, blocks_of, map_texts
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.ragged import Ragged

KIND = "dataset"
SEQUENCES, OFFSETS, TIMES, DAYS = "sequences.npy", "offsets.npy", "times.npy", "days.npy"
USERS, ITEMS, ATTRIBUTES, ABOUT = "users", "items", "attributes.parquet", "dataset.json"
HINT = "import it again: a mapped folder is not edited by hand"


def is_mapped(folder: Path) -> bool:
    """Whether the folder holds this format."""
    return (folder / SEQUENCES).is_file() and (folder / OFFSETS).is_file()


def read_mapped(folder: Path) -> Dataset:
    """Map the folder; bytes that are not those that were written are an error."""
    open_folder(folder, kind=KIND, hint=HINT)
    with untrusted.interpreting(folder, "mapped dataset"):
        about = untrusted.mapping(read_json(folder / ABOUT), ABOUT)
        users, items = (_ids(folder / name) for name in (USERS, ITEMS))
        sequences = Ragged(_array(folder / SEQUENCES, "<i4"), _array(folder / OFFSETS, "<i8"))
        _check(sequences, len(users), len(items))
        attributes = _attributes(folder / ATTRIBUTES, len(items))
        fields = tuple(untrusted.texts(about["text_fields"], "text_fields"))
        if not set(fields) <= set(attributes.columns):
            raise untrusted.refuse(f"{ABOUT} names text fields that no item has")
        clock = next((name for name in (TIMES, DAYS) if (folder / name).is_file()), None)
        return Dataset(
            name=untrusted.text(about["name"], "name"),
            users=users,
            items=items,
            sequences=sequences,
            attributes=attributes,
            times=None if clock is None else _array(folder / clock, "<i8", "<f8"),
            days=clock == DAYS,
            text_fields=fields,
            provenance=untrusted.mapping(about["provenance"], "provenance") | {"format": "mapped folder"},
        )


def write_mapped(dataset: Dataset, folder: Path) -> Path:
    """Write the dataset as a mapped folder, atomically; the same dataset gives the same bytes."""
    with new_folder(folder, kind=KIND) as new:
        time_type = None if dataset.times is None else dataset.times.dtype
        with histories_writer(new, time_type, DAYS if dataset.days else TIMES) as (items, times):
            for part in blocks_of(dataset.interactions):
                items.add(dataset.sequences.values[part])
                if times is not None and dataset.times is not None:
                    times.add(dataset.times[part])
        for name, ids in ((USERS, dataset.users), (ITEMS, dataset.items)):
            copy_texts(ids, new / name)
        about = about_of(dataset.name, dataset.text_fields, dataset.provenance)
        write_rest(new, dataset.sequences.offsets, dataset.attributes, about)
    return folder


@contextlib.contextmanager
def histories_writer(
    folder: Path, time_type: Any, name: str = TIMES
) -> Iterator[tuple[ArrayWriter, ArrayWriter | None]]:
    """Writers of the items and times of all users; no times without their type."""
    with contextlib.ExitStack() as stack:
        items = stack.enter_context(ArrayWriter(folder / SEQUENCES, "<i4"))
        times = None if time_type is None else stack.enter_context(ArrayWriter(folder / name, time_type))
        yield items, times


def copy_texts(ids: Vocabulary, path: Path, chosen: np.ndarray | None = None) -> None:
    """Write ids, or those where the mask is true, as mapped texts."""
    with TextsWriter(path) as writer:
        for part in blocks_of(len(ids)):
            column = ids.column.slice(part.start, part.stop - part.start)
            writer.add(column if chosen is None else column.filter(pl.Series(chosen[part]).to_arrow()))


def write_rest(folder: Path, offsets: np.ndarray, attributes: pl.DataFrame, about: Mapping[str, Any]) -> None:
    """Write what a mapped folder holds beside histories and ids."""
    with ArrayWriter(folder / OFFSETS, "<i8") as writer:
        writer.add(offsets)
    # A file that we opened, so that a full disk is an OSError.
    with open(folder / ATTRIBUTES, "wb") as file:
        attributes.rechunk().write_parquet(file)
    write_json(folder / ABOUT, dict(about))


def about_of(name: str, text_fields: tuple[str, ...], provenance: Mapping[str, str]) -> dict[str, Any]:
    """The content of dataset.json."""
    return {"name": name, "text_fields": list(text_fields), "provenance": dict(provenance)}


def _ids(path: Path) -> Vocabulary:
    column = map_texts(path)
    # Offsets that lead out of the file would be read as memory of somebody else.
    column.validate(full=True)
    return Vocabulary.of_unique(column)


def _array(path: Path, *dtypes: str) -> np.ndarray:
    array = load_array(path, memory_map=True)
    if array.ndim != 1 or array.dtype.str not in dtypes:
        raise untrusted.refuse(f"{path.name} is not a row of {' or '.join(dtypes)}")
    return array


def _attributes(path: Path, items: int) -> pl.DataFrame:
    # The file's footer has the number of rows: it is checked before any row is unpacked.
    if int(pl.scan_parquet(path).select(pl.len()).collect().item()) != items:
        raise untrusted.refuse(f"{path.name} does not have one row for each of {items:,} items")
    return pl.read_parquet(path)


def _check(sequences: Ragged, users: int, items: int) -> None:
    """Refuse arrays that do not belong together, a block at a time."""
    values, offsets = sequences.values, sequences.offsets
    if len(offsets) != users + 1:
        raise untrusted.refuse(f"{OFFSETS} does not cut {SEQUENCES} into the histories of {users:,} users")
    falls = any((np.diff(offsets[part.start : part.stop + 1]) < 0).any() for part in blocks_of(len(offsets)))
    if offsets[0] != 0 or offsets[-1] != len(values) or falls:
        raise untrusted.refuse(f"{OFFSETS} does not cut {SEQUENCES} into histories")
    for part in blocks_of(len(values)):
        if values[part].min() < 0 or values[part].max() >= items:
            raise untrusted.refuse(f"{SEQUENCES} names an item that is not among the {items:,} items")
