"""What the search needs of a model: read histories once, then take one step for all beams at once."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from capsid.ids.reading import TokenBatch


class Decodable(Protocol):
    """A next-token model over the tokens of a trie. Logits are over the whole vocabulary, not normalised."""

    def start(self, histories: TokenBatch) -> tuple[Any, Tensor]:
        """State, and logits of the first token, shape (U, V)."""

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        """State after every beam took a token (beam w of user u goes on from beam parents[u, w]), logits (U, W, V)."""
