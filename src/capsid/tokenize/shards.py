"""Codes of a catalogue of any size: a pure map over shards of rows, one Parquet file a shard, in any order.

A shard's file carries a key of what it was made from (the tokenizer's settings and arrays, the rows' ids and vectors).
A finished shard with the right key is not made again, so a killed run resumes, and several processes may
share the work. Codes only: a suffix that tells equal codes apart would depend on the other shards.
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
    """What a run did. `complete`: the folder now holds every shard, whoever made it."""

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
    depend neither on the size of the shards nor on who made them. When all are there, `shards.json` says so.
    """
    if rows_per_shard < 1:
        raise ConfigError(f"rows_per_shard is {rows_per_shard}", hint="give at least one row")
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
            # From here until the end the folder holds old and new shards, or too few.
            (folder / SUMMARY).unlink(missing_ok=True)
            write_bytes(_file(folder, number), _encoded(tokenizer, source.table(start, stop), about))
            written += 1
        items += stop - start
        progress.update(f"encode: shard {number + 1:,}/{count:,}, {items:,} items")
    complete = _finish(folder, count, key, len(source), rows_per_shard)
    progress.line(f"encode: {written:,} shards written, {kept:,} were there already, {count:,} in all")
    return ShardsDone(count, written, kept, items, complete)


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """Changes when a setting or a learnt number does."""
    digest = hashlib.sha256(f"{VERSION}{canonical_json(tokenizer)}".encode())
    for name, array in sorted(tokenizer.state().items()):
        digest.update(f"{name}{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


def _rows_key(source: MappedVectors, start: int, stop: int) -> str:
    """Of ids and vectors, read in blocks."""
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
    """What a finished shard was made from; None where there is none, or half of one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return json.loads((pq.read_metadata(path).metadata or {})[METADATA])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None


def _check_folder(folder: Path, count: int) -> None:
    """Refuse a place where the shards would stand among others."""
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
            raise ArtifactError(f"{folder} holds {path.name}, which is no shard", hint="choose another --out")


def _finish(folder: Path, count: int, key: str, rows: int, rows_per_shard: int) -> bool:
    """Say that all is there, if it is: with several parts, whoever ends last does."""
    every = [_about(_file(folder, number)) for number in range(count)]
    if any(about is None or about["tokenizer"] != key for about in every):
        return False
    plan = {"items": rows, "rows_per_shard": rows_per_shard, "shards": count, "tokenizer": key}
    write_json(folder / SUMMARY, plan | {"files": {_file(folder, n).name: a["rows"] for n, a in enumerate(every)}})
    return True


def _file(folder: Path, number: int) -> Path:
    return folder / f"codes-{number:05d}.parquet"
