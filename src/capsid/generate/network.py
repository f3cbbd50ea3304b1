"""The causal Transformer over flattened item tokens, and its two ways to run: whole sequences and cached steps.

Its design choices (CapsID, arXiv 2605.05096, appendix A.3, where nothing else is said):

- pre-LayerNorm, GELU, and a last LayerNorm; optionally the blocks of SASRec's authors;
- the input is the sum of the embeddings of a token, its item's position in the history and its depth in the item, so
  ids may have any length; positions are counted from either end of the history;
- embeddings are tied to the scores, which are inner products or cosines (`TokenTable`); vectors of merged tokens may be
  composed of their members';
- padding is packed away in training, and dead beams are left out of linear layers in a search.

Knows tokens only: no items, no trie, no optimiser. Shapes as in `capsid.base.blocks.layers`; V tokens, M items, N
their tokens, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.layers import Block, Cache, Layer, MixingBlock, SasRecBlock, after_empty, reset
from capsid.base.blocks.packed import Packed, Spread, dropout
from capsid.generate.backbone import Backbone, Predictions, refuse_closing
from capsid.generate.open_items import OpenItems, Repeats, completions, history_items
from capsid.generate.shape import TokenSpace, TokenTable, TokenVectors, TransformerShape
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class ItemRows:
    """Row r has read `depth_R[r]` tokens of item `item_R[r]`, the last of them token number `before_R[r]`. Where a row
    has read nothing, `before_R` is any token. `own` places the rows in items padded to one length. With `closing` every
    item has one more row, which has read all its tokens."""

    lesson: Lesson
    item_R: np.ndarray
    depth_R: np.ndarray
    before_R: np.ndarray
    own: Spread
    closing: bool

    @classmethod
    def of(cls, lesson: Lesson, *, closing: bool) -> Self:
        lengths_M = lesson.tokens.lengths
        rows = Ragged.ranges(0, lengths_M + 1 if closing else lengths_M)
        item_R, depth_R = rows.row_numbers, rows.values
        before_R = np.maximum(lesson.tokens.offsets[:-1][item_R] + depth_R - 1, 0)
        width = int(depth_R.max()) + 1
        own = Spread(torch.as_tensor(item_R * width + depth_R), len(lengths_M), width)
        return cls(lesson, item_R, depth_R, before_R, own, closing)

    @property
    def tokens_R(self) -> Tensor:
        """The token that every row has read last."""
        return torch.as_tensor(self.lesson.tokens.values[self.before_R].astype(np.int64))

    @property
    def first_R(self) -> Tensor:
        """Whether a row has read no token of its item."""
        return torch.as_tensor(self.depth_R == 0)

    def parted(self, rows_RD: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden rows for the lesson's tokens, and those that have read whole items where they were asked for."""
        if not self.closing:
            return rows_RD, None
        last_R = torch.as_tensor(self.depth_R == self.lesson.tokens.lengths[self.item_R])
        return rows_RD[~last_R], rows_RD[last_R]


# From this many beams on, dead ones among them are left out of linear layers if they are at least a quarter.
MANY_BEAMS = 256


@dataclass(frozen=True)
class State:
    """Everything a step needs. `padding_UL` is True where a history has padding; `open` are items whose tokens get
    numbers added to their scores."""

    caches: tuple[Cache, ...]
    padding_UL: Tensor
    positions_U: Tensor
    vectors: TokenVectors
    depth: int = 0
    open: OpenItems | None = None


class TiedBackbone(Backbone):
    """A backbone with a tied token table, which may learn how likely users are to return to an item (`repeats`)."""

    token: TokenTable
    norm: nn.Module
    repeats: Repeats | None

    def embed(self) -> Tensor:
        return self.token.vectors().enter_VD

    @property
    def width(self) -> int:
        return self.token.embedding_dim

    def in_system(self, state: State, histories: TokenBatch, system: int) -> State:
        return replace(state, open=self._open(histories))

    def score_rows(self, rows: Tensor) -> Tensor:
        return self.norm(rows)

    def score_vectors(self, state: State) -> Tensor:
        return state.vectors.score_VS

    def scores(self, state: State, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        scores = super().scores(state, rows_UWD, row_R)
        return scores if state.open is None else state.open.added_to(scores, state.depth, row_R)

    def scores_of(self, state: State, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        scores_E = super().scores_of(state, rows_UWD, row_E, token_E)
        return scores_E if state.open is None else state.open.added_to_pairs(scores_E, row_E, token_E, state.depth)

    def _predicted(
        self,
        lesson: Lesson,
        hidden_ND: Tensor,
        vectors: TokenVectors,
        ends_MD: Tensor | None = None,
        starts_MD: Tensor | None = None,
    ) -> Predictions:
        """The predictions of a lesson's tokens, with what is added to their scores."""
        added = None if self.repeats is None else completions(lesson, self.repeats.value())
        tokens = lesson.tokens
        return Predictions(hidden_ND, tokens, vectors.score_VS, self.score_rows, added, ends_MD, starts_MD=starts_MD)

    def _open(self, histories: TokenBatch) -> OpenItems | None:
        """What is added to scores in a search, before the first token."""
        return None if self.repeats is None else history_items(histories, self.repeats.value())

    def _after(self, state: State, caches: tuple[Cache, ...], parents_UW: Tensor, tokens_UW: Tensor) -> State:
        """The state after every beam appended a token."""
        open_items = state.open and state.open.on(parents_UW, tokens_UW, state.depth)
        return replace(state, caches=caches, depth=state.depth + 1, open=open_items)


class TokenNetwork(TiedBackbone):
    """Common base of Transformers over tokens: token and depth embeddings, a last LayerNorm and tied scores. `blocks`
    read the history. With `empty_positions` attention sees the positions that a short history does not fill."""

    blocks: nn.ModuleList

    def __init__(
        self, shape: TransformerShape, space: TokenSpace, *, repeats: bool = False, empty_positions: bool = False
    ) -> None:
        super().__init__()
        self.shape, self.space, self.empty_positions = shape, space, empty_positions
        self.token = TokenTable(space.vocabulary, shape.width, space.merges, shape.cosine_temperature)
        self.depth = nn.Embedding(space.depths + 1, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.repeats = Repeats() if repeats else None

    def reset(self, generator: torch.Generator) -> None:
        layers = sum(isinstance(module, Layer) for module in self.modules())
        reset(self, layers, generator, self.shape.initial)
        self.token.start()
        if self.repeats is not None:
            self.repeats.start()

    def _entering(self, x: Tensor) -> Tensor:
        """Token embeddings at the input, before those of positions and depths are added."""
        return x if self.shape.input_scale == 1.0 else x * self.shape.input_scale

    def _through(self, x_RD: Tensor, packed: Packed, read_B: np.ndarray) -> Tensor:
        """Rows of histories of `read` positions, without padding, after all blocks."""
        empty_B = self._empty(read_B)
        for block in self.blocks:
            assert isinstance(block, Block | MixingBlock)
            x_RD = block.packed(x_RD, packed, empty_B)
        return x_RD

    def _empty(self, read_B: np.ndarray) -> Tensor | None:
        """How many positions of a history are not filled, where attention is to see them."""
        return torch.as_tensor(self.space.positions - read_B) if self.empty_positions else None

    def _stepped(
        self, blocks: nn.ModuleList, x_UWD: Tensor, state: State, parents_UW: Tensor, tokens_UW: Tensor
    ) -> tuple[State, Tensor]:
        """One new position per beam through blocks with caches. Beams without a token are dead: nobody reads them."""
        live_UW, live = tokens_UW != PAD, None
        if live_UW.numel() >= MANY_BEAMS and int(live_UW.sum()) * 4 <= live_UW.numel() * 3:
            live = Spread.where(live_UW)
        caches = []
        for block, old in zip(blocks, state.caches):
            assert isinstance(block, Block)
            x_UWD, cache = block.step(x_UWD, old, parents_UW, state.padding_UL, live)
            caches.append(cache)
        return self._after(state, tuple(caches), parents_UW, tokens_UW), x_UWD


class CausalTransformer(TokenNetwork):
    """Blocks over all tokens of all items; `sasrec`: those of SASRec's authors, which see empty positions too."""

    def __init__(self, shape: TransformerShape, space: TokenSpace, *, sasrec: bool = False) -> None:
        super().__init__(shape, space, empty_positions=sasrec)
        self.place = nn.Embedding(space.positions + 1, shape.width)
        block, blocks = SasRecBlock if sasrec else Block, shape.blocks(space.positions)
        self.blocks = nn.ModuleList(block(blocks) for _ in range(shape.layers))

    def predict(
        self, lesson: Lesson, inputs_RD: Tensor | None = None, *, forced_ND: Tensor | None = None, closing: bool = False
    ) -> Predictions:
        """Hidden rows of the tokens before those that are predicted."""
        refuse_closing(closing)
        batch = lesson.batch
        # The last token of a sequence predicts nothing, so the last column of a padded batch would never be read.
        width = batch.tokens_BL.shape[1] - 1
        packed = Packed.of(batch.lengths_B - 1, width)
        vectors = self.token.vectors()
        x_RD = self._read_packed(vectors, batch, packed, inputs_RD)
        # The first token of item m is predicted from the column before it.
        first_M = lesson.row_M * width + lesson.column_M - 1
        index_N = np.repeat(first_M, lesson.tokens.lengths) + lesson.tokens.positions
        hidden_ND, starts_MD = (x_RD[packed.rows_at(torch.as_tensor(index))] for index in (index_N, first_M))
        return self._predicted(lesson, hidden_ND, vectors, starts_MD=starts_MD)

    def _read_packed(
        self, vectors: TokenVectors, batch: TokenBatch, packed: Packed, inputs_RD: Tensor | None
    ) -> Tensor:
        """Last hidden rows of all tokens but the last of each sequence, before the last norm."""
        width = packed.among.width
        positions_BL = counted(torch.as_tensor(batch.positions_BL), batch.positions_B - 1, self.shape, self.space)
        columns = (torch.as_tensor(batch.tokens_BL), positions_BL, torch.as_tensor(batch.depths_BL))
        tokens_R, positions_R, depths_R = (packed.among.rows(column_BL[:, :width]) for column_BL in columns)
        x_RD = self._embed(vectors, tokens_R, positions_R, depths_R, packed.among)
        if inputs_RD is not None:
            x_RD = x_RD + packed.among.rows(padded(batch, inputs_RD)[:, :width])
        return self._through(x_RD, packed, batch.positions_B - 1)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[State, Tensor]:
        """Read histories once; the state for beams, and the rows that predict the next item's first token."""
        arrays = (histories.tokens_BL, histories.positions_BL, histories.depths_BL, histories.lengths_B)
        tokens_UL, positions_UL, depths_UL, lengths_U = (torch.as_tensor(a) for a in arrays)
        vectors = self.token.vectors()
        positions_UL = counted(positions_UL, histories.positions_B, self.shape, self.space)
        x = self._embed(vectors, tokens_UL, positions_UL, depths_UL)
        x = x if inputs_RD is None else x + padded(histories, inputs_RD)
        empty_U = self._empty(histories.positions_B)
        caches = []
        for block in self.blocks:
            x, cache = block(x, empty_B=empty_U)
            caches.append(cache)
        users = torch.arange(len(lengths_U))
        seen_UL = torch.arange(tokens_UL.shape[1])[None, :] < lengths_U[:, None]
        seen_UL = seen_UL if empty_U is None else after_empty(seen_UL[:, None], empty_U)[:, 0]
        positions = positions_UL[users, lengths_U - 1] + 1
        state = State(tuple(caches), ~seen_UL, positions, vectors, open=self._open(histories))
        return state, x[users, lengths_U - 1][:, None]

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        positions = state.positions_U[:, None].expand_as(tokens_UW)
        x = self._embed(state.vectors, tokens_UW, positions, torch.full_like(tokens_UW, state.depth))
        return self._stepped(self.blocks, x, state, parents_UW, tokens_UW)

    def _embed(
        self, vectors: TokenVectors, tokens: Tensor, positions: Tensor, depths: Tensor, among: Spread | None = None
    ) -> Tensor:
        x = self._entering(F.embedding(tokens, vectors.enter_VD)) + self.place(positions) + self.depth(depths)
        return dropout(x, self.shape.embedding_dropout, self.training, among)


def counted(positions_BL: Tensor, read_B: np.ndarray, shape: TransformerShape, space: TokenSpace) -> Tensor:
    """Indices of position embeddings: from the start, or so that the last of `read` positions gets history - 1."""
    if shape.positions_from == "start":
        return positions_BL
    # Padding is never read; its index only has to stay inside the table.
    return (positions_BL + torch.as_tensor(space.positions - read_B)[:, None]).clamp_max(space.positions)


def padded(batch: TokenBatch, rows_RD: Tensor) -> Tensor:
    """One row per real token, scattered to its position in the batch; zeros elsewhere. Shape: (B, L, D)."""
    slots_R = torch.as_tensor(np.flatnonzero(batch.tokens_BL != PAD))
    out = rows_RD.new_zeros(batch.tokens_BL.size, rows_RD.shape[1]).index_copy(0, slots_R, rows_RD)
    return out.view(*batch.tokens_BL.shape, -1)
