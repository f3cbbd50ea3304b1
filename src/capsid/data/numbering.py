"""Numbers texts in the order in which they first occur, a block at a time, for more texts than fit into memory.

Texts are appended to two files that are mapped; memory holds 8 bytes per text: the upper half of a 64-bit number is a
hash, the lower half the text's number. Candidates with the same hash are compared as texts, so a collision costs time
only. Knows no users and no items.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import polars as pl

from capsid.base.storage.arrow_lists import numbers as arrow_numbers
from capsid.base.storage.mapped_texts import TextsWriter, map_texts
from capsid.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

HALF = np.uint64(32)
LOWER = np.uint64(2**32 - 1)
# Numbers of items and users are stored as int32.
MOST = 2**31 - 1
# A run of keys is joined to the one before it when it has this share of its length.
JOIN = 4


class Numbering:
    """Numbers texts; `count` of them have been seen. Its files are those of the texts `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._writer = TextsWriter(path)
        # Sorted runs of keys, longest first.
        self._runs: list[np.ndarray] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)
        self._runs = []

    def numbers(self, texts: pl.Series, *, grow: bool = True) -> np.ndarray:
        """The number of every text (no nulls). New texts get the next numbers; without `grow` they are -1."""
        import pyarrow as pa

        coded = texts.rechunk().to_arrow().cast(pa.large_string()).dictionary_encode()
        # Distinct texts in the order of their first rows.
        distinct = coded.dictionary
        hashes_D = pl.Series(distinct).hash().to_numpy() >> HALF
        numbers_D = self._find(distinct, hashes_D)
        new = np.flatnonzero(numbers_D < 0)
        if grow and len(new):
            numbers_D[new] = np.arange(self.count, self.count + len(new))
            self._add(distinct.take(arrow_numbers(new)), hashes_D[new])
        return numbers_D[coded.indices.to_numpy()]

    def _add(self, texts: pa.LargeStringArray, hashes: np.ndarray) -> None:
        if self.count + len(texts) > MOST:
            raise DataError(f"there are more than {MOST:,} different ids", hint="import a part of the interactions")
        self._writer.add(texts)
        self._writer.flush()
        numbers = np.arange(self.count, self.count + len(texts), dtype=np.uint64)
        self.count += len(texts)
        self._runs.append(np.sort(hashes << HALF | numbers))
        while len(self._runs) > 1 and JOIN * len(self._runs[-1]) >= len(self._runs[-2]):
            joined = np.concatenate([self._runs.pop(), self._runs.pop()])
            joined.sort()
            self._runs.append(joined)

    def _find(self, texts: pa.LargeStringArray, hashes: np.ndarray) -> np.ndarray:
        """The numbers of texts that were seen, and -1 for others."""
        import pyarrow.compute as pc

        found = np.full(len(texts), -1, dtype=np.int64)
        if not self.count:
            return found
        known = map_texts(self.path)
        # Sorted, the searches go through a run of keys from its beginning to its end.
        missing = np.argsort(hashes)
        for keys in self._runs:
            rows = missing
            places = keys.searchsorted(hashes[rows] << HALF)
            while len(rows):
                inside = places < len(keys)
                rows, places = rows[inside], places[inside]
                same = keys[places] >> HALF == hashes[rows]
                rows, places = rows[same], places[same]
                numbers = (keys[places] & LOWER).astype(np.int64)
                equal = pc.equal(known.take(arrow_numbers(numbers)), texts.take(arrow_numbers(rows)))
                hit = equal.to_numpy(zero_copy_only=False).astype(bool)
                found[rows[hit]] = numbers[hit]
                # Another text with this hash: the next key may be the one.
                rows, places = rows[~hit], places[~hit] + 1
            missing = missing[found[missing] < 0]
        return found
