"""Networks with one position per item: a bidirectional Transformer over masked items, and a timeline.

`MaskedTransformer` predicts masked items (BERT4Rec, Sun et al. 2019, arXiv 1904.06690); its ids have one token. In
training some items are masked and predicted from all others; to recommend, a mask is appended to the history.

`TimelineTransformer` is two small Transformers: a timeline with one position per item, then one over the next item's
tokens. An item is read as the sum of its tokens' embeddings, so a history has as many positions as items, whatever the
length of their ids. A Transformer over depth generates the tokens of the next item from the timeline's last hidden row
and the tokens so far (time and depth are split as in Lee et al. 2022, arXiv 2203.01941, section 3.2). Knows tokens
only. Shapes: P positions, R rows, N targets, T tokens of an item, otherwise as in `capsid.generate.network`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.layers import Block, Distances, Layer, MixingBlock, NearBlock, SasRecBlock, reset
from capsid.base.blocks.packed import Packed, dropout
from capsid.errors import ConfigError
from capsid.generate.backbone import Predictions, refuse_closing
from capsid.generate.network import ItemRows, State, TiedBackbone, TokenNetwork, counted, padded
from capsid.generate.shape import TokenSpace, TokenTable, TokenVectors, TransformerShape, corrections
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import Ragged


class MaskedTransformer(TiedBackbone):
    """Token and position embeddings, a mask vector, blocks without a causal mask, tied logits."""

    repeats = None

    def __init__(self, shape: TransformerShape, space: TokenSpace, share: float, only_last: float) -> None:
        super().__init__()
        self.shape, self.space = shape, space
        self.share, self.only_last = share, only_last
        self.token = TokenTable(space.vocabulary, shape.width, temperature=shape.cosine_temperature)
        self.place = nn.Embedding(space.positions + 1, shape.width)
        self.mask = nn.Parameter(torch.zeros(1, shape.width))
        self.blocks = nn.ModuleList(Block(shape.blocks(space.positions)) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def reset(self, generator: torch.Generator) -> None:
        reset(self, self.shape.layers, generator, self.shape.initial)
        self.token.start()

    def predict(
        self, lesson: Lesson, inputs_RD: Tensor | None = None, *, forced_ND: Tensor | None = None, closing: bool = False
    ) -> Predictions:
        """Hidden rows of masked items, and these items (BERT4Rec, Eq. 8). Outside training the last item is masked."""
        refuse_closing(closing)
        batch = lesson.batch
        tokens_BL, lengths_B = torch.as_tensor(batch.tokens_BL), torch.as_tensor(batch.lengths_B)
        masked_BL = self._choose(tokens_BL != PAD, lengths_B)
        extra_BLD = None if inputs_RD is None else padded(batch, inputs_RD)
        x_BLD = self._read(tokens_BL, masked_BL, lengths_B, extra_BLD)
        targets = Ragged.from_dense(tokens_BL[masked_BL].numpy()[:, None])
        return Predictions(x_BLD[masked_BL], targets, self.token.vectors().score_VS, self.score_rows)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[State, Tensor]:
        """Read every history with a mask appended; the row of the mask."""
        users, lengths_U = torch.arange(len(histories)), torch.as_tensor(histories.lengths_B)
        tokens_UL = F.pad(torch.as_tensor(histories.tokens_BL), (0, 1), value=PAD)
        masked_UL = torch.zeros_like(tokens_UL, dtype=torch.bool)
        masked_UL[users, lengths_U] = True
        # The mask's column has no input of its own.
        extra_ULD = None if inputs_RD is None else F.pad(padded(histories, inputs_RD), (0, 0, 0, 1))
        x_ULD = self._read(tokens_UL, masked_UL, lengths_U + 1, extra_ULD)
        return State((), masked_UL, lengths_U, self.token.vectors()), x_ULD[users, lengths_U][:, None]

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        """Not needed: an item has one token."""
        raise ConfigError("the masked generator predicts one token per item", hint="use the atomic tokenizer")

    def _choose(self, real_BL: Tensor, lengths_B: Tensor) -> Tensor:
        """Masked positions: in training a share of every sequence, at least one item, and in some only the last."""
        last_BL = torch.arange(real_BL.shape[1]) == (lengths_B - 1)[:, None]
        if not self.training:
            return last_BL
        draw_BL = torch.rand(real_BL.shape).masked_fill(~real_BL, 2.0)
        some_BL = (draw_BL < self.share) | (draw_BL == draw_BL.amin(1, keepdim=True))
        return torch.where(torch.rand(len(real_BL), 1) < self.only_last, last_BL, some_BL & real_BL)

    def _read(self, tokens_BL: Tensor, masked_BL: Tensor, lengths_B: Tensor, extra_BLD: Tensor | None = None) -> Tensor:
        """Last hidden rows of whole sequences, before the last norm. Padding is at the end of a row."""
        x_BLD = self.token(tokens_BL) if extra_BLD is None else self.token(tokens_BL) + extra_BLD
        x_BLD = x_BLD if self.shape.input_scale == 1.0 else x_BLD * self.shape.input_scale
        # The mask takes the position of the next item: after the last one of a history.
        number_BL = counted(torch.arange(tokens_BL.shape[1])[None], lengths_B.numpy() - 1, self.shape, self.space)
        x_BLD = torch.where(masked_BL[..., None], self.mask, x_BLD) + F.embedding(number_BL, self.place.weight)
        x_BLD = dropout(x_BLD, self.shape.embedding_dropout, self.training)
        padding_BL = torch.arange(tokens_BL.shape[1]) >= lengths_B[:, None]
        for block in self.blocks:
            x_BLD, _ = block(x_BLD, padding_BL)
        return x_BLD


READINGS: dict[str, type[Layer]] = {
    "places": Block,
    "distances": NearBlock,
    "mixing": MixingBlock,
    "sasrec": SasRecBlock,
}
# These know positions only by embeddings that are added to the items.
PLACED = ("places", "sasrec")


class TimelineTransformer(TokenNetwork):
    """`blocks` read the history, `depth_blocks` generate the next item; embeddings and logits are shared and tied.
    `reads` is one of READINGS: attention with position embeddings or with distances, distances alone, or the blocks of
    SASRec with position embeddings."""

    closes: ClassVar[bool] = True

    def __init__(
        self, shape: TransformerShape, space: TokenSpace, *, depth_layers: int = 1, reads: str, repeats: bool = True
    ) -> None:
        super().__init__(shape, space, repeats=repeats, empty_positions=reads == "sasrec")
        blocks = shape.blocks(space.positions)
        self.relative = issubclass(READINGS[reads], NearBlock | MixingBlock)
        self.place = nn.Embedding(space.positions + 1, shape.width) if reads in PLACED else None
        self.blocks = nn.ModuleList(READINGS[reads](blocks) for _ in range(shape.layers))
        self.depth_blocks = nn.ModuleList(Block(blocks) for _ in range(depth_layers))

    def reset(self, generator: torch.Generator) -> None:
        super().reset(generator)
        for module in self.modules():
            if isinstance(module, Distances):
                module.start()

    def predict(
        self, lesson: Lesson, inputs_RD: Tensor | None = None, *, forced_ND: Tensor | None = None, closing: bool = False
    ) -> Predictions:
        vectors = self.token.vectors()
        # Sequences of a training batch are about equally long, unless each has one target, at a random place.
        uneven = not self.training or len(lesson.row_M) == len(lesson.batch)
        read_BPD = self._read(vectors, lesson.batch, lesson.batch.positions_B - 1, inputs_RD, uneven=uneven)[:, :-1]
        first = self._next(vectors, read_BPD, lesson, forced_ND, closing)
        return replace(first, others=tuple(self._next(vectors, read_BPD, other) for other in lesson.others))

    def _next(
        self,
        vectors: TokenVectors,
        read_BPD: Tensor,
        lesson: Lesson,
        forced_ND: Tensor | None = None,
        closing: bool = False,
    ) -> Predictions:
        """Hidden rows for every token of every item of the lesson, from the timeline's hidden rows."""
        rows = ItemRows.of(lesson, closing=closing)
        forced_RD = None if forced_ND is None else forced_ND[torch.as_tensor(rows.before_R)]
        # An item is predicted from the timeline's hidden row of the position before it.
        last_M = lesson.row_M * read_BPD.shape[1] + lesson.position_M - 1
        rows_RD = torch.where(
            rows.first_R[:, None],
            read_BPD.flatten(0, 1)[torch.as_tensor(last_M[rows.item_R])],
            self._generated(vectors, rows.tokens_R, torch.as_tensor(np.maximum(rows.depth_R - 1, 0)), forced_RD),
        )
        for block in self.depth_blocks:
            assert isinstance(block, Block)
            rows_RD = block.ragged(rows_RD, rows.own)
        starts_MD = read_BPD.flatten(0, 1)[torch.as_tensor(last_M)]
        hidden_ND, ends_MD = rows.parted(rows_RD)
        return self._predicted(lesson, hidden_ND, vectors, ends_MD, starts_MD)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[State, Tensor]:
        """Read histories once; only the last position of each is used further."""
        vectors = self.token.vectors()
        read_UPD = self._read(vectors, histories, histories.positions_B, inputs_RD, uneven=True)
        x = read_UPD[torch.arange(len(histories)), torch.as_tensor(histories.positions_B) - 1][:, None]
        caches = []
        for block in self.depth_blocks:
            x, cache = block(x)
            caches.append(cache)
        padding_U1 = torch.zeros(len(histories), 1, dtype=torch.bool)
        positions_U = torch.as_tensor(histories.positions_B)
        return State(tuple(caches), padding_U1, positions_U, vectors, open=self._open(histories)), x

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        x = self._generated(state.vectors, tokens_UW, torch.full_like(tokens_UW, state.depth))
        return self._stepped(self.depth_blocks, x, state, parents_UW, tokens_UW)

    def _read(
        self, vectors: TokenVectors, batch: TokenBatch, read_B: np.ndarray, inputs_RD: Tensor | None, *, uneven: bool
    ) -> Tensor:
        """The timeline's hidden rows for histories of `read` positions. Shape: (B, P, D). `uneven`: histories differ so
        much in length that padding would cost more than packing."""
        positions = int(batch.positions_B.max())
        user_R, column_R = np.nonzero(batch.tokens_BL != PAD)
        tokens_R = torch.as_tensor(batch.tokens_BL[user_R, column_R])
        slots_R = torch.as_tensor(user_R * positions + batch.positions_BL[user_R, column_R])
        embedded_RD = F.embedding(tokens_R, vectors.enter_VD)
        if batch.soft is not None:
            embedded_RD = embedded_RD + corrections(batch.soft, vectors)
        embedded_RD = embedded_RD if inputs_RD is None else embedded_RD + inputs_RD
        items = torch.zeros(len(batch) * positions, self.shape.width).index_add(0, slots_R, embedded_RD)
        x_BPD = self._entering(items.view(len(batch), positions, -1))
        if self.place is not None:
            number_BP = counted(torch.arange(positions)[None], read_B, self.shape, self.space)
            x_BPD = x_BPD + F.embedding(number_BP, self.place.weight)
        x_BPD = dropout(x_BPD, self.shape.embedding_dropout, self.training)
        if self.empty_positions or (self.relative and uneven):
            packed = Packed.of(read_B, positions)
            return packed.among.padded(self._through(packed.among.rows(x_BPD), packed, read_B))
        for block in self.blocks:
            x_BPD, _ = block(x_BPD)
        return x_BPD

    def _generated(self, vectors: TokenVectors, tokens: Tensor, depths: Tensor, extra: Tensor | None = None) -> Tensor:
        """Embeddings of tokens that were generated for the next item."""
        embedded = F.embedding(tokens, vectors.enter_VD)
        embedded = embedded if extra is None else embedded + extra
        x = self._entering(embedded) + self.depth(depths)
        return dropout(x, self.shape.embedding_dropout, self.training)
