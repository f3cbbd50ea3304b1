"""A user's own vectors, read from one file and matched to the items by id.

Files hold a matrix and optionally the id of each row: see `ENDINGS`. Never unpickles. Knows files of numbers, not
their meaning or origin.
"""

from __future__ import annotations

import contextlib
import copy
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import polars as pl

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.base.storage.artifacts import file_hash
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import (
    RemembersVectors,
    check_vectors,
    content_hash,
    first_ids,
    fitted,
    has_evidence,
    require_items,
)
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from capsid.settings import setting

if TYPE_CHECKING:
    import pyarrow as pa


ID_NAMES = ("item_id", "id", "ids", "item", "items", "asin")
VECTOR_NAMES = ("vectors", "vector", "embeddings", "embedding")
# A larger .npy is mapped.
HELD_BYTES = 256_000_000
ENDINGS = (".npy", ".npz", ".parquet", ".csv", ".safetensors")


def ids_file(path: Path) -> Path:
    """The file of ids (one per line) for a format that cannot hold them: `vectors.npy` -> `vectors.ids.txt`."""
    return path.with_name(f"{path.stem}.ids.txt")


def read_matrix(path: Path) -> tuple[np.ndarray, list[str] | None]:
    """The matrix and the ids of its rows, None if there are no ids. Shape: (rows, d)."""
    readers = dict(zip(ENDINGS, (_npy, _npz, _parquet, _csv, _safetensors), strict=True))
    if path.suffix not in readers:
        raise DataError(f"{path} is not a file of vectors", hint=f"allowed endings: {', '.join(ENDINGS)}")
    if not path.is_file():
        raise DataError(f"there is no file {path}", hint="paths are relative to the current folder")
    with readable(path):
        vectors_ND, ids = readers[path.suffix](path)
    if ids is None and ids_file(path).is_file():
        ids = ids_file(path).read_text(encoding="utf-8").splitlines()
    return vectors_ND, ids


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Name the file in errors of the code that reads it."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # numpy, polars, pyarrow and safetensors raise various errors for broken files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "the file may be truncated"
        if "allow_pickle" in reason:
            reason, hint = "it holds Python objects instead of numbers and text", "save ids as text: ids.astype(str)"
        raise DataError(f"{path} could not be read: {reason}", hint=hint) from None


def as_float32(values: np.ndarray) -> np.ndarray:
    """Values as float32. A number that is too large becomes infinite, and is refused as such by whoever checks."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32)


def parquet_columns(schema: pa.Schema) -> tuple[str | None, str | None]:
    """Names of the columns of ids and of vectors (lists); None where there is none."""
    import pyarrow.types as types

    lists = [
        f.name
        for f in schema
        if types.is_list(f.type) or types.is_large_list(f.type) or types.is_fixed_size_list(f.type)
    ]
    id_name = next((n for n in ID_NAMES if n in schema.names and n not in lists), None)
    return id_name, next((n for n in VECTOR_NAMES if n in lists), lists[0] if lists else None)


def parquet_blocks(path: Path) -> Iterator[tuple[pl.Series | None, np.ndarray]]:
    """Ids and lists of a Parquet file, 1,024 rows at a time. Shape of a matrix: (rows, d)."""
    import pyarrow.parquet as pq

    # Buffered: otherwise the whole column of a row group is held, and some writers make one row group of a file.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        id_name, vector_name = parquet_columns(file.schema_arrow)
        names = [n for n in (id_name, vector_name) if n is not None]
        width, done = -1, 0
        for batch in file.iter_batches(batch_size=1024, columns=names, use_threads=False):
            ids = None if id_name is None else pl.Series(batch[id_name]).cast(pl.String)
            if ids is not None and ids.null_count():
                row = done + int(ids.is_null().arg_max() or 0)
                raise DataError(f"{path}: row {row} has no id", hint="every vector needs an id")
            block_BD = _rectangle(path, ids, batch[vector_name], width, done)
            yield ids, block_BD
            width, done = block_BD.shape[1], done + len(block_BD)


def _rectangle(path: Path, ids: pl.Series | None, lists: Any, width: int, first: int) -> np.ndarray:
    """Lists of one length as a matrix; `first` is the number of the first row. Shape: (rows, width)."""
    lengths = pl.Series(lists.value_lengths()).fill_null(-1).to_numpy()
    width = int(lengths[0]) if width < 0 else width
    odd = np.flatnonzero(lengths != width)
    if len(odd) or width < 1:
        row = int(odd[0]) if len(odd) else 0
        who = f"row {first + row}" if ids is None else repr(ids[row])
        has = f"has {lengths[row]} numbers, the first has {width}" if lengths[row] > 0 else "is missing or empty"
        raise DataError(f"{path}: the vector of {who} {has}", hint="all vectors must have the same width")
    return as_float32(lists.flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)


def _npy(path: Path) -> tuple[np.ndarray, None]:
    # A small file is read: it may be written again while its numbers are in use.
    mode: Literal["r"] | None = "r" if path.stat().st_size > HELD_BYTES else None
    return np.load(path, mmap_mode=mode, allow_pickle=False), None


def _npz(path: Path) -> tuple[np.ndarray, list[str] | None]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    ids = next((arrays[n] for n in ID_NAMES if n in arrays), None)
    return _pick_matrix(path, arrays), None if ids is None else [str(i) for i in ids.tolist()]


def _safetensors(path: Path) -> tuple[np.ndarray, list[str] | None]:
    from safetensors.numpy import load_file

    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        metadata = json.loads(file.read(size)).get("__metadata__", {})
    ids = next((json.loads(metadata[n]) for n in ID_NAMES if n in metadata), None)
    return _pick_matrix(path, load_file(path)), None if ids is None else [str(i) for i in ids]


def _csv(path: Path) -> tuple[np.ndarray, list[str] | None]:
    """One column per number; the column of ids has one of the names above. Ids are text: 007 is not 7."""
    frame = pl.read_csv(path, infer_schema=False)
    name, ids = _ids_of(frame)
    texts = frame.drop(name) if name else frame
    numbers = texts.select(pl.all().str.strip_chars().cast(pl.Float64, strict=False))
    for column in texts.columns:
        bad = (numbers[column].is_null() & texts[column].is_not_null()).arg_true()
        if len(bad):
            value = texts[column][int(bad[0])]
            raise DataError(
                f"{path} row {bad[0] + 1}: {value!r:.60} in column {column!r} is not a number",
                hint=f"one column per number, and a column of ids called {', '.join(ID_NAMES[:3])}",
            )
    return numbers.fill_null(float("nan")).to_numpy(), ids


def _ids_of(frame: pl.DataFrame) -> tuple[str | None, list[str] | None]:
    name = next((n for n in ID_NAMES if n in frame.columns), None)
    return name, None if name is None else [str(i) for i in frame[name].to_list()]


def _parquet(path: Path) -> tuple[np.ndarray, list[str] | None]:
    """A column of lists, or one column per number."""
    import pyarrow.parquet as pq

    if parquet_columns(pq.read_schema(path))[1] is None:
        frame = pl.read_parquet(path)
        name, ids = _ids_of(frame)
        numbers = (frame.drop(name) if name else frame).select(pl.selectors.numeric())
        return numbers.cast(pl.Float64).fill_null(float("nan")).to_numpy(), ids
    named: list[str] = []
    blocks: list[np.ndarray] = []
    for block_ids, block_BD in parquet_blocks(path):
        named += [] if block_ids is None else block_ids.to_list()
        blocks.append(block_BD)
    if not blocks:
        raise DataError(f"{path} has no rows", hint="give at least one vector")
    return np.concatenate(blocks), named or None


def _pick_matrix(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The array with a well-known name, or the only matrix."""
    for name in VECTOR_NAMES:
        if name in arrays:
            return arrays[name]
    matrices = [a for a in arrays.values() if a.ndim == 2]
    if len(matrices) != 1:
        raise DataError(
            f"{path} holds {len(matrices)} matrices: {', '.join(arrays)}", hint="call the one to use 'vectors'"
        )
    return matrices[0]


@dataclass(kw_only=True)
class PrecomputedEncoder(RemembersVectors):
    """Vectors from a .npy, .npz, .parquet, .csv or .safetensors file."""

    kind: ClassVar[str] = "precomputed"

    path: str = setting("", "The file of vectors.")
    missing: Literal["error", "zero"] = setting(
        "error", "Whether an item without a vector (no row, or a row of zeros) is an error or gets zeros."
    )

    def check_together(self) -> None:
        if not self.path:
            raise ConfigError("encoder.path must name a file of vectors", hint="pass --vectors FILE")

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Read and check the file. Rows of other items are kept for items added later."""
        require_items(table)
        self.items_, self.vectors_ = _read(self.path, table.items)
        extra = len(self.items_) - int((self.items_.numbers(table.items, missing="negative") >= 0).sum())
        if extra:
            progress.line(f"{self.path}: {extra:,} of {len(self.items_):,} vectors match no item of the dataset")
        self.transform(table)
        return self

    def with_vectors(self, path: str | Path) -> Self:
        """A copy that also knows the vectors of another file, for items added later. Known items keep theirs."""
        known, old_ND = fitted(self.items_, self), fitted(self.vectors_, self)
        items, vectors_ND = _read(str(path), None)
        if vectors_ND.shape[1] != old_ND.shape[1]:
            raise DataError(
                f"{path}: the vectors are {vectors_ND.shape[1]} wide, those of the fit are {old_ND.shape[1]}",
                hint="make the vectors of new items with the same model",
            )
        new = [n for n, id_ in enumerate(items) if id_ not in known]
        grown = copy.copy(self)
        grown.items_ = Vocabulary([*known, *items.ids(new)])
        grown.vectors_ = np.concatenate([old_ND, vectors_ND[new]])
        return grown

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """The file's vectors by item id; works for new items that the file holds. Shape: (items, d)."""
        known = fitted(self.items_, self)
        numbers = known.numbers(table.items, missing="negative")
        if self.missing == "error" and (numbers < 0).any():
            sample = ", ".join(map(repr, known[:3]))
            raise DataError(
                f"{self.path} has no vector for {int((numbers < 0).sum())} of {len(table)} items: "
                f"{first_ids(numbers < 0, table.items)}",
                hint=f"its ids look like {sample}; encoder.missing=zero allows items without a vector",
            )
        out_ND = self.remembered(table.items)
        if self.missing == "error" and not has_evidence(out_ND).all():
            zero = ~has_evidence(out_ND)
            raise DataError(
                f"the vectors of {int(zero.sum())} items in {self.path} are all zeros: {first_ids(zero, table.items)}",
                hint="encoder.missing=zero allows items without a vector",
            )
        return out_ND

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The bytes of the file and of its ids, and the items; not the file's path."""
        path = Path(self.path)
        if not path.is_file():
            raise DataError(f"there is no file {path}", hint=f"allowed endings: {', '.join(ENDINGS)}")
        hashes = [file_hash(p) for p in (path, ids_file(path)) if p.is_file()]
        return fingerprint(self.kind, self.missing, hashes, content_hash(table.items))


def _read(file: str, in_order: Sequence[str] | None) -> tuple[Vocabulary, np.ndarray]:
    """The ids and checked vectors of a file; a file without ids must have one row per item of `in_order`."""
    vectors_ND, ids = read_matrix(Path(file))
    if ids is None:
        if in_order is None or len(vectors_ND) != len(in_order):
            of = "" if in_order is None else f" for {len(in_order):,} items"
            raise DataError(
                f"{file} has {len(vectors_ND):,} rows{of} and no ids",
                hint=f"give an id for every row, one per line in {ids_file(Path(file)).name}"
                + ("" if in_order is None else ", or rows in item order"),
            )
        ids = list(in_order)
    if len(ids) != len(vectors_ND):
        raise DataError(
            f"{file} has {len(vectors_ND):,} vectors but {len(ids):,} ids", hint="one id per vector, in the same order"
        )
    try:
        items = Vocabulary(ids)
        check_vectors(vectors_ND, ids, allow_zero=True)
    except DataError as error:
        raise DataError(f"{file}: {error.message}", hint=error.hint) from None
    return items, vectors_ND.astype(np.float32, copy=False)
