"""Tokenizers that look codes up: item numbers, ranks of training counts, codes from a file.

None makes codes from vectors. `Frequency` is the baseline of that name in the CapsID paper, which does not define it
further: the first code is a bucket of counts whose bounds grow by a factor, the others are the digits of the item's
rank inside its bucket. With `GivenCodes` ids of any origin go through the same generator, search and evaluation; where
items have vectors, every code gets a centre: the vectors whose sums best reconstruct the items.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from capsid.base.popularity import popularity_order
from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.findings import Findings, numbered_lines
from capsid.data.item_table import ItemTable
from capsid.encode.base import fitted, require_items
from capsid.errors import ConfigError, DataError
from capsid.ids.collisions import running_number
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.base import summed_centres
from capsid.tokenize.capsules.centres import fit_centres


class _Known:
    """Base of tokenizers that know items, not vectors."""

    items_: Vocabulary

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """None: the codes carry no meaning."""
        return None

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """None: the codes have no centres."""
        return None

    def _fitted(self) -> Vocabulary:
        return fitted(getattr(self, "items_", None), self)


@dataclass(kw_only=True)
class Atomic(_Known):
    """An item's code is its number in the fitted catalogue."""

    kind: ClassVar[str] = "atomic"

    @property
    def sizes(self) -> tuple[int, ...]:
        """One depth, as wide as the catalogue."""
        return (len(self._fitted()),)

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Atomic:
        require_items(table)
        self.items_ = table.items
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """The numbers of known items; a new item is an error."""
        numbers = _known(self._fitted(), table, "was not in the catalogue: one-token ids cannot name new items")
        return Ragged.from_dense(numbers[:, None].astype(np.int32))

    def state(self) -> dict[str, np.ndarray]:
        return {"items": np.array(list(self._fitted()), dtype=np.str_)}

    def load_state(self, state: dict[str, np.ndarray]) -> Atomic:
        self.items_ = Vocabulary(str(i) for i in state["items"])
        return self


@dataclass(kw_only=True)
class Frequency(Checked, _Known):
    """Buckets hold counts that differ by less than a factor of `growth`; ranks are written to base `codebook`."""

    kind: ClassVar[str] = "frequency"
    codebook: int = setting(256, "Number of codes per depth: the base in which ranks are written.", least=2)
    growth: float = setting(2.0, "Counts in one bucket differ by less than this factor.", above=1)

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

    def state(self) -> dict[str, np.ndarray]:
        items = np.array(list(self._fitted()), dtype=np.str_)
        return {"items": items, "codes": self.codes_, "late": self.late_, "sizes": np.array(self.sizes_)}

    def load_state(self, state: dict[str, np.ndarray]) -> Frequency:
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


@dataclass(kw_only=True)
class GivenCodes(Checked, _Known):
    """Lines {"item": id, "codes": [code of depth 1, code of depth 2, ...]}; other keys are ignored."""

    kind: ClassVar[str] = "given"
    path: str = setting("", "The file of codes, one JSON object per line.")
    block: str = setting("item", "Name of the vectors that centres are made of.", count=(1, None))

    def check_together(self) -> None:
        if not self.path:
            raise ConfigError("tokenizer.path must name a file of codes", hint="set tokenizer.path=FILE.jsonl")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The largest code of every depth, and one more."""
        self._fitted()
        return self.sizes_

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> GivenCodes:
        """Read the codes of all items of the table; the seed has no effect."""
        require_items(table)
        known = read_codes(Path(self.path))
        missing = [item for item in table.items if item not in known]
        if missing:
            raise DataError(
                f"{self.path} has no codes for {len(missing):,} of {len(table.items):,} items, such as {missing[0]!r}",
                hint="every item of the catalogue needs a line",
            )
        self.items_ = table.items
        self.codes_ = Ragged.from_rows([known[item] for item in table.items])
        dense_NL = self.codes_.dense()
        self.sizes_ = tuple(int(top) + 1 for top in dense_NL.max(0))
        extra = len(known) - len(table.items)
        if extra:
            progress.line(f"{self.path}: {extra:,} of {len(known):,} lines match no item of the dataset")
        self.centres_: tuple[np.ndarray, ...] = ()
        if self.block in table.blocks:
            x_ND = np.array(table.vectors(self.block), dtype=np.float32)
            start = [np.zeros((size, x_ND.shape[1]), dtype=np.float32) for size in self.sizes_]
            self.centres_ = tuple(fit_centres(x_ND, dense_NL, self.codes_.lengths, start))
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """The codes of known items; a new item is an error."""
        numbers = _known(self._fitted(), table, "has no codes: they were read from a file at the fit")
        return self.codes_.take(numbers)

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """Sums of the codes' centres; None without vectors."""
        return summed_centres(codes, self.centres_) if self.centres_ else None

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """One vector per code, by depth; None without vectors."""
        return self.centres_ or None

    def state(self) -> dict[str, np.ndarray]:
        arrays = {"items": np.array(list(self._fitted()), dtype=np.str_), "sizes": np.array(self.sizes_)}
        arrays |= {"codes": self.codes_.values, "offsets": self.codes_.offsets}
        return {**arrays, **{f"centres/{d}": centres for d, centres in enumerate(self.centres_)}}

    def load_state(self, state: dict[str, np.ndarray]) -> GivenCodes:
        self.items_ = Vocabulary(str(i) for i in state["items"])
        self.sizes_ = tuple(int(s) for s in state["sizes"])
        self.codes_ = Ragged(state["codes"], state["offsets"])
        self.centres_ = tuple(state[f"centres/{d}"] for d in range(len(self.sizes_)) if f"centres/{d}" in state)
        return self


def _known(items: Vocabulary, table: ItemTable, why: str) -> np.ndarray:
    """The numbers of the table's items; a new item is an error that says why."""
    numbers = items.numbers(table.items, missing="negative")
    if (numbers < 0).any():
        new = table.items[int(np.flatnonzero(numbers < 0)[0])]
        raise DataError(f"item {new!r} {why}", hint="use a tokenizer that works from vectors, such as rq-kmeans")
    return numbers


def read_codes(path: Path) -> dict[str, list[int]]:
    """The codes of every item in the file."""
    findings, known = Findings(), {}
    for number, line in numbered_lines(path, findings):
        try:
            found = json.loads(line)
        except ValueError:
            raise DataError(f"{path}:{number}: not a line of JSON", hint=EXAMPLE) from None
        item, codes = _checked(found, f"{path}:{number}")
        if item in known:
            raise DataError(f"{path}:{number}: item {item!r} has a line already", hint="keep one line per item")
        known[item] = codes
    findings.raise_first(str(path))
    return known


EXAMPLE = 'write lines such as {"item": "a1", "codes": [3, 0, 17]}'


def _checked(found: Any, where: str) -> tuple[str, list[int]]:
    item = found.get("item") if isinstance(found, dict) else None
    codes = found.get("codes") if isinstance(found, dict) else None
    if not isinstance(item, str) or not isinstance(codes, list):
        raise DataError(f"{where}: the line must have an item and codes", hint=EXAMPLE)
    if not codes or any(isinstance(c, bool) or not isinstance(c, int) or not 0 <= c < 2**20 for c in codes):
        raise DataError(
            f"{where}: codes must be 1 or more whole numbers from 0 to {2**20 - 1:,}, got {str(codes)[:60]}",
            hint=EXAMPLE,
        )
    return item, codes
