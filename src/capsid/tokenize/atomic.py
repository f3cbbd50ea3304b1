"""One token per item: no quantization at all. With it the generator is SASRec with full cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import require_items
from capsid.errors import DataError, NotFittedError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged


@dataclass(kw_only=True)
class Atomic:
    """An item's code is its number in the fitted catalogue."""

    kind: ClassVar[str] = "atomic"

    @property
    def sizes(self) -> tuple[int, ...]:
        """One depth, as wide as the catalogue."""
        return (len(self._fitted()),)

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Atomic:
        """Remember the catalogue."""
        require_items(table)
        self.items_ = table.items
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """The numbers of known items; a new item is an error."""
        numbers = self._fitted().numbers(table.items, missing="negative")
        if (numbers < 0).any():
            new = table.items[int(np.flatnonzero(numbers < 0)[0])]
            raise DataError(
                f"item {new!r} was not in the catalogue: one-token ids cannot name new items",
                hint="use a tokenizer that works from vectors, such as rq-kmeans",
            )
        return Ragged.from_dense(numbers[:, None].astype(np.int32))

    def decode(self, codes: Ragged) -> None:
        """None: item numbers carry no meaning."""
        return None

    def centres(self) -> None:
        """None: the codes have no centres."""
        return None

    def state(self) -> dict[str, np.ndarray]:
        """The catalogue's ids."""
        return {"items": np.array(list(self._fitted()), dtype=np.str_)}

    def load_state(self, state: dict[str, np.ndarray]) -> Atomic:
        """Restore the catalogue's ids."""
        self.items_ = Vocabulary(str(i) for i in state["items"])
        return self

    def _fitted(self) -> Vocabulary:
        if not hasattr(self, "items_"):
            raise NotFittedError("the tokenizer is not fitted", hint="call fit first")
        return self.items_
