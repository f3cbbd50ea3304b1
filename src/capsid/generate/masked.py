"""A bidirectional Transformer that predicts masked items (BERT4Rec, Sun et al. 2019, arXiv 1904.06690).

One position per item, so ids have one token. In training some items are masked and predicted from all others; to
recommend, a mask is appended to the history. Knows tokens only. Shapes as in `capsid.generate.network`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.dropout import dropout
from capsid.base.blocks.layers import Block, reset
from capsid.errors import ConfigError
from capsid.generate.backbone import Predictions, refuse_closing
from capsid.generate.network import State, TiedBackbone, counted, padded
from capsid.generate.shape import TokenSpace, TokenTable, TransformerShape
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
