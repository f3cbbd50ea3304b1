"""The causal Transformer over flattened item tokens, and its two ways to run: whole sequences and cached steps.

Pre-LayerNorm, GELU, tied token embeddings (CapsID, arXiv 2605.05096, appendix A.3). The input is the sum of
the embeddings of a token, its item's position in the history and its depth in the item, so ids may have any length.
Knows tokens only: no items, no trie, no optimiser. Shapes as in `capsid.blocks.layers`; V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.blocks.cross_entropy import Added
from capsid.blocks.dropout import dropout
from capsid.blocks.layers import Block, BlockShape, Cache, Layer, SasRecBlock, after_empty, reset
from capsid.blocks.packed import Packed, Spread
from capsid.blocks.pairs import pair_products
from capsid.blocks.relative import MixingBlock
from capsid.errors import ConfigError
from capsid.generate.open_items import OpenItems
from capsid.generate.repeats import Repeats, completions, history_items
from capsid.generate.token_table import LastNorm, LastRMSNorm, TokenTable, TokenVectors
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import Ragged

# From this many beams on, dead ones among them are left out of linear layers if they are at least a quarter.
MANY_BEAMS = 256
BLOCKS: dict[str, type[Block]] = {"pre-norm": Block, "sasrec": SasRecBlock}


@dataclass(frozen=True, kw_only=True)
class NetworkShape(BlockShape):
    """A stack of blocks over tokens: how many tokens and depths there are, how tokens enter and are scored, and how
    histories are read. The last `beyond` tokens are those of second ids."""

    vocabulary: int
    beyond: int = 0
    depths: int
    embedding_dropout: float
    cosine_temperature: float = 0.0
    score_length: bool = False
    token_bias: bool = False
    own_dropout: float = 0.0
    input_scale: float = 1.0
    positions_from: str = "start"
    empty_positions: bool = False
    initial: str = "small"
    block: str = "pre-norm"
    repeats: bool = False


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


@dataclass(frozen=True, eq=False)
class Predictions:
    """Hidden rows from which tokens are predicted, one for each token of `targets` (one row per item), in order.

    `vectors` are those of all tokens; `added` is added to the products of rows and vectors. `ends_MD` are
    the rows after each item's last token, where they were asked for. `others` predict other ids of the same items.
    `starts_MD` are what was made of the history before each item of the lesson, where the
    network has such rows.
    """

    hidden_ND: Tensor
    targets: Ragged
    vectors: TokenVectors
    added: Added | None = None
    ends_MD: Tensor | None = None
    others: tuple[Predictions, ...] = ()
    starts_MD: Tensor | None = None

    @property
    def firsts_MD(self) -> Tensor:
        """The rows that predict each item's first token."""
        return self.hidden_ND[torch.as_tensor(self.targets.offsets[:-1])]

    @property
    def targets_N(self) -> Tensor:
        """The tokens to predict."""
        return torch.as_tensor(self.targets.values.astype(np.int64))


class GeneratorNetwork(nn.Module):
    """What training and decoding need of a network. All score tokens alike: a tied token table and a last norm.

    `closes` says whether `predict` can give the rows after the last tokens of items. What is read at an item's position
    must not reach that row.
    """

    token: TokenTable
    norm: LastNorm | LastRMSNorm
    closes: ClassVar[bool] = False

    def reset(self, generator: torch.Generator) -> None:
        """Fresh weights."""
        raise NotImplementedError

    def predict(
        self,
        lesson: Lesson,
        inputs_RD: Tensor | None = None,
        *,
        forced_ND: Tensor | None = None,
        closing: bool = False,
    ) -> Predictions:
        """Read whole sequences; the rows that predict the tokens of the lesson's items, in order.

        `inputs_RD` is added to what the network reads, one row for each real token in turn. `forced_ND` is added to the
        tokens of the lesson's items where they are read to predict the next one, if that is another reading than the
        first. With `closing` the rows after the items' last tokens are given too.
        """
        raise NotImplementedError

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[State, Tensor]:
        """See `capsid.decode.protocol`."""
        raise NotImplementedError

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        """See `capsid.decode.protocol`."""
        raise NotImplementedError

    def logits(self, rows: Tensor, vectors: TokenVectors) -> Tensor:
        """Products of rows with all token vectors: scores before anything is added."""
        return F.linear(self.norm(rows), vectors.score_VS)

    def scores(self, state: State, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        """See `capsid.decode.protocol`."""
        scores = self.logits(rows_UWD if row_R is None else rows_UWD.flatten(0, 1)[row_R], state.vectors)
        return scores if state.open is None else state.open.added_to(scores, state.depth, row_R)

    def scores_of(self, state: State, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """See `capsid.decode.protocol`."""
        rows_RD = self.norm(rows_UWD).flatten(0, 1)
        scores_E = pair_products(rows_RD, state.vectors.score_VS, row_E, token_E)
        return scores_E if state.open is None else state.open.added_to_pairs(scores_E, row_E, token_E, state.depth)


class BonusNetwork(GeneratorNetwork):
    """A network that may add to the scores of items of the history (`repeats`)."""

    shape: NetworkShape
    repeats: Repeats | None

    def _start_bonuses(self) -> None:
        """What is added becomes 0."""
        if self.repeats is not None:
            self.repeats.start()

    def _added(self, lesson: Lesson) -> Added | None:
        """What is added to scores in training."""
        return None if self.repeats is None else completions(lesson, self.repeats.value())

    def _open(self, histories: TokenBatch) -> OpenItems | None:
        """The same in search, before the first token."""
        return None if self.repeats is None else history_items(histories, self.repeats.value())

    def in_system(self, state: State, histories: TokenBatch, system: int) -> State:
        """See `capsid.decode.protocol.PredictsSystems`."""
        return replace(state, open=self._open(histories))

    def _entering(self, x: Tensor) -> Tensor:
        """Token embeddings at the input, before those of positions and depths are added."""
        return x if self.shape.input_scale == 1.0 else x * self.shape.input_scale

    def _after(self, state: State, caches: tuple[Cache, ...], parents_UW: Tensor, tokens_UW: Tensor) -> State:
        """The state after every beam appended a token."""
        open_items = state.open and state.open.on(parents_UW, tokens_UW, state.depth)
        return replace(state, caches=caches, depth=state.depth + 1, open=open_items)


class TokenNetwork(BonusNetwork):
    """Common base of networks over tokens: token and depth embeddings, a last LayerNorm and tied scores.

    `blocks` read the history.
    """

    blocks: nn.ModuleList

    def __init__(self, shape: NetworkShape, members: Ragged | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.token = token_table(shape, members)
        self.depth = nn.Embedding(shape.depths + 1, shape.width)
        self.norm = LastNorm(shape.width, ones=shape.token_bias)
        self.repeats = Repeats() if shape.repeats else None

    def reset(self, generator: torch.Generator) -> None:
        """Fresh weights."""
        layers = sum(isinstance(module, Layer) for module in self.modules())
        reset(self, layers, generator, self.shape.initial)
        self.token.start()
        self._start_bonuses()

    def _through(self, x_RD: Tensor, packed: Packed, read_B: np.ndarray) -> Tensor:
        """Rows of histories of `read` positions, without padding, after all blocks."""
        empty_B = self._empty(read_B)
        for block in self.blocks:
            assert isinstance(block, Block | MixingBlock)
            x_RD = block.packed(x_RD, packed, empty_B)
        return x_RD

    def _empty(self, read_B: np.ndarray) -> Tensor | None:
        """How many positions of a history are not filled, where attention is to see them."""
        return torch.as_tensor(self.shape.history - read_B) if self.shape.empty_positions else None

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
    """Blocks over all tokens of all items."""

    def __init__(self, shape: NetworkShape, members: Ragged | None = None) -> None:
        super().__init__(shape, members)
        self.place = nn.Embedding(shape.history + 1, shape.width)
        self.blocks = nn.ModuleList(BLOCKS[shape.block](shape) for _ in range(shape.layers))

    def predict(
        self,
        lesson: Lesson,
        inputs_RD: Tensor | None = None,
        *,
        forced_ND: Tensor | None = None,
        closing: bool = False,
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
        return Predictions(hidden_ND, lesson.tokens, vectors, self._added(lesson), starts_MD=starts_MD)

    def _read_packed(
        self, vectors: TokenVectors, batch: TokenBatch, packed: Packed, inputs_RD: Tensor | None
    ) -> Tensor:
        """Last hidden rows of all tokens but the last of each sequence, before the last norm."""
        width = packed.among.width
        positions_BL = counted(torch.as_tensor(batch.positions_BL), batch.positions_B - 1, self.shape)
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
        positions_UL = counted(positions_UL, histories.positions_B, self.shape)
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
        """One more token for every beam: the new state, and the rows that predict what follows."""
        positions = state.positions_U[:, None].expand_as(tokens_UW)
        x = self._embed(state.vectors, tokens_UW, positions, torch.full_like(tokens_UW, state.depth))
        return self._stepped(self.blocks, x, state, parents_UW, tokens_UW)

    def _embed(
        self,
        vectors: TokenVectors,
        tokens: Tensor,
        positions: Tensor,
        depths: Tensor,
        among: Spread | None = None,
    ) -> Tensor:
        x = self._entering(F.embedding(tokens, vectors.enter_VD)) + self.place(positions) + self.depth(depths)
        return dropout(x, self.shape.embedding_dropout, self.training, among)


def refuse_closing(closing: bool) -> None:
    """For networks in which the row after an item's last token has read what stands at that item's position."""
    if closing:
        raise ConfigError("the generator gives no row after an item's last token", hint="set generator=timeline")


def token_table(shape: NetworkShape, members: Ragged | None = None) -> TokenTable:
    """The token table of a shape."""
    return TokenTable(
        shape.vocabulary,
        shape.width,
        members,
        temperature=shape.cosine_temperature,
        length=shape.score_length,
        bias=shape.token_bias,
        own_dropout=shape.own_dropout,
        beyond=shape.beyond,
    )


def counted(positions_BL: Tensor, read_B: np.ndarray, shape: NetworkShape) -> Tensor:
    """Indices of position embeddings: from the start, or so that the last of `read` positions gets history - 1."""
    if shape.positions_from == "start":
        return positions_BL
    # Padding is never read; its index only has to stay inside the table.
    return (positions_BL + torch.as_tensor(shape.history - read_B)[:, None]).clamp_max(shape.history)


def padded(batch: TokenBatch, rows_RD: Tensor) -> Tensor:
    """One row per real token, scattered to its position in the batch; zeros elsewhere. Shape: (B, L, D)."""
    slots_R = torch.as_tensor(np.flatnonzero(batch.tokens_BL != PAD))
    out = rows_RD.new_zeros(batch.tokens_BL.size, rows_RD.shape[1]).index_copy(0, slots_R, rows_RD)
    return out.view(*batch.tokens_BL.shape, -1)
