"""What rankers need from a model: read histories once, step all beams together, score the requested tokens.

Also what they need from item vectors, if a method has them beside ids.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from capsid.ids.reading import TokenBatch


class Decodable(Protocol):
    """A next-token model over the tokens of a trie. Scores are not normalised: `capsid.decode.likelihood` does that.

    Rows are what a model predicts from, one per user and beam; only the model knows what they hold.
    """

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Any, Tensor]:
        """State, and the rows that predict the first token. Shape: (U, 1, D).

        `inputs_RD` is added to what is read, one row for each real token of the batch in turn.
        """

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        """State and rows (U, W, D) after every beam appended a token; beam w of user u continues beam parents[u, w]."""

    def scores(self, state: Any, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        """Scores of all tokens after each row; the caller may overwrite them. Shape: (U, W, V).

        With `row_R`, only those rows, numbered user by user, each once and in order. Shape: (R, V).
        """

    def scores_of(self, state: Any, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """Scores of token `token_E[e]` after row `row_E[e]`, rows numbered user by user. Shape: (E,).

        Pairs come in order, by row and then by token, each once.
        """


@runtime_checkable
class PredictsSystems(Protocol):
    """A network that reads histories once and predicts the ids of any system from that reading."""

    def in_system(self, state: Any, histories: TokenBatch, system: int) -> Any:
        """The state after `start`, to predict the ids of another system; the batch has the items' tokens in it."""


class Dense(Protocol):
    """Vectors of all items beside their ids. They and what is expected have length 1. Shape of vectors: (N, C)."""

    @property
    def vectors_NC(self) -> Tensor:
        """One vector per item of the catalogue."""

    def inputs(self, histories: TokenBatch) -> Tensor | None:
        """What is added to what a model reads of histories, one row for each real token in turn."""

    def expected(self, rows: Tensor) -> Tensor:
        """The vector that is expected after each row behind an id's last token. Shape: (..., C)."""
