"""Encodes a catalogue of any size in shards: a pure map, because an item's codes depend on its own vector only.

Shards hold codes only: a suffix that separates equal codes would depend on the other shards (`capsid.scale.ids`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from capsid.base.storage.mapped_arrays import release_pages
from capsid.base.storage.parquet import lists
from capsid.encode.large_vectors import MappedVectors
from capsid.progress import Progress, silent
from capsid.scale.shards import (
    Part,
    Shards,
    ShardsDone,
    check_folder,
    collect,
    numbers_of,
    write_shard,
)
from capsid.tokenize.base import Confident, Tokenizer, tokenizer_key

if TYPE_CHECKING:
    import pyarrow as pa

    from capsid.ragged import Ragged
    from capsid.tokenize.item_tokenizer import ItemTokenizer

HASH_ROWS = 8192


@dataclass(frozen=True, eq=False)
class CodeShards(Shards):
    """Columns item_id, codes, and confidences (null where the tokenizer has none).

    `known` are the codes and confidences of all rows, if they have been computed already.
    """

    name: ClassVar[str] = "codes"
    tokenizer: Tokenizer
    source: MappedVectors
    folder: Path
    rows_per_shard: int
    known: tuple[Ragged, Ragged | None] | None = None

    def size(self) -> tuple[int, int]:
        return len(self.source), self.rows_per_shard

    @cached_property
    def key(self) -> str:
        return tokenizer_key(self.tokenizer)

    def common(self) -> dict[str, Any]:
        return {"tokenizer": self.key}

    def about(self, number: int) -> dict[str, Any]:
        start, stop = self.bounds(number)
        return {"tokenizer": self.key, "rows": rows_key(self.source, start, stop), "first": start}

    def table(self, number: int) -> pa.Table:
        import pyarrow as pa

        start, stop = self.bounds(number)
        codes, confidences = self._encoded(start, stop)
        # A worker makes many shards: without this its memory would grow to the size of all their vectors.
        release_pages(self.source.vectors_ND)
        columns = {
            "item_id": self.source.ids.part(start, stop).column.cast(pa.string()),
            "codes": lists(codes, np.int32),
            "confidences": pa.nulls(stop - start, pa.list_(pa.float32()))
            if confidences is None
            else lists(confidences, np.float32),
        }
        return pa.table(columns)

    def _encoded(self, start: int, stop: int) -> tuple[Ragged, Ragged | None]:
        if self.known is not None:
            codes, confidences = self.known
            rows = np.arange(start, stop)
            return codes.take(rows), None if confidences is None else confidences.take(rows)
        table = self.source.table(start, stop)
        if isinstance(self.tokenizer, Confident):
            return self.tokenizer.encode_confident(table)
        return self.tokenizer.encode(table), None

    def summary(self) -> dict[str, Any]:
        return {**self.sizes(), "tokenizer": self.key}


def encode_shards(
    tokenizer: Tokenizer,
    source: MappedVectors,
    out_folder: Path,
    *,
    rows_per_shard: int = 65_536,
    part: Part = (1, 1),
    known: tuple[Ragged, Ragged | None] | None = None,
    progress: Progress = silent,
) -> ShardsDone:
    """Write `codes-00000.parquet`, ... with a tokenizer in memory, in this process.

    `part` (i, n) takes every n-th shard beginning with the i-th, so that n processes can do one each. An item's codes
    depend neither on the shard size nor on the process. `shards.json` is written once all shards exist. `known` are
    the codes and confidences of all rows if a fit has just made them: then nothing is encoded.
    """
    shards = CodeShards(tokenizer, source, Path(out_folder), rows_per_shard, known)
    numbers = numbers_of(part, shards.count)
    check_folder(shards)
    return collect(shards, (write_shard(shards, n) for n in numbers), progress, "encode")


def encode_fitted(fitted: ItemTokenizer, out_folder: Path, *, progress: Progress = silent) -> ShardsDone:
    """Write the codes of the items that a tokenizer was just fitted on, from the fit's own pass where it made one."""
    assert fitted.vectors_ is not None, "a recipe with an encoder keeps its vectors"
    source = MappedVectors(fitted.vectors_, fitted.ids.items)
    return encode_shards(fitted.tokenizer_, source, out_folder, known=fitted.encoded_, progress=progress)


def rows_key(source: MappedVectors, start: int, stop: int) -> str:
    """A hash of ids and vectors, read in blocks."""
    digest = hashlib.sha256(json.dumps(source.ids[start:stop]).encode())
    for first in range(start, stop, HASH_ROWS):
        digest.update(np.ascontiguousarray(source.vectors_ND[first : min(first + HASH_ROWS, stop)]).data)
    return digest.hexdigest()[:32]
