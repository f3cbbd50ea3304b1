"""Text vectors of a catalogue of any size, in shards that `capsid vectors fit` and `encode` read as one folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import polars as pl

from capsid.base.config import fingerprint
from capsid.base.storage.artifacts import cache_home, new_folder, open_folder
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.precomputed import ID_NAMES
from capsid.encode.text import VERSION, embed_texts, item_texts
from capsid.errors import ArtifactError, ConfigError, DataError, nearest, reason_of
from capsid.scale.shards import Shards, shard_file

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "item-texts"


@dataclass(frozen=True, eq=False)
class ItemFiles:
    """Parquet files with one row per item, read in the order given; `fields` make an item's text."""

    files: tuple[str, ...]
    id_column: str
    fields: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, fields: tuple[str, ...]) -> ItemFiles:
        """A .parquet or a folder of them."""
        files = tuple(str(p.absolute()) for p in (sorted(path.glob("*.parquet")) if path.is_dir() else [path]))
        if not files or not Path(files[0]).is_file():
            raise DataError(f"there is no .parquet file at {path}", hint="give a .parquet, or a folder of them")
        columns = _read(files).collect_schema().names()
        id_column = next((name for name in ID_NAMES if name in columns), None)
        if id_column is None:
            raise DataError(f"{path} has no column of ids", hint=f"call it item_id; found: {', '.join(columns)}")
        for field in fields:
            if field not in columns:
                raise ConfigError(f"the items have no text field {field!r}", hint=nearest(field, columns))
        if not fields:
            raise ConfigError("no text fields are given", hint="such as --fields title,brand")
        return cls(files, id_column, fields)

    @cached_property
    def rows(self) -> int:
        return int(_read(self.files).select(pl.len()).collect().item())

    def texts(self, start: int, stop: int) -> tuple[list[str], list[str]]:
        """Ids and texts of some rows; a text may be empty."""
        frame = _read(self.files).select(self.id_column, *self.fields).slice(start, stop - start).collect()
        ids = frame[self.id_column].cast(pl.String)
        if ids.null_count():
            raise DataError(f"row {start + int(ids.is_null().arg_max() or 0)} of the items has no id")
        table = ItemTable.new_items(Vocabulary(ids), frame.select(self.fields), self.fields)
        return ids.to_list(), item_texts(table, self.fields)


def _read(files: tuple[str, ...]) -> pl.LazyFrame:
    try:
        frame = pl.scan_parquet(list(files))
        frame.collect_schema()
        return frame
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"the items could not be read: {reason_of(error)}") from None


def stored_items(ids: Vocabulary, attributes: pl.DataFrame, fields: tuple[str, ...], key: str) -> Path:
    """Items of another form as a Parquet file in the cache, so that workers can read some rows of them."""
    folder = cache_home() / "stages" / "items" / fingerprint(KIND, key, list(fields))
    try:
        open_folder(folder, kind=KIND)
    except ArtifactError:
        frame = attributes.select(fields).with_columns(pl.Series("item_id", list(ids), dtype=pl.String))
        with new_folder(folder, kind=KIND) as new:
            frame.write_parquet(new / "items.parquet", row_group_size=8192)
    return folder / "items.parquet"


@dataclass(frozen=True, eq=False)
class TextShards(Shards):
    """Columns item_id and vector. Items without any text have no row."""

    name: ClassVar[str] = "vectors"
    source: ItemFiles
    rows: int
    model: str
    max_tokens: int
    folder: Path
    rows_per_shard: int

    def size(self) -> tuple[int, int]:
        return self.rows, self.rows_per_shard

    def common(self) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": self.max_tokens, "version": VERSION}

    def about(self, number: int) -> dict[str, Any]:
        start, stop = self.bounds(number)
        digest = hashlib.sha256(json.dumps(self.source.texts(start, stop)).encode())
        return {**self.common(), "rows": digest.hexdigest()[:32], "first": start}

    def table(self, number: int) -> pa.Table:
        import pyarrow as pa

        ids, texts = self.source.texts(*self.bounds(number))
        some = [row for row, text in enumerate(texts) if text]
        vectors_ND = embed_texts(self.model, [texts[row] for row in some], self.max_tokens)
        offsets = np.arange(len(some) + 1, dtype=np.int32) * vectors_ND.shape[1]
        columns = {
            "item_id": pa.array([ids[row] for row in some], pa.string()),
            "vector": pa.ListArray.from_arrays(pa.array(offsets), pa.array(vectors_ND.reshape(-1))),
        }
        return pa.table(columns)

    def summary(self) -> dict[str, Any]:
        return {**self.sizes(), **self.common(), "fields": list(self.source.fields)}


def rows_written(shards: Shards) -> int:
    """How many vectors finished shards hold."""
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(shard_file(shards, n)).num_rows) for n in range(shards.count))
