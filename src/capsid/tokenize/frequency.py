"""Ids from training counts alone: the baseline "Frequency" of the CapsID paper, which does not define it further.

The first code is a bucket of counts whose bounds grow by a factor, the others are the digits of the item's rank inside
its bucket: easy to predict and without meaning. Reads no vectors. Sorting the codes sorts by popularity.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.base.popularity import popularity_order
from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import require_items
from capsid.errors import NotFittedError
from capsid.ids.collisions import running_number
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(kw_only=True)
class Frequency:
    """Buckets hold counts that differ by less than a factor of `growth`; ranks are written to base `codebook`."""

    kind: ClassVar[str] = "frequency"
    codebook: int = setting(256, "Number of codes per depth: the base in which ranks are written.", least=2)
    growth: float = setting(2.0, "Counts in one bucket differ by less than this factor.", above=1)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of buckets, then the base once per digit of the rank; smaller where there are fewer ranks."""
        self._fitted()
        return self.sizes_

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Frequency:
        """Count and rank the items; the seed has no effect."""
        require_items(table)
        bucket_N = self._buckets(table.counts)
        order = popularity_order(table.counts, table.items)
        rank_N = np.empty(len(order), dtype=np.int64)
        rank_N[order] = running_number(bucket_N[order])
        # New items have a count of 0: they all share one rank, after the last fitted item with that count.
        late = int((table.counts == 0).sum())
        ranks = max(int(rank_N.max()), late) + 1
        digits = next(d for d in itertools.count(1) if self.codebook**d >= ranks)
        top = int(bucket_N.max())
        self.sizes_ = (top + 1, *[min(ranks, self.codebook)] * digits)
        self.codes_ = self._codes(top - bucket_N, rank_N)
        self.late_ = self._codes(np.array([top]), np.array([late]))[0]
        self.items_ = table.items
        shared = np.bincount(bucket_N, minlength=top + 1)[::-1]
        progress.line(f"frequency: items by bucket, most frequent first: {', '.join(f'{n:,}' for n in shared)}")
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """Codes as fitted; an item that `fit` did not see has a count of 0."""
        numbers = self._fitted().numbers(table.items, missing="negative")
        return Ragged.from_dense(np.where(numbers[:, None] < 0, self.late_, self.codes_[numbers]))

    def decode(self, codes: Ragged) -> None:
        """None: ranks represent no vectors."""
        return None

    def centres(self) -> None:
        """None: the codes have no centres."""
        return None

    def state(self) -> dict[str, np.ndarray]:
        """The catalogue's ids and their codes."""
        items = np.array(list(self._fitted()), dtype=np.str_)
        return {"items": items, "codes": self.codes_, "late": self.late_, "sizes": np.array(self.sizes_)}

    def load_state(self, state: dict[str, np.ndarray]) -> Frequency:
        """Restore ids and codes."""
        self.items_ = Vocabulary(str(i) for i in state["items"])
        self.codes_, self.late_ = state["codes"], state["late"]
        self.sizes_ = tuple(int(s) for s in state["sizes"])
        return self

    def _buckets(self, counts_N: np.ndarray) -> np.ndarray:
        """Bucket 0 for items without interactions, then one per factor of `growth`; rounding must not split a power."""
        logs = np.log(np.maximum(counts_N, 1)) / math.log(self.growth)
        return np.where(counts_N > 0, 1 + np.floor(logs + 1e-9), 0).astype(np.int64)

    def _codes(self, bucket_N: np.ndarray, rank_N: np.ndarray) -> np.ndarray:
        """Bucket, then the digits of the rank, highest first. Shape: (items, depths)."""
        base, digits = self.sizes_[1], len(self.sizes_) - 1
        powers = base ** np.arange(digits - 1, -1, -1, dtype=np.int64)
        return np.column_stack([bucket_N, rank_N[:, None] // powers % base]).astype(np.int32)

    def _fitted(self) -> Vocabulary:
        if not hasattr(self, "items_"):
            raise NotFittedError("the tokenizer is not fitted", hint="call fit first")
        return self.items_
