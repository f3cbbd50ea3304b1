"""What rankers need of a model: read histories once, step all beams at once, score the tokens asked about."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from capsid.ids.reading import TokenBatch


class Decodable(Protocol):
    """A next-token model over the tokens of a trie. Scores are not normalised: `capsid.decode.likelihood` does that.

    Rows are what a model predicts from, one per user and beam; only the model knows what they hold.
    """

    def start(self, histories: TokenBatch) -> tuple[Any, Tensor]:
        """State, and the rows that predict the first token. Shape: (U, 1, D)."""

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        """State and rows (U, W, D) after every beam took a token; beam w of user u continues beam parents[u, w]."""

    def scores(self, state: Any, rows_UWD: Tensor) -> Tensor:
        """Scores of all tokens after each row, for the caller to overwrite. Shape: (U, W, V)."""

    def scores_of(self, state: Any, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """Scores of token `token_E[e]` after row `row_E[e]`, rows counted user by user. Shape: (E,)."""
