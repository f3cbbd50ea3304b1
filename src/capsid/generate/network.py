"""The causal Transformer over flattened item tokens, and its two ways to run: whole sequences and cached steps.

Pre-LayerNorm, GELU, tied token embeddings (paper, appendix on the generator; SASRec-style). A position is the sum of
its token, its item's place in the history and its depth in the item, so ids of any length fit. Knows tokens only: no
items, no trie, no optimiser. Shapes: B batch, L length, D width, H heads, K head width, U users, W beams, T steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.generate.cross_entropy import Added
from capsid.generate.dropout import dropout
from capsid.generate.repeats import Taken
from capsid.generate.token_table import TokenTable, TokenVectors
from capsid.ids.flatten import TokenBatch
from capsid.ids.layout import PAD
from capsid.ragged import Ragged


@dataclass(frozen=True)
class NetworkShape:
    """Sizes that fix the parameters, and the two dropout rates."""

    vocabulary: int
    depths: int
    layers: int
    heads: int
    width: int
    feedforward: int
    history: int
    dropout: float
    embedding_dropout: float
    cosine_temperature: float = 0.0


@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer: the history's, shared by all beams, and the beams' own few positions."""

    keys_UHLK: Tensor
    values_UHLK: Tensor
    own_keys_UWTHK: Tensor | None = None
    own_values_UWTHK: Tensor | None = None

    def reordered(self, parents_UW: Tensor, key_UWHK: Tensor, value_UWHK: Tensor) -> Cache:
        """Own positions follow their beams, then the new one is added; the history is not touched."""
        keys, values = key_UWHK[:, :, None], value_UWHK[:, :, None]
        if self.own_keys_UWTHK is not None and self.own_values_UWTHK is not None:
            users = torch.arange(len(parents_UW), device=parents_UW.device)[:, None]
            keys = torch.cat([self.own_keys_UWTHK[users, parents_UW], keys], dim=2)
            values = torch.cat([self.own_values_UWTHK[users, parents_UW], values], dim=2)
        return replace(self, own_keys_UWTHK=keys, own_values_UWTHK=values)


@dataclass(frozen=True)
class State:
    """Everything a step needs. `padding_UL` is True where a history has padding; `taken`, if that counts, is what the
    user has already."""

    caches: tuple[Cache, ...]
    padding_UL: Tensor
    places_U: Tensor
    vectors: TokenVectors
    depth: int = 0
    taken: Taken | None = None


@dataclass(frozen=True, eq=False)
class Predictions:
    """Hidden rows from which a token is predicted, that token, and the vectors of all tokens. Shapes: (N, D), (N,).

    `added` is what scores have besides the product of row and vector.
    """

    hidden_ND: Tensor
    targets_N: Tensor
    vectors: TokenVectors
    added: Added | None = None


class GeneratorNetwork(Protocol):
    """What loss terms and training need of a network; decoding needs `start` and `step` (`capsid.decode.protocol`)."""

    token: TokenTable
    norm: nn.LayerNorm

    def predict(self, batch: TokenBatch, nudges_RD: Tensor | None = None) -> Predictions:
        """Read whole sequences; the rows that predict a token of the second item or a later one.

        `nudges` are added to the inputs, a row for each real token in turn.
        """


class Layer(nn.Module):
    """What every block has: norms, the way out of the heads, a feed-forward net; all is added to what came in."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.norm_attention = nn.LayerNorm(shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_feedforward = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.feedforward)
        self.down = nn.Linear(shape.feedforward, shape.width)

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + dropout(self.out(mixed), self.dropout, self.training)
        hidden = F.gelu(self.up(self.norm_feedforward(x)))
        return x + dropout(self.down(hidden), self.dropout, self.training)


class Block(Layer):
    """Attention and feed-forward, each on a normalised input."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__(shape)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)

    def forward(self, x_BLD: Tensor, padding_BL: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Whole sequences under a causal mask, and the keys and values they leave.

        With `padding` (True where there is none of a sequence) every position sees all real ones, before and after it.
        """
        q, k, v = (t.transpose(1, 2) for t in self._project(x_BLD))
        seen = None if padding_BL is None else ~padding_BL[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        return self._finish(x_BLD, mixed.transpose(1, 2).flatten(2)), Cache(k, v)

    def ragged(self, x_RD: Tensor, slots_R: Tensor, width: int) -> Tensor:
        """Short sequences end to end: row r stands at `slots[r]` of sequences padded to `width`."""
        qkv_RE = self.qkv(self.norm_attention(x_RD))
        sequences = int(slots_R[-1]) // width + 1
        padded = qkv_RE.new_zeros(sequences * width, qkv_RE.shape[1]).index_copy(0, slots_R, qkv_RE)
        q, k, v = (t.transpose(1, 2) for t in padded.view(sequences, width, 3, self.heads, -1).unbind(2))
        # Padding stands at the end, so a causal mask hides it from every real row.
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._finish(x_RD, mixed.transpose(1, 2).flatten(2).flatten(0, 1)[slots_R])

    def step(self, x_UWD: Tensor, cache: Cache, parents_UW: Tensor, padding_UL: Tensor) -> tuple[Tensor, Cache]:
        """One new position a beam: queries of all beams of a user against that user's one set of keys."""
        q_UWHK, k, v = self._project(x_UWD)
        cache = cache.reordered(parents_UW, k, v)
        own_k, own_v = cache.own_keys_UWTHK, cache.own_values_UWTHK
        assert own_k is not None
        assert own_v is not None
        q_UHWK = q_UWHK.transpose(1, 2) / math.sqrt(q_UWHK.shape[-1])
        shared_UHWL = q_UHWK @ cache.keys_UHLK.transpose(2, 3)
        shared_UHWL.masked_fill_(padding_UL[:, None, None, :], -torch.inf)
        own_UHWT = torch.einsum("uhwk,uwthk->uhwt", q_UHWK, own_k)
        weights = torch.cat([shared_UHWL, own_UHWT], dim=-1).softmax(-1)
        length = shared_UHWL.shape[-1]
        mixed_UHWK = weights[..., :length] @ cache.values_UHLK
        mixed_UHWK += torch.einsum("uhwt,uwthk->uhwk", weights[..., length:], own_v)
        return self._finish(x_UWD, mixed_UHWK.transpose(1, 2).flatten(2)), cache

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(self.norm_attention(x))
        q, k, v = qkv.view(*x.shape[:-1], 3, self.heads, -1).unbind(-3)
        return q, k, v


class TokenNetwork(nn.Module):
    """What networks over tokens have in common: token and depth embeddings, a last LayerNorm, tied logits."""

    def __init__(self, shape: NetworkShape, parts: Ragged | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.token = TokenTable(shape.vocabulary, shape.width, parts, shape.cosine_temperature)
        self.depth = nn.Embedding(shape.depths + 1, shape.width)
        self.norm = nn.LayerNorm(shape.width)

    def reset(self, generator: torch.Generator) -> None:
        """Fresh weights."""
        reset(self, sum(isinstance(module, Layer) for module in self.modules()), generator)
        self.token.clear_own()

    def logits(self, x: Tensor, vectors: TokenVectors) -> Tensor:
        """Scores of all tokens for rows that will be predicted from."""
        return F.linear(self.norm(x), vectors.score_VD)

    def _stepped(self, blocks: nn.ModuleList, x_UWD: Tensor, state: State, parents_UW: Tensor) -> tuple[State, Tensor]:
        """One new position a beam through blocks with caches."""
        caches = []
        for block, old in zip(blocks, state.caches):
            assert isinstance(block, Block)
            x_UWD, cache = block.step(x_UWD, old, parents_UW, state.padding_UL)
            caches.append(cache)
        return replace(state, caches=tuple(caches), depth=state.depth + 1), self.logits(x_UWD, state.vectors)


class CausalTransformer(TokenNetwork):
    """Blocks over all tokens of all items."""

    def __init__(self, shape: NetworkShape, parts: Ragged | None = None) -> None:
        super().__init__(shape, parts)
        self.place = nn.Embedding(shape.history + 1, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))

    def predict(self, batch: TokenBatch, nudges_RD: Tensor | None = None) -> Predictions:
        """Hidden rows for every token of every item but the first (methods 6.8, N4)."""
        tokens, places, depths = (torch.from_numpy(a) for a in (batch.tokens_BL, batch.places_BL, batch.depths_BL))
        extra_BLD = None if nudges_RD is None else padded(batch, nudges_RD)[:, :-1]
        vectors = self.token.vectors()
        hidden_BLD = self.hidden(vectors, tokens[:, :-1], places[:, :-1], depths[:, :-1], extra_BLD)
        index = torch.from_numpy(np.flatnonzero((batch.places_BL[:, 1:] >= 1).ravel()))
        return Predictions(hidden_BLD.flatten(0, 1)[index], tokens[:, 1:].flatten()[index], vectors)

    def hidden(
        self,
        vectors: TokenVectors,
        tokens_BL: Tensor,
        places_BL: Tensor,
        depths_BL: Tensor,
        extra_BLD: Tensor | None = None,
    ) -> Tensor:
        """Last hidden rows of whole sequences, before the last norm. Padding stands at the end of a row."""
        x = self._embed(vectors, tokens_BL, places_BL, depths_BL)
        x = x if extra_BLD is None else x + extra_BLD
        for block in self.blocks:
            x, _ = block(x)
        return x

    def start(self, histories: TokenBatch) -> tuple[State, Tensor]:
        """Read histories once; the state for beams, and the scores of the next item's first token (U, V)."""
        arrays = (histories.tokens_BL, histories.places_BL, histories.depths_BL, histories.lengths_B)
        tokens_UL, places_UL, depths_UL, lengths_U = (torch.from_numpy(a) for a in arrays)
        vectors = self.token.vectors()
        x = self._embed(vectors, tokens_UL, places_UL, depths_UL)
        caches = []
        for block in self.blocks:
            x, cache = block(x)
            caches.append(cache)
        users = torch.arange(len(lengths_U))
        padding = torch.arange(tokens_UL.shape[1])[None, :] >= lengths_U[:, None]
        places = places_UL[users, lengths_U - 1] + 1
        return State(tuple(caches), padding, places, vectors), self.logits(x[users, lengths_U - 1], vectors)

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        """One more token for every beam: the new state, and the scores of what follows (U, W, V)."""
        places = state.places_U[:, None].expand_as(tokens_UW)
        x = self._embed(state.vectors, tokens_UW, places, torch.full_like(tokens_UW, state.depth))
        return self._stepped(self.blocks, x, state, parents_UW)

    def _embed(self, vectors: TokenVectors, tokens: Tensor, places: Tensor, depths: Tensor) -> Tensor:
        x = F.embedding(tokens, vectors.enter_VD) + self.place(places) + self.depth(depths)
        return dropout(x, self.shape.embedding_dropout, self.training)


def padded(batch: TokenBatch, rows_RD: Tensor) -> Tensor:
    """A row for each real token of a batch, put where the token stands; zeros elsewhere. Shape: (B, L, D)."""
    slots_R = torch.from_numpy(np.flatnonzero(batch.tokens_BL != PAD))
    out = rows_RD.new_zeros(batch.tokens_BL.size, rows_RD.shape[1]).index_copy(0, slots_R, rows_RD)
    return out.view(*batch.tokens_BL.shape, -1)


def reset(network: nn.Module, layers: int, generator: torch.Generator) -> None:
    """Small normal weights; the two projections into the residual stream are scaled down by depth (GPT-2)."""
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            into_stream = name.endswith(("out.weight", "down.weight"))
            std = 0.02 / math.sqrt(2 * layers) if into_stream else 0.02
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
