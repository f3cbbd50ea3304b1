"""T5's network over items: an encoder reads the history's tokens, a decoder predicts the next item's tokens.

The layers are those of `base.blocks.t5`, with embeddings tied to the scores, which are multiplied by width^-0.5 as in
T5 (Raffel et al. 2020, arXiv 1910.10683; TIGER, arXiv 2305.05065, trains one over semantic ids). The decoder begins
with the padding token. Knows tokens only. Shapes: B encoded sequences, L their length, Q queries of an encoded
sequence, M items, R rows, U users, W beams, T tokens of an item.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.layers import Cache, reset
from capsid.base.blocks.packed import Spread, dropout
from capsid.base.blocks.t5 import EPS, DecoderBlock, EncoderBlock, RelativePositions, T5Shape, reset_t5
from capsid.errors import ConfigError
from capsid.generate.backbone import Predictions
from capsid.generate.network import ItemRows, State, TiedBackbone, padded
from capsid.generate.open_items import Repeats
from capsid.generate.shape import LastRMSNorm, TokenSpace, TokenTable, TokenVectors, corrections
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import offsets_of
from capsid.settings import setting


@dataclass(kw_only=True)
class T5Settings:
    """Sizes as in TIGER (arXiv 2305.05065)."""

    layers: int = setting(4, "Layers of the encoder, over the tokens of the history.", least=1, most=1_000)
    depth_layers: int = setting(4, "Layers of the decoder, over the tokens of the next item.", least=1, most=1_000)
    heads: int = setting(6, "Attention heads per layer.", least=1)
    head_width: int = setting(64, "Width of an attention head.", least=1)
    width: int = setting(128, "Width of embeddings and hidden states.", least=1)
    feedforward: int = setting(1024, "Width inside the feed-forward layers.", least=1)
    activation: str = setting("relu", "In feed-forward layers: ReLU, or gated GELU.", choices=("relu", "gated-gelu"))
    dropout: float = setting(0.1, "Dropout inside the layers.", least=0, most=0.99)
    embedding_dropout: float = setting(0.1, "Dropout of the input embeddings.", least=0, most=0.99)
    attention_dropout: float = setting(0.0, "Dropout of attention weights.", least=0, most=0.99)
    hidden_dropout: float = setting(0.1, "Dropout inside the feed-forward layers.", least=0, most=0.99)
    buckets: int = setting(32, "Buckets of distances between tokens, each with a learnt number per head.", least=4)
    reach: int = setting(128, "Tokens that are further apart than this share one bucket.", least=2)
    cosine_temperature: float = setting(0.0, "Scores are cosines divided by this; 0: inner products.", least=0)
    input_scale: float = setting(1.0, "Token embeddings are multiplied by this at the input.", above=0)
    initial: str = setting("t5", "Spread of fresh weights: T5's, 0.02, or by sizes.", choices=("t5", "small", "xavier"))

    def blocks(self) -> T5Shape:
        return T5Shape(
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
            feedforward=self.feedforward,
            gated=self.activation == "gated-gelu",
            buckets=self.buckets,
            reach=self.reach,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            hidden_dropout=self.hidden_dropout,
        )

    def check_sizes(self) -> None:
        """Buckets and reach depend on each other."""
        if self.buckets % 2 or self.reach <= self.buckets // 2:
            raise ConfigError(
                "generator.buckets must be even, and generator.reach more than half of it, "
                f"got {self.buckets} and {self.reach}",
                hint="T5 has 32 and 128",
            )


@dataclass(frozen=True, eq=False)
class _Sequences:
    """What the encoder reads: embeddings, the position of each token's item, and which tokens are read."""

    x_BLD: Tensor
    positions_BL: Tensor
    real_BL: Tensor

    def before(self, row_M: np.ndarray, position_M: np.ndarray, columns: int) -> _Sequences:
        """One sequence per item: what comes before the item's position in its row."""
        rows, limit_M1 = torch.as_tensor(row_M), torch.as_tensor(position_M)[:, None]
        positions_ML, real_ML = self.positions_BL[rows, :columns], self.real_BL[rows, :columns]
        return _Sequences(self.x_BLD[rows, :columns], positions_ML, real_ML & (positions_ML < limit_M1))


class EncoderDecoder(TiedBackbone):
    """The encoder is bidirectional, or `causal`: then a token sees its own item and those before it, and one pass of
    the encoder serves all items of a sequence as targets. Otherwise every target needs a pass of its own."""

    closes: ClassVar[bool] = True

    def __init__(self, shape: T5Settings, space: TokenSpace, *, causal: bool, repeats: bool) -> None:
        super().__init__()
        t5 = shape.blocks()
        self.shape, self.space, self.t5, self.causal = shape, space, t5, causal
        self.token = TokenTable(space.vocabulary, shape.width, space.merges, shape.cosine_temperature)
        self.encoder = nn.ModuleList(EncoderBlock(t5) for _ in range(shape.layers))
        self.encoder_positions = RelativePositions(t5, both_ways=True)
        self.encoder_norm = nn.RMSNorm(shape.width, eps=EPS)
        self.decoder = nn.ModuleList(DecoderBlock(t5) for _ in range(shape.depth_layers))
        self.decoder_positions = RelativePositions(t5, both_ways=False)
        # Cosines need hidden rows of length sqrt(D), as they leave the norm.
        factor = 1.0 if shape.cosine_temperature else shape.width**-0.5
        self.norm = LastRMSNorm(shape.width, factor=factor, rate=shape.dropout)
        self.repeats = Repeats() if repeats else None

    def reset(self, generator: torch.Generator) -> None:
        if self.shape.initial == "t5":
            reset_t5(self, self.t5, generator)
        else:
            reset(self, len(self.encoder) + len(self.decoder), generator, self.shape.initial)
        self.token.start()
        if self.repeats is not None:
            self.repeats.start()

    def predict(
        self, lesson: Lesson, inputs_RD: Tensor | None = None, *, forced_ND: Tensor | None = None, closing: bool = False
    ) -> Predictions:
        vectors = self.token.vectors()
        read, row_M = self._sequences(vectors, lesson.batch, inputs_RD), lesson.row_M
        # No item reads beyond the column where the last of them begins.
        columns = int(lesson.column_M.max())
        if self.causal:
            read = _Sequences(read.x_BLD[:, :columns], read.positions_BL[:, :columns], read.real_BL[:, :columns])
        else:
            read, row_M = read.before(lesson.row_M, lesson.position_M, columns), np.arange(len(lesson.row_M))
        encoded_BLD = self._encode(read)
        rows = ItemRows.of(lesson, closing=closing)
        crossing, seen_BQL = _crossing(read, row_M[rows.item_R], lesson.position_M[rows.item_R])
        added_HTT = self._own_scores(rows.own.width)
        x_RD = self._begun(vectors, rows, forced_ND)
        for block in self.decoder:
            assert isinstance(block, DecoderBlock)
            x_RD = block.whole(x_RD, rows.own, crossing, block.keys(encoded_BLD), added_HTT, seen_BQL)
        hidden_ND, ends_MD = rows.parted(x_RD)
        return self._predicted(lesson, hidden_ND, vectors, ends_MD)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[State, Tensor]:
        """Read histories once; the keys that the decoder attends to are computed once per user."""
        vectors = self.token.vectors()
        read = self._sequences(vectors, histories, inputs_RD)
        encoded_ULD = self._encode(read)
        caches = []
        for block in self.decoder:
            assert isinstance(block, DecoderBlock)
            caches.append(block.keys(encoded_ULD))
        positions_U = torch.as_tensor(histories.positions_B)
        state = State(tuple(caches), ~read.real_BL, positions_U, vectors, open=self._open(histories))
        begin_U1 = torch.full((len(histories), 1), PAD, device=encoded_ULD.device)
        read_caches, rows_U1D = self._advance(state, torch.zeros_like(begin_U1), begin_U1)
        return replace(state, caches=read_caches), rows_U1D

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        caches, rows_UWD = self._advance(state, parents_UW, tokens_UW)
        return self._after(state, caches, parents_UW, tokens_UW), rows_UWD

    def _advance(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[tuple[Cache, ...], Tensor]:
        """One more position of the decoder for every beam."""
        x_UWD = self._dropped(F.embedding(tokens_UW, state.vectors.enter_VD) * self.shape.input_scale)
        own_keys = state.caches[0].own_keys_UWTHK
        added_HT = self.decoder_positions.last(1 if own_keys is None else own_keys.shape[2] + 1)
        caches = []
        for block, old in zip(self.decoder, state.caches):
            assert isinstance(block, DecoderBlock)
            x_UWD, cache = block.step(x_UWD, old, parents_UW, added_HT, ~state.padding_UL)
            caches.append(cache)
        return tuple(caches), x_UWD

    def _sequences(self, vectors: TokenVectors, batch: TokenBatch, inputs_RD: Tensor | None) -> _Sequences:
        """The batch as the encoder reads it."""
        tokens_BL, positions_BL = torch.as_tensor(batch.tokens_BL), torch.as_tensor(batch.positions_BL)
        x_BLD = F.embedding(tokens_BL, vectors.enter_VD)
        if batch.soft is not None:
            x_BLD = x_BLD + padded(batch, corrections(batch.soft, vectors))
        if inputs_RD is not None:
            x_BLD = x_BLD + padded(batch, inputs_RD)
        return _Sequences(x_BLD * self.shape.input_scale, positions_BL, tokens_BL != PAD)

    def _encode(self, read: _Sequences) -> Tensor:
        """The encoder's hidden rows. Shape: (B, L, D)."""
        positions_BL, seen_BLL = read.positions_BL, read.real_BL[:, None, :]
        if self.causal:
            seen_BLL = seen_BLL & (positions_BL[:, None, :] <= positions_BL[:, :, None])
        near_HLL = self.encoder_positions(positions_BL.shape[1])
        # No query is without a visible key, because every position, also a padded one, sees the first item.
        added_BHLL = near_HLL.masked_fill(~seen_BLL[:, None], -torch.inf)
        x_BLD = self._dropped(read.x_BLD)
        for block in self.encoder:
            x_BLD = block(x_BLD, added_BHLL)
        return dropout(self.encoder_norm(x_BLD), self.shape.dropout, self.training)

    def _own_scores(self, length: int) -> Tensor:
        """What is added to the decoder's scores inside an item; minus infinity for later tokens. Shape: (H, T, T)."""
        later_TT = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.decoder_positions(length).masked_fill(later_TT, -torch.inf)

    def _begun(self, vectors: TokenVectors, rows: ItemRows, forced_ND: Tensor | None) -> Tensor:
        """What the decoder reads: the padding token first, then the item's tokens. Shape: (R, D)."""
        x_RD = F.embedding(rows.tokens_R.masked_fill(rows.first_R, PAD), vectors.enter_VD)
        if forced_ND is not None:
            x_RD = x_RD + forced_ND[torch.as_tensor(rows.before_R)] * ~rows.first_R[:, None]
        return self._dropped(x_RD * self.shape.input_scale)

    def _dropped(self, x: Tensor) -> Tensor:
        return dropout(x, self.shape.embedding_dropout, self.training)


def _crossing(read: _Sequences, row_R: np.ndarray, limit_R: np.ndarray) -> tuple[Spread, Tensor]:
    """Where rows stand among the queries of their sequence, and what each sees of it: positions below its limit."""
    counts_B = np.bincount(row_R, minlength=len(read.positions_BL))
    width = int(counts_B.max())
    # Rows are in the order of their sequences, so a row's place is its number minus that of its sequence's first row.
    place_R = np.arange(len(row_R)) - offsets_of(counts_B)[row_R]
    crossing = Spread(torch.as_tensor(row_R * width + place_R), len(counts_B), width)
    # Queries that pad a sequence see its first item: a softmax over nothing would be NaN.
    limits_BQ = torch.ones(len(counts_B) * width, dtype=torch.int64)
    limits_BQ[crossing.slots_R] = torch.as_tensor(limit_R)
    seen_BQL = read.positions_BL[:, None, :] < limits_BQ.view(-1, width)[:, :, None]
    return crossing, seen_BQL & read.real_BL[:, None, :]
