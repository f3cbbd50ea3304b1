"""Codes that somebody else made: a file with a line for every item, as `capsid tokenizer export` writes it.

So ids of any origin (another library, another cut of the same codes) go through the same generator, search and
evaluation. Where items have vectors, every code gets a centre: the vectors whose sums best reconstruct the items. Items
added later have no codes here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.findings import Findings, numbered_lines
from capsid.data.item_table import ItemTable
from capsid.encode.base import require_items
from capsid.errors import ConfigError, DataError, NotFittedError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(kw_only=True)
class GivenCodes:
    """Lines {"item": id, "codes": [code of depth 1, code of depth 2, ...]}; other keys are ignored."""

    kind: ClassVar[str] = "given"
    path: str = setting("", "The file of codes, one JSON object per line.")
    block: str = setting("item", "Name of the vectors that centres are made of.", count=(1, None))

    def __post_init__(self) -> None:
        check_settings(self)

    def check_together(self) -> None:
        """The file must be named: see `capsid.settings.check_together`."""
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
        from capsid.tokenize.capsules.centres import fit_centres

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
        numbers = self._fitted().numbers(table.items, missing="negative")
        if (numbers < 0).any():
            new = table.items[int(np.flatnonzero(numbers < 0)[0])]
            raise DataError(
                f"item {new!r} has no codes: they were read from a file at the fit",
                hint="use a tokenizer that works from vectors, such as rq-kmeans",
            )
        return self.codes_.take(numbers)

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """Sums of the codes' centres; None without vectors."""
        if not self.centres_:
            return None
        dense_NL = codes.dense()
        out_ND = np.zeros((len(codes), self.centres_[0].shape[1]), dtype=np.float32)
        for depth, centres_KD in enumerate(self.centres_[: dense_NL.shape[1]]):
            has_N = dense_NL[:, depth] >= 0
            out_ND[has_N] += centres_KD[dense_NL[has_N, depth]]
        return out_ND

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """One vector per code, by depth; None without vectors."""
        return self.centres_ or None

    def state(self) -> dict[str, np.ndarray]:
        """The catalogue's ids, their codes, and the centres."""
        arrays = {"items": np.array(list(self._fitted()), dtype=np.str_), "sizes": np.array(self.sizes_)}
        arrays |= {"codes": self.codes_.values, "offsets": self.codes_.offsets}
        return {**arrays, **{f"centres/{d}": centres for d, centres in enumerate(self.centres_)}}

    def load_state(self, state: dict[str, np.ndarray]) -> GivenCodes:
        """Restore what `state` gave."""
        self.items_ = Vocabulary(str(i) for i in state["items"])
        self.sizes_ = tuple(int(s) for s in state["sizes"])
        self.codes_ = Ragged(state["codes"], state["offsets"])
        self.centres_ = tuple(state[f"centres/{d}"] for d in range(len(self.sizes_)) if f"centres/{d}" in state)
        return self

    def _fitted(self) -> Vocabulary:
        if not hasattr(self, "items_"):
            raise NotFittedError("the tokenizer is not fitted", hint="call fit first")
        return self.items_


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
