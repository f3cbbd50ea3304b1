"""What a network over tokens must be able to do, whatever it is made of: read a lesson, and walk on token by token.

A backbone embeds tokens, reads whole lessons in training and histories in a search, takes cached steps, and scores
tokens. The causal Transformer, the timeline, the bidirectional Transformer and the encoder-decoder are backbones; a
recurrent network or a language model can be one too (`tests/architecture/test_backbone.py` adds one in a few lines).
Knows tokens only: no items, no trie, no optimiser.

Shapes: N predicted tokens, M their items, V tokens of the vocabulary, D width of embeddings and hidden rows, S width of
scoring vectors, U users, W beams, R rows, E pairs of row and token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.cross_entropy import Added, pair_products
from capsid.errors import ConfigError
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ragged import Ragged


def unchanged(rows: Tensor) -> Tensor:
    """Hidden rows that are products with scoring vectors as they are."""
    return rows


@dataclass(frozen=True, eq=False)
class Predictions:
    """Hidden rows from which tokens are predicted, one for each token of `targets` (one row per item), in order.

    A score is the product of a row after `norm` and the token's vector in `score_VS`; `added` is added to some of them.
    `ends_MD` are the rows after each item's last token, where they were asked for. `others` predict other ids of the
    same items. `starts_MD` are what was made of the history before each item of the lesson, where the network has such
    rows.
    """

    hidden_ND: Tensor
    targets: Ragged
    score_VS: Tensor
    norm: Callable[[Tensor], Tensor] = unchanged
    added: Added | None = None
    ends_MD: Tensor | None = None
    others: tuple[Predictions, ...] = ()
    starts_MD: Tensor | None = None

    @property
    def rows_NS(self) -> Tensor:
        """The rows that scores are products of."""
        return self.norm(self.hidden_ND)

    @property
    def scores_NV(self) -> Tensor:
        """Scores of all tokens before anything is added. Losses that need fewer do not ask for it."""
        return F.linear(self.rows_NS, self.score_VS)

    @property
    def firsts_MD(self) -> Tensor:
        """The rows that predict each item's first token."""
        return self.hidden_ND[torch.as_tensor(self.targets.offsets[:-1])]

    @property
    def targets_N(self) -> Tensor:
        return torch.as_tensor(self.targets.values.astype(np.int64))


class Backbone(nn.Module):
    """A subclass writes `embed`, `predict`, `start` and `step`; scores are products with tied embeddings by default.
    `closes` says whether `predict` can give the rows after the last tokens of items. What is read at an item's position
    must not reach that row."""

    closes: ClassVar[bool] = False

    def reset(self, generator: torch.Generator) -> None:
        """Fresh weights, which depend on nothing but the generator's seed."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0.0, 0.02, generator=generator)

    def embed(self) -> Tensor:
        """The vectors that tokens are read as, with gradients. Shape: (V, D)."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        return self.embed().shape[1]

    def predict(
        self, lesson: Lesson, inputs_RD: Tensor | None = None, *, forced_ND: Tensor | None = None, closing: bool = False
    ) -> Predictions:
        """Read whole sequences; the rows that predict the tokens of the lesson's items, in order.

        `inputs_RD` are vectors added to the input embeddings, one per non-padding token. `forced_ND` is added to the
        tokens of the lesson's items where they are read to predict the next one, if that is another reading than the
        first. With `closing` the rows after the items' last tokens are given too.
        """
        raise NotImplementedError

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Any, Tensor]:
        raise NotImplementedError

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        raise NotImplementedError

    def score_rows(self, rows: Tensor) -> Tensor:
        """Hidden rows as scores need them. Shape: (..., S)."""
        return rows

    def score_vectors(self, state: Any) -> Tensor:
        """The vectors that tokens are scored with, in the state of a search. Shape: (V, S)."""
        return self.embed()

    def scores(self, state: Any, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        rows = rows_UWD if row_R is None else rows_UWD.flatten(0, 1)[row_R]
        return F.linear(self.score_rows(rows), self.score_vectors(state))

    def scores_of(self, state: Any, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        return pair_products(self.score_rows(rows_UWD).flatten(0, 1), self.score_vectors(state), row_E, token_E)


def refuse_closing(closing: bool) -> None:
    """For networks in which the row after an item's last token has read what stands at that item's position."""
    if closing:
        raise ConfigError("the generator gives no row after an item's last token", hint="set generator=timeline")
