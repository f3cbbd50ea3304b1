"""Vectors of a catalogue larger than memory: a memory-mapped float32 .npy and the ids of its rows, mapped as well.

Parquet (a file, or a folder of them) and .npy of other numbers are rewritten once, block by block, and kept in the
cache. A process that is given the paths maps both and holds nothing of the catalogue. Knows no tokenizer.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from capsid.base.config import fingerprint
from capsid.base.storage.artifacts import cache_home, file_hash, new_folder, open_folder
from capsid.base.storage.mapped_arrays import TextsWriter, map_texts
from capsid.base.storage.parquet import check_whole
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import first_ids, refuse_rows
from capsid.encode.precomputed import as_float32, ids_file, parquet_blocks, parquet_columns, readable
from capsid.errors import ArtifactError, DataError
from capsid.progress import Progress, silent

if TYPE_CHECKING:
    import pyarrow as pa

KIND, IDS_KIND = "mapped-vectors", "mapped-ids"
VERSION = 2
NAME, IDS_NAME = "vectors.npy", "ids"
# Numbers held in memory at a time (float32: 16 MB).
BLOCK_NUMBERS = 1 << 22
# An id that str.splitlines splits could not be read back from a file with one id per line.
UNFIT = r"^$|[\n\r\x0b\x0c\x1c-\x1e\x{85}\x{2028}\x{2029}]"
Block = tuple["pa.LargeStringArray", np.ndarray]


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """`vectors_ND` is a mapped file that the system reads on demand; `ids` names its rows. `vectors_file` and
    `ids_path` are where they are mapped from; None if they are in memory."""

    vectors_ND: np.ndarray
    ids: Vocabulary
    vectors_file: Path | None = None
    ids_path: Path | None = None

    @classmethod
    def at(cls, vectors_file: Path, ids_path: Path) -> MappedVectors:
        """Map what `open_vectors` has checked, in another process."""
        vectors_ND = _matrix(vectors_file)
        ids = Vocabulary.of_unique(map_texts(ids_path))
        if len(ids) != len(vectors_ND):
            message = f"{vectors_file} has {len(vectors_ND)} vectors but {ids_path} has {len(ids)} ids"
            raise DataError(message, hint="start the job again")
        return cls(vectors_ND, ids, vectors_file, ids_path)

    def __len__(self) -> int:
        return len(self.ids)

    def table(self, start: int = 0, stop: int | None = None) -> ItemTable:
        """Some rows as the block `item` of an item table; the vectors stay on disk."""
        stop = len(self) if stop is None else min(stop, len(self))
        items = self.ids.part(start, stop)
        return ItemTable.new_items(items, pl.DataFrame(), ()).with_block("item", self.vectors_ND[start:stop])


def open_vectors(path: Path, *, cache: Path | None = None, progress: Progress = silent) -> MappedVectors:
    """Map a file; a file that cannot be mapped directly is first rewritten into the cache, or found there. Takes a .npy
    (ids beside it as `vectors.ids.txt`, or rows are named by number), a .parquet with a column of ids and a column of
    lists, or a folder of such files, read in the order of their names."""
    path, root = Path(path), cache or cache_home() / "stages" / "mapped"
    if path.suffix == ".npy":
        matrix_ND = _matrix(path)
        if matrix_ND.dtype == np.dtype("<f4") and matrix_ND.flags.c_contiguous:
            return MappedVectors.at(path.absolute(), _mapped_ids(path, len(matrix_ND), root, progress).absolute())
    sources = vector_files(path)
    beside = [ids_file(p) for p in sources if p.suffix == ".npy" and ids_file(p).is_file()]
    key = fingerprint(KIND, VERSION, [file_hash(p) for p in (*sources, *beside)])
    folder = (root / key).absolute()
    if not _kept(folder, KIND, progress):
        progress.line(f"{path.name}: converting once to a file that can be mapped")
        write_mapped(path, folder, progress=progress)
    return MappedVectors.at(folder / NAME, folder / IDS_NAME)


def vector_files(path: Path) -> list[Path]:
    """The files that `path` refers to. Shards of text vectors must be all there."""
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise DataError(f"{path} holds no .parquet file", hint="give a .npy, a .parquet, or a folder of .parquet")
        check_whole(path, files)
        return files
    if path.suffix not in (".npy", ".parquet"):
        raise DataError(f"{path} is not a file of vectors that can be read in parts", hint="allowed: .npy, .parquet")
    if not path.is_file():
        raise DataError(f"there is no file {path}", hint="paths are relative to the current folder")
    return [path]


def write_mapped(path: Path, folder: Path, *, progress: Progress = silent) -> None:
    """Write `vectors.npy` (float32) and the ids into a new folder, atomically, one block at a time. Rows of unequal
    width, NaN, infinity or zeros, and missing or duplicate ids, raise errors that name the items."""
    files = vector_files(Path(path))
    rows = sum(_row_count(p) for p in files)
    if not rows:
        raise DataError(f"{path} has no rows", hint="give at least one vector")
    with new_folder(folder, kind=KIND) as new:
        _write_blocks(files, rows, new, progress)


def _write_blocks(files: list[Path], rows: int, folder: Path, progress: Progress) -> None:
    broken, zero = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    width, done = -1, 0
    with open(folder / NAME, "wb") as file, TextsWriter(folder / IDS_NAME) as names:
        for path in files:
            for ids, block_BD in _blocks(path):
                if width < 0:
                    width = block_BD.shape[1]
                    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
                    np.lib.format.write_array_header_1_0(file, header)
                if block_BD.shape[1] != width:
                    message = f"{path} is {block_BD.shape[1]} wide, but the files before it are {width} wide"
                    raise DataError(message, hint="all vectors must have the same width")
                _check_ids(ids, path)
                names.add(ids)
                here = slice(done, done + len(block_BD))
                broken[here] = ~np.isfinite(block_BD).all(1)
                zero[here] = ~block_BD.any(1)
                # Append instead of writing through a mapping: a full disk then raises an error and kills no process.
                file.write(np.ascontiguousarray(block_BD, dtype="<f4").data)
                done += len(block_BD)
                progress.update(f"vectors: {done:,}/{rows:,} rows")
    if done != rows:
        raise DataError(f"only {done} of {rows} rows could be read", hint="the file may be truncated")
    every = Vocabulary.of_unique(map_texts(folder / IDS_NAME))
    for bad, what in ((broken, "hold NaN or infinity"), (zero, "are all zeros")):
        refuse_rows(bad, every, what, "repair or drop these rows")
    _refuse_repeats(every, files[0].parent if len(files) > 1 else files[0])
    progress.line(f"vectors: {rows:,} rows, {width} wide")


def _blocks(path: Path) -> Iterator[Block]:
    return _npy_blocks(path) if path.suffix == ".npy" else _parquet_blocks(path)


def _npy_blocks(path: Path) -> Iterator[Block]:
    matrix_ND = _matrix(path)
    step = max(1, BLOCK_NUMBERS // matrix_ND.shape[1])
    start = 0
    for ids in _id_blocks(path, len(matrix_ND), step):
        yield ids, as_float32(matrix_ND[start : start + len(ids)])
        start += len(ids)


def _parquet_blocks(path: Path) -> Iterator[Block]:
    with readable(path):
        import pyarrow.parquet as pq

        schema = pq.read_schema(path)
        for name, what in zip(parquet_columns(schema), ("ids", "lists")):
            if name is None:
                found = f"found: {', '.join(schema.names)}"
                hint = f"call it item_id; {found}" if what == "ids" else found
                raise DataError(f"{path} has no column of {what}", hint=hint)
        for ids, block_BD in parquet_blocks(path):
            assert ids is not None
            yield ids.to_arrow().cast("large_string"), block_BD


def _row_count(path: Path) -> int:
    if path.suffix == ".npy":
        return len(_matrix(path))
    with readable(path):
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)


def _matrix(path: Path) -> np.ndarray:
    vector_files(path)
    with readable(path):
        matrix_ND = np.load(path, mmap_mode="r", allow_pickle=False)
    if matrix_ND.ndim != 2 or not np.issubdtype(matrix_ND.dtype, np.number) or not matrix_ND.size:
        raise DataError(
            f"{path} holds {matrix_ND.dtype} of shape {matrix_ND.shape}", hint="a matrix with one row per item"
        )
    return matrix_ND


def _mapped_ids(path: Path, rows: int, root: Path, progress: Progress) -> Path:
    """The ids of a .npy as mapped texts in the cache, written there if need be."""
    beside = ids_file(path)
    if not beside.is_file():
        progress.line(f"{path.name}: no {beside.name} beside it, so rows are named by their number")
    with readable(beside):
        folder = root / fingerprint(IDS_KIND, VERSION, rows, file_hash(beside) if beside.is_file() else None)
    if not _kept(folder, IDS_KIND, progress):
        with new_folder(folder, kind=IDS_KIND) as new:
            with TextsWriter(new / IDS_NAME) as names:
                for ids in _id_blocks(path, rows, 1 << 16):
                    _check_ids(ids, beside)
                    names.add(ids)
            _refuse_repeats(Vocabulary.of_unique(map_texts(new / IDS_NAME)), beside)
    return folder / IDS_NAME


def _id_blocks(path: Path, rows: int, step: int) -> Iterator[pa.LargeStringArray]:
    """The ids of a .npy: the lines of the file beside it, or the numbers of the rows."""
    import pyarrow as pa

    beside = ids_file(path)
    if not beside.is_file():
        for start in range(0, rows, step):
            yield pa.array(np.arange(start, min(start + step, rows))).cast(pa.large_string())
        return
    with readable(beside), open(beside, encoding="utf-8") as file:
        found = 0
        while lines := [line.rstrip("\n") for line in itertools.islice(file, step)]:
            found += len(lines)
            if found <= rows:
                yield pa.array(lines, pa.large_string())
        if found != rows:
            message = f"{path} has {rows} vectors but {beside.name} has {found} ids"
            raise DataError(message, hint="write one id per line, in the order of the vectors")


def _check_ids(ids: pa.LargeStringArray, path: Path) -> None:
    """Refuse empty ids and ids with line breaks."""
    names = pl.Series(ids)
    unfit = names.str.contains(UNFIT).to_numpy()
    if unfit.any():
        named = first_ids(unfit, names)  # type: ignore[arg-type]
        raise DataError(f"{path}: ids are empty or have line breaks: {named}", hint="write every id on one line")


def _refuse_repeats(ids: Vocabulary, path: Path) -> None:
    again = ids.repeats()
    if len(again):
        named = ", ".join(map(repr, ids.ids(again[:5]))) + (f" and {len(again) - 5} more" if len(again) > 5 else "")
        raise DataError(f"{path}: {len(again)} ids occur twice: {named}", hint="ids must be unique")


def _kept(folder: Path, kind: str, progress: Progress) -> bool:
    """Whether an earlier call wrote the folder; a damaged one is removed, because it can be rewritten."""
    if not folder.exists():
        return False
    try:
        open_folder(folder, kind=kind)
    except ArtifactError as error:
        progress.line(f"the mapped copy of the vectors is damaged and will be rewritten: {error}")
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True
