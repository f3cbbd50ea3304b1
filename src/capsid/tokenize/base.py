"""What a tokenizer is: fitted on an item table, it gives every item a row of codes, and knows its codebook sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

import numpy as np

from capsid.data.item_table import ItemTable
from capsid.progress import Progress, silent
from capsid.ragged import Ragged


class Tokenizer(Protocol):
    """Estimator: fields are hyperparameters, learnt state ends in an underscore."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codebook size of every depth, once fitted."""

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: Path | None = None
    ) -> Self:
        """Learn codebooks. What takes long goes on from `checkpoint` if that is there."""

    def encode(self, table: ItemTable) -> Ragged:
        """Codes of every item of a table, also of items that were not there at `fit`."""

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """Vectors that the codes stand for, or None if codes mean nothing by themselves. Shape: (items, d)."""

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """One vector a code, by depth, to start token embeddings from; None if there are none."""

    def state(self) -> dict[str, np.ndarray]:
        """Learnt arrays by name."""

    def load_state(self, state: dict[str, np.ndarray]) -> Self:
        """Learnt arrays as saved."""
