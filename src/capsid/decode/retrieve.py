"""From histories of item numbers to ranked items, with filters.

Recommending, predicting and evaluating all use this, so they cannot differ. Knows item numbers, not item ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedItems, Ranker
from capsid.errors import DataError
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Retriever:
    """A fitted model and how its items are ranked."""

    model: FittedModel
    ranker: Ranker

    def rank(
        self,
        histories: Ragged,
        k: int,
        *,
        filter_history: bool,
        allow: np.ndarray | None = None,
        deny: np.ndarray | None = None,
    ) -> RankedItems:
        """The k best items after every history (rows of item numbers, none empty)."""
        allowed = self.filter(histories, filter_history=filter_history, allow=allow, deny=deny)
        return self.ranker.rank(self.model, histories, k, allowed)

    def rank_batches(
        self, histories: Ragged, rows: range, k: int, *, filter_history: bool, batch: int
    ) -> Iterator[tuple[np.ndarray, RankedItems]]:
        """`rank` for some of the histories, `batch` of them at a time, with their row numbers."""
        for start in range(rows.start, rows.stop, batch):
            rows_B = np.arange(start, min(start + batch, rows.stop))
            yield rows_B, self.rank(histories.take(rows_B), k, filter_history=filter_history)

    def filter(
        self,
        histories: Ragged,
        *,
        filter_history: bool,
        allow: np.ndarray | None = None,
        deny: np.ndarray | None = None,
    ) -> Filter | None:
        """Which items each user may get; None: all."""
        if len(histories) and histories.lengths.min() < 1:
            raise DataError("a history is empty", hint="give at least one known item")
        seen = histories if filter_history else None
        return self.model.filter(len(histories), seen=seen, allow=allow, deny=deny)
