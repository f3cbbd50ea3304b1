"""Reads histories in context: the tokens of an item depend on its neighbours (ActionPiece, arXiv 2502.13581).

An item is written as the tokens of its codes in random order; then neighbouring tokens are merged, also across items.
Each token of a history has its own position. Knows the merge table and item numbers; NumPy only. Shapes as in
`capsid.ids.reading`; R tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.base.randomness import STEP, mixed
from capsid.errors import ConfigError
from capsid.ids.item_tokens import ItemRows
from capsid.ids.layout import PAD, TokenLayout
from capsid.ids.piece_table import PieceTable
from capsid.ids.reading import ItemTokens, Lesson, TokenBatch
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class InContext:
    """Segments histories by the merges of their ids. A lesson predicts the last item of every piece.

    It cannot predict all items at once: a token that covers two items would tell the first one about the second.
    Variant 0 of a history keeps the order of codes; all others permute the codes inside every item.
    """

    kind: ClassVar[str] = "in-context"
    one_target: ClassVar[bool] = True
    permute: bool = setting(True, "Whether the codes of an item are read in random order, in training and in variants.")

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def varies(self) -> bool:
        """With random orders."""
        return self.permute

    def positions_per_item(self, layout: TokenLayout) -> int:
        """One per code, if nothing is merged."""
        return layout.depths

    def read(self, ids: ItemTokens, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        """See `Reading`."""
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
