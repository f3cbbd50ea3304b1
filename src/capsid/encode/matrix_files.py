"""Files that hold a matrix and optionally the id of each row: see `ENDINGS`. Never unpickles."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import polars as pl

from capsid.errors import DataError

ID_NAMES = ("item_id", "id", "ids", "item", "items", "asin")
VECTOR_NAMES = ("vectors", "vector", "embeddings", "embedding")
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
    try:
        vectors_ND, ids = readers[path.suffix](path)
    except DataError:
        raise
    except Exception as error:  # numpy, polars and safetensors raise various errors for broken files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path} could not be read: {reason}", hint="the file may be truncated") from None
    if ids is None and ids_file(path).is_file():
        ids = ids_file(path).read_text(encoding="utf-8").splitlines()
    return vectors_ND, ids


def _npy(path: Path) -> tuple[np.ndarray, None]:
    return np.load(path, allow_pickle=False), None


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
    frame = pl.read_parquet(path)
    name, ids = _ids_of(frame)
    rest = frame.drop(name) if name else frame
    lists = [c for c in rest.columns if isinstance(rest[c].dtype, pl.List | pl.Array)]
    if not lists:
        numbers = rest.select(pl.selectors.numeric())
        return numbers.cast(pl.Float64).fill_null(float("nan")).to_numpy(), ids
    column = next((c for c in VECTOR_NAMES if c in lists), lists[0])
    widths = [-1 if v is None else len(v) for v in rest[column].to_list()]
    odd = next((i for i, w in enumerate(widths) if w != widths[0]), None)
    if odd is not None:
        who = repr(ids[odd]) if ids else f"row {odd}"
        raise DataError(
            f"{path}: the vector of {who} has {widths[odd]} numbers, the first has {widths[0]}",
            hint="all vectors must be of the same width",
        )
    return np.array(rest[column].to_list(), dtype=np.float64), ids


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
