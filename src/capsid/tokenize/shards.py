"""Codes of a catalogue of any size: a pure map over shards of rows, one Parquet file per shard, in any order.

A shard's file carries a hash of its inputs (the tokenizer's settings and arrays, the rows' ids and vectors). A
finished shard with the right hash is not recomputed, so an interrupted run resumes, and several processes can share
the work. Shards hold codes only: a suffix that separates equal codes would depend on the other shards.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capsid.artifacts import write_bytes, write_json
from capsid.config import canonical_json
from capsid.data.item_table import ItemTable
from capsid.encode.mapped_files import MappedVectors
from capsid.errors import ArtifactError, ConfigError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.tokenize.base import Confident, Tokenizer

VERSION = 1
SUMMARY = "shards.json"
METADATA = b"capsid"
HASH_ROWS = 8192


@dataclass(frozen=True)
class ShardsDone:
    """Result of a run. `complete`: the folder now holds every shard, including those of other processes."""

    shards: int
    written: int
    kept: int
    items: int
    complete: bool


def encode_shards(
    tokenizer: Tokenizer,
    source: MappedVectors,
    out_folder: Path,
    *,
    rows_per_shard: int = 65_536,
    part: tuple[int, int] = (1, 1),
    progress: Progress = silent,
) -> ShardsDone:
    """Write `codes-00000.parquet`, ... with columns item_id, codes and confidences (null where there are none).

    `part` (i, n) takes every n-th shard beginning with the i-th, so that n processes can do one each. An item's codes
    depend neither on the shard size nor on the process. `shards.json` is written once all shards exist.
    """
    if rows_per_shard < 1:
        raise ConfigError(f"rows_per_shard must be at least 1, got {rows_per_shard}", hint="give at least one row")
    if not 1 <= part[0] <= part[1]:
        raise ConfigError(f"part {part[0]}/{part[1]} does not exist", hint="write 1/2 for the first of two parts")
    folder, count = Path(out_folder), math.ceil(len(source) / rows_per_shard)
    _check_folder(folder, count)
    key, written, kept, items = tokenizer_key(tokenizer), 0, 0, 0
    for number in range(part[0] - 1, count, part[1]):
        start = number * rows_per_shard
        stop = min(start + rows_per_shard, len(source))
        about = {"tokenizer": key, "rows": _rows_key(source, start, stop), "first": start}
        if _about(_file(folder, number)) == about:
            kept += 1
        else:
            # From here until the end the folder may mix old and new shards, or be incomplete.
            (folder / SUMMARY).unlink(missing_ok=True)
            write_bytes(_file(folder, number), _encoded(tokenizer, source.table(start, stop), about))
            written += 1
        items += stop - start
        progress.update(f"encode: shard {number + 1:,}/{count:,}, {items:,} items")
    complete = _finish(folder, count, key, len(source), rows_per_shard)
    progress.line(f"encode: {written:,} shards written, {kept:,} already present, {count:,} in total")
    return ShardsDone(count, written, kept, items, complete)


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """A hash of all settings and learnt arrays."""
    digest = hashlib.sha256(f"{VERSION}{canonical_json(tokenizer)}".encode())
    for name, array in sorted(tokenizer.state().items()):
        digest.update(f"{name}{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


def _rows_key(source: MappedVectors, start: int, stop: int) -> str:
    """A hash of ids and vectors, read in blocks."""
    digest = hashlib.sha256(json.dumps(source.ids[start:stop].to_list()).encode())
    for first in range(start, stop, HASH_ROWS):
        digest.update(np.ascontiguousarray(source.vectors_ND[first : min(first + HASH_ROWS, stop)]).data)
    return digest.hexdigest()[:32]


def _encoded(tokenizer: Tokenizer, table: ItemTable, about: Mapping[str, Any]) -> bytes:
    """A shard's file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    codes, confidences = _codes(tokenizer, table)
    columns = {
        "item_id": pa.array(list(table.items), pa.string()),
        "codes": pa.ListArray.from_arrays(codes.offsets.astype(np.int32), codes.values.astype(np.int32)),
        "confidences": pa.nulls(len(table), pa.list_(pa.float32()))
        if confidences is None
        else pa.ListArray.from_arrays(confidences.offsets.astype(np.int32), confidences.values.astype(np.float32)),
    }
    made = pa.table(columns).replace_schema_metadata({METADATA: json.dumps(about)})
    with pa.BufferOutputStream() as out:
        pq.write_table(made, out, compression="zstd")
        return bytes(out.getvalue())


def _codes(tokenizer: Tokenizer, table: ItemTable) -> tuple[Ragged, Ragged | None]:
    """Codes, and a confidence for each where the tokenizer has one."""
    return tokenizer.encode_confident(table) if isinstance(tokenizer, Confident) else (tokenizer.encode(table), None)


def _about(path: Path) -> Any:
    """The key of a finished shard; None if the shard is missing or incomplete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return json.loads((pq.read_metadata(path).metadata or {})[METADATA])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _check_folder(folder: Path, count: int) -> None:
    """Refuse a folder that holds other shards or other files."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} exists and is not a folder", hint="choose another --out")
    for path in sorted(folder.glob("*")) if folder.exists() else ():
        number = re.fullmatch(r"codes-(\d{5,})\.parquet", path.name)
        if number and int(number[1]) >= count:
            raise ArtifactError(
                f"{folder} holds {path.name}, but these vectors make {count} shards",
                hint="choose another --out, or remove the shards of the earlier run",
            )
        if not number and path.name != SUMMARY and not path.name.startswith("."):
            raise ArtifactError(f"{folder} holds {path.name}, which is not a shard", hint="choose another --out")


def _finish(folder: Path, count: int, key: str, rows: int, rows_per_shard: int) -> bool:
    """Write `shards.json` if all shards exist: with several parts, the last to finish writes it."""
    every = [_about(_file(folder, number)) for number in range(count)]
    if any(about is None or about["tokenizer"] != key for about in every):
        return False
    plan = {"items": rows, "rows_per_shard": rows_per_shard, "shards": count, "tokenizer": key}
    write_json(folder / SUMMARY, plan | {"files": {_file(folder, n).name: a["rows"] for n, a in enumerate(every)}})
    return True


def _file(folder: Path, number: int) -> Path:
    return folder / f"codes-{number:05d}.parquet"
