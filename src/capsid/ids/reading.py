"""Batches of histories for a network to read, and lessons: batches with the items to predict.

`ItemByItem` writes the tokens of one item after the other; `capsid.ids.in_context` segments histories in context. A
reading is a value in a recipe; networks see only batches and lessons. NumPy only, no scores. Shapes: B histories,
L longest row in tokens, M predicted items.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from capsid.ids.item_tokens import ItemRows
from capsid.ids.layout import PAD, TokenLayout
from capsid.ids.mixtures import Corrections
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Padded token sequences, padding at the end.

    A token has a position in its row (item by item: the item's index in the history) and a depth at that position.
    `positions_B` counts the positions of a row. `items` are the numbers of the history's items and `own` their tokens,
    one row per item, however the history was segmented. `soft` holds what soft input adds to the tokens' vectors.
    """

    tokens_BL: np.ndarray
    positions_BL: np.ndarray
    depths_BL: np.ndarray
    lengths_B: np.ndarray
    positions_B: np.ndarray
    items: Ragged
    own: Ragged
    soft: Corrections | None = None

    def __len__(self) -> int:
        return len(self.lengths_B)

    def seen_as(self, tokens: ItemRows) -> TokenBatch:
        """The same reading with other ids of the items; `tokens` has those of the whole catalogue."""
        return replace(self, own=tokens.take(self.items.values))


@dataclass(frozen=True, eq=False)
class Lesson:
    """A batch and the items to predict in it, ordered by row and position.

    Item m of row `row_M` comes after `before_M` items of the history, which fill `position_M` positions. Its tokens
    are in the batch from column `column_M` on, so that a network can read each of them before it predicts the next.
    `others` are the same lesson
    with other ids of the items, where they have several: all are predicted from one reading.
    """

    batch: TokenBatch
    row_M: np.ndarray
    item_M: np.ndarray
    before_M: np.ndarray
    position_M: np.ndarray
    column_M: np.ndarray
    tokens: Ragged
    others: tuple[Lesson, ...] = ()

    def seen_as(self, tokens: ItemRows) -> Lesson:
        """The same lesson with other ids of the items; `tokens` has those of the whole catalogue.

        `column_M` stays: in the batch the other tokens are elsewhere or nowhere.
        """
        return replace(self, batch=self.batch.seen_as(tokens), tokens=tokens.take(self.item_M), others=())

    def latest(self) -> Lesson:
        """The same batch with only the last item of every row to predict."""
        last = np.flatnonzero(np.append(self.row_M[1:] != self.row_M[:-1], True))
        return replace(
            self,
            row_M=self.row_M[last],
            item_M=self.item_M[last],
            before_M=self.before_M[last],
            position_M=self.position_M[last],
            column_M=self.column_M[last],
            tokens=self.tokens.take(last),
            others=tuple(other.latest() for other in self.others),
        )


class ItemTokens(Protocol):
    """The tokens of every item of a catalogue, which `capsid.ids.semantic_ids.SemanticIds` has."""

    @property
    def layout(self) -> TokenLayout:
        """What tokens mean, and how they are merged."""

    @property
    def prefix_free(self) -> ItemRows:
        """Merged tokens; no row is a prefix of another."""

    @property
    def entering(self) -> ItemRows:
        """The tokens that an item of a history is read as, where it is read by itself."""

    @property
    def unmerged(self) -> ItemRows:
        """Tokens before merging."""


class Reading(Protocol):
    """How histories become token sequences."""

    kind: ClassVar[str]

    @property
    def varies(self) -> bool:
        """Whether one history can be read in several ways."""

    @property
    def one_target(self) -> bool:
        """Whether a lesson predicts only the last item of each piece; pieces are then cut at random before."""

    def positions_per_item(self, layout: TokenLayout) -> int:
        """At most this many positions of a batch are filled by one item."""

    def read(self, ids: ItemTokens, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        """The last `last` items of every history (rows of item numbers).

        Where a history can be read in several ways, `variant` chooses one of them. What is read depends on the history
        and this number only, not on the other histories.
        """

    def lesson(self, ids: ItemTokens, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
        """The same for pieces of training sequences, with the items to predict."""


@dataclass(frozen=True)
class ItemByItem:
    """Tokens of one item after the other, one position per item; every item but the first is predicted.

    With `every_end` every id ends with an end token, as in CapsID (appendix A.3); otherwise only an id from which
    another goes on.
    """

    kind: ClassVar[str] = "item-by-item"
    varies: ClassVar[bool] = False
    one_target: ClassVar[bool] = False
    every_end: bool = setting(False, "Whether every id ends with an end token, or only where another id goes on.")

    def __post_init__(self) -> None:
        check_settings(self)

    def positions_per_item(self, layout: TokenLayout) -> int:
        """One."""
        return 1

    def read(self, ids: ItemTokens, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        """See `Reading`."""
        items = histories.last(last)
        own = ids.entering.take(items.values)
        lengths = items.sums(own.lengths)
        width = max(int(lengths.max()) if len(lengths) else 0, 1)
        there = np.arange(width)[None, :] < lengths[:, None]
        tokens_BL, positions_BL, depths_BL = (np.full(there.shape, PAD, dtype=np.int64) for _ in range(3))
        tokens_BL[there] = own.values
        positions_BL[there] = np.repeat(items.positions, own.lengths)
        depths_BL[there] = own.positions
        return TokenBatch(tokens_BL, positions_BL, depths_BL, lengths, items.lengths, items, own)

    def lesson(self, ids: ItemTokens, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
        """See `Reading`."""
        batch = self.read(ids, pieces, last=last)
        items, own = batch.items, batch.own
        row, before = items.row_numbers, items.positions
        # Where an item's tokens begin in its row: all tokens before it minus those of earlier rows.
        column = own.offsets[:-1] - own.offsets[items.offsets[row]]
        later = np.flatnonzero(before >= 1)
        return Lesson(
            batch, row[later], items.values[later], before[later], before[later], column[later], own.take(later)
        )
