"""Batches of histories for a network to read, and lessons: batches with the items to predict.

A reading is a value in a recipe; networks see only batches and lessons. `ItemByItem` writes the tokens of one item
after the other. `InContext` segments histories in context (ActionPiece, arXiv 2502.13581): an item is written as the
tokens of its codes in random order, then neighbouring tokens are merged, also across items, and each token has its own
position. `read_histories` and `read_lesson` work on any `ReadableIds`: those in memory (`capsid.ids.semantic_ids`) and
those that a trie on disk holds (`capsid.ids.stored_ids`). NumPy only, no scores. Shapes: B histories, L longest row in
tokens, M predicted items, R tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from capsid.base.randomness import STEP, mixed
from capsid.errors import ConfigError
from capsid.ids.item_tokens import ItemRows
from capsid.ids.layout import PAD, TokenLayout
from capsid.ids.merges import PieceTable
from capsid.ids.mixtures import Corrections, Mixtures
from capsid.ragged import Ragged
from capsid.settings import Checked, setting


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
        """The same lesson with other ids of the items; `tokens` has those of the whole catalogue. `column_M` stays: in
        the batch the other tokens are elsewhere or nowhere."""
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
        """The last `last` items of every history (rows of item numbers). Where a history can be read in several ways,
        `variant` chooses one of them. What is read depends on the history and this number only, not on the other
        histories."""

    def lesson(self, ids: ItemTokens, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
        """The same for pieces of training sequences, with the items to predict."""


@dataclass(frozen=True)
class ItemByItem(Checked):
    """Tokens of one item after the other, one position per item; every item but the first is predicted. With
    `every_end` every id ends with an end token, as in CapsID (appendix A.3); otherwise only an id from which another
    goes on."""

    kind: ClassVar[str] = "item-by-item"
    varies: ClassVar[bool] = False
    one_target: ClassVar[bool] = False
    every_end: bool = setting(False, "Whether every id ends with an end token, or only where another id goes on.")

    def positions_per_item(self, layout: TokenLayout) -> int:
        return 1

    def read(self, ids: ItemTokens, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
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
        batch = self.read(ids, pieces, last=last)
        items, own = batch.items, batch.own
        row, before = items.row_numbers, items.positions
        # Where an item's tokens begin in its row: all tokens before it minus those of earlier rows.
        column = own.offsets[:-1] - own.offsets[items.offsets[row]]
        later = np.flatnonzero(before >= 1)
        return Lesson(
            batch, row[later], items.values[later], before[later], before[later], column[later], own.take(later)
        )


@dataclass(frozen=True, kw_only=True)
class InContext(Checked):
    """Segments histories by the merges of their ids. A lesson predicts the last item of every piece. It cannot predict
    all items at once: a token that covers two items would tell the first one about the second. Variant 0 of a history
    keeps the order of codes; all others permute the codes inside every item."""

    kind: ClassVar[str] = "in-context"
    one_target: ClassVar[bool] = True
    permute: bool = setting(True, "Whether the codes of an item are read in random order, in training and in variants.")

    @property
    def varies(self) -> bool:
        """With random orders."""
        return self.permute

    def positions_per_item(self, layout: TokenLayout) -> int:
        """One per code, if nothing is merged."""
        return layout.depths

    def read(self, ids: ItemTokens, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        items = histories.last(last)
        keys = None if not (self.permute and variant) else _keys(items, ids.unmerged, variant)
        read = _segmented(ids, items, keys)
        return _batch(read, items, ids.prefix_free.take(items.values))

    def lesson(self, ids: ItemTokens, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
        """See `Reading`; without `rng` nothing is permuted. Pieces have two or more items."""
        items = pieces.last(last)
        before_M = items.lengths - 1
        history = items.slices(0, before_M)
        size = int(ids.unmerged.lengths_of(history.values).sum())
        read = _segmented(ids, history, None if rng is None or not self.permute else rng.random(size))
        target_M = items.values[items.offsets[1:] - 1]
        target = ids.prefix_free.take(target_M)
        batch = _batch(read, items, ids.prefix_free.take(items.values), target)
        position_M = read.lengths
        return Lesson(batch, np.arange(len(items)), target_M, before_M, position_M, position_M, target)


def _segmented(ids: ItemTokens, items: Ragged, keys_R: np.ndarray | None) -> Ragged:
    """Histories as tokens. The codes of an item are sorted by their keys; None: they keep their order."""
    table = ids.layout.merges
    if len(table) and not isinstance(table, PieceTable):
        raise ConfigError("reading=in-context needs merges of tokens in any order", hint="set merges=pieces")
    codes = ids.unmerged.take(items.values)
    values = codes.values if keys_R is None else codes.values[np.lexsort([keys_R, codes.row_numbers])]
    rows = Ragged.from_lengths(values, items.sums(codes.lengths))
    return table.segment(rows) if isinstance(table, PieceTable) else rows


def _keys(items: Ragged, codes: ItemRows, variant: int) -> np.ndarray:
    """A pseudo-random number for every code of every item, which depends on the history and the variant only."""
    with np.errstate(over="ignore"):
        place = (items.positions + 1).astype(np.uint64)
        seed_B = items.sums(mixed(items.values.astype(np.uint64) * STEP + place))
        seed_B = mixed(seed_B + np.uint64(variant) * STEP)
        number = Ragged.ranges(1, items.sums(codes.lengths_of(items.values)))
        return mixed(np.repeat(seed_B, number.lengths) + number.values.astype(np.uint64) * STEP)


def _batch(read: Ragged, items: Ragged, own: Ragged, target: Ragged | None = None) -> TokenBatch:
    """One position per token; the target's tokens share the position after the last one."""
    if target is None:
        target = Ragged.from_lengths(np.zeros(0, dtype=np.int64), np.zeros(len(read), dtype=np.int64))
    lengths = read.lengths + target.lengths
    there = np.arange(max(int(lengths.max()) if len(lengths) else 0, 1))[None, :] < lengths[:, None]
    # Each row holds what is read, then the target: a stable sort by row puts both in this order.
    order = np.argsort(np.concatenate([read.row_numbers, target.row_numbers]), kind="stable")

    def padded(of_read: np.ndarray, of_target: np.ndarray) -> np.ndarray:
        out = np.full(there.shape, PAD, dtype=np.int64)
        out[there] = np.concatenate([of_read, of_target])[order]
        return out

    return TokenBatch(
        padded(read.values, target.values),
        padded(read.positions, np.repeat(read.lengths, target.lengths)),
        padded(np.zeros_like(read.values), target.positions),
        lengths,
        read.lengths + (target.lengths > 0),
        items,
        own,
    )


READINGS: dict[str, type] = {r.kind: r for r in (ItemByItem, InContext)}


class ReadableIds(ItemTokens, Protocol):
    """Ids with which a fitted generator reads histories."""

    @property
    def reading(self) -> Reading:
        """How histories are segmented."""

    @property
    def mixtures(self) -> Mixtures | None:
        """Soft input, if there is any."""

    @property
    def systems(self) -> tuple[ItemTokens, ...]:
        """The id systems of the items, one or several; these ids are the first."""

    @property
    def positions_per_item(self) -> int:
        """At most this many positions of a batch are filled by one item."""

    def read(self, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        """Network input for the last `last` items of every history (rows of item numbers); see `Reading.read`."""


def read_histories(ids: ReadableIds, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
    """Network input for the last `last` items of every history; see `Reading.read`."""
    batch = ids.reading.read(ids, histories, last=last, variant=variant)
    return _softened(ids, batch if len(ids.systems) == 1 else batch.seen_as(ids.prefix_free))


def read_lesson(ids: ReadableIds, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
    """Network input for pieces of sequences, and the items to predict in them."""
    lesson = ids.reading.lesson(ids, pieces, last=last, rng=rng)
    lesson = lesson if len(ids.systems) == 1 else lesson.seen_as(ids.prefix_free)
    if ids.mixtures is not None:
        lesson = replace(lesson, batch=_softened(ids, lesson.batch))
    return replace(lesson, others=tuple(lesson.seen_as(other.prefix_free) for other in ids.systems[1:]))


def _softened(ids: ReadableIds, batch: TokenBatch) -> TokenBatch:
    if ids.mixtures is None:
        return batch
    soft = ids.mixtures.corrections(ids.layout, batch.items.values, batch.own)
    if len(ids.systems) > 1:
        hard = sum(other.prefix_free.lengths_of(batch.items.values) for other in ids.systems[1:])
        soft = soft.followed(batch.own.lengths, np.asarray(hard))
    return replace(batch, soft=soft)
