"""Transformer layers shared by encoders and generators: blocks that run on whole sequences or step by step.

Pre-LayerNorm and GELU. `Block` has causal attention; `NearBlock` adds a learnt bias per head and distance;
`MixingBlock` has weights that depend only on the distance, not on the items. Knows only vectors: no tokens, items or
optimiser. Shapes: B batch, L length, D width, H heads, K head width, R rows, U users, W beams, T steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.attention import Empty, attend, attend_packed
from capsid.base.blocks.packed import Packed, Spread, dropout


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """Sizes that fix the parameters of a stack of blocks, and dropout rates. `history` is the longest sequence.

    `dropout` applies to what a block adds to its input; attention weights and hidden units have their own rates.
    """

    layers: int
    heads: int
    width: int
    feedforward: int
    history: int
    dropout: float
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0


@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer: those of the history, shared by all beams, and those of each beam's positions."""

    keys_UHLK: Tensor
    values_UHLK: Tensor
    own_keys_UWTHK: Tensor | None = None
    own_values_UWTHK: Tensor | None = None

    def reordered(self, parents_UW: Tensor, key_UWHK: Tensor, value_UWHK: Tensor) -> Cache:
        """Reorder the beams' positions by parent and append the new one; the history does not change."""
        keys, values = key_UWHK[:, :, None], value_UWHK[:, :, None]
        if self.own_keys_UWTHK is not None and self.own_values_UWTHK is not None:
            users = torch.arange(len(parents_UW), device=parents_UW.device)[:, None]
            keys = torch.cat([self.own_keys_UWTHK[users, parents_UW], keys], dim=2)
            values = torch.cat([self.own_values_UWTHK[users, parents_UW], values], dim=2)
        return replace(self, own_keys_UWTHK=keys, own_values_UWTHK=values)


class Layer(nn.Module):
    """Common part of all blocks: norms, output projection and feed-forward net, with residual connections."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.attention_dropout = shape.attention_dropout
        self.hidden_dropout = shape.hidden_dropout
        self.norm_attention = nn.LayerNorm(shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_feedforward = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.feedforward)
        self.down = nn.Linear(shape.feedforward, shape.width)

    def _finish(self, x: Tensor, mixed: Tensor, among: Spread | None = None) -> Tensor:
        x = x + dropout(self.out(mixed), self.dropout, self.training, among)
        hidden = dropout(F.gelu(self.up(self.norm_feedforward(x))), self.hidden_dropout, self.training, among)
        return x + dropout(self.down(hidden), self.dropout, self.training, among)


class Block(Layer):
    """Attention and feed-forward, each on a normalised input."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)

    def forward(
        self, x_BLD: Tensor, padding_BL: Tensor | None = None, empty_B: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Run whole sequences under a causal mask; also returns their keys and values.

        With `padding` (True at padded positions), attention is bidirectional: every position sees all real ones.
        With `empty`, that many zero positions are put before each sequence, and all its positions see them.
        """
        q, k, v = (t.transpose(1, 2) for t in self._project(x_BLD))
        seen = None if padding_BL is None else ~padding_BL[:, None, None, :]
        if empty_B is not None:
            k, v = self._after_empty(k, v, empty_B)
            seen = after_empty(torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(), empty_B)[:, None]
        mixed = self._attend(q, k, v, seen)
        return self._finish(x_BLD, mixed.transpose(1, 2).flatten(2)), Cache(k, v)

    def packed(self, x_RD: Tensor, packed: Packed, empty_B: Tensor | None = None) -> Tensor:
        """As `forward` on padded sequences, for their real rows alone; the same elements are dropped."""
        empty = None
        if empty_B is not None:
            _, key_1HK, value_1HK = self._project(x_RD.new_zeros(1, x_RD.shape[1]))
            empty = Empty(key_1HK, value_1HK, empty_B)
        return self._packed(x_RD, packed, empty=empty)

    def ragged(self, x_RD: Tensor, own: Spread) -> Tensor:
        """Run short sequences whose rows are concatenated without padding: linear layers see no padding."""
        q, k, v = (own.padded(t).transpose(1, 2) for t in self._project(x_RD))
        # Padding is at the end, so the causal mask hides it from every real row.
        mixed = self._attend(q, k, v)
        return self._finish(x_RD, own.rows(mixed.transpose(1, 2).flatten(2)))

    def step(
        self, x_UWD: Tensor, cache: Cache, parents_UW: Tensor, padding_UL: Tensor, live: Spread | None = None
    ) -> tuple[Tensor, Cache]:
        """Add one position per beam: the queries of all beams of a user share that user's history keys.

        With `live`, linear layers see only these beams, and the rows of the others are 0.
        """
        x = x_UWD if live is None else live.rows(x_UWD)
        q_UWHK, k, v = (t if live is None else live.padded(t) for t in self._project(x))
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
        mixed_UWD = mixed_UHWK.transpose(1, 2).flatten(2)
        if live is None:
            return self._finish(x, mixed_UWD), cache
        return live.padded(self._finish(x, live.rows(mixed_UWD))), cache

    def _after_empty(self, k_BHLK: Tensor, v_BHLK: Tensor, empty_B: Tensor) -> tuple[Tensor, Tensor]:
        """Prepend the keys and values of as many empty positions as the largest of `empty_B`."""
        _, key_1HK, value_1HK = self._project(k_BHLK.new_zeros(1, self.out.in_features))
        sizes = (len(empty_B), -1, int(empty_B.max()), -1)
        k, v = (
            torch.cat([t.transpose(0, 1)[None].expand(*sizes), own], 2)
            for t, own in ((key_1HK, k_BHLK), (value_1HK, v_BHLK))
        )
        return k, v

    def _attend(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention under a causal mask, or under `mask`: True at visible positions, or numbers added to scores."""
        root, rate = math.sqrt(q_BHLK.shape[-1]), self.attention_dropout
        return attend(q_BHLK, k_BHLK, v_BHLK, mask, root=root, rate=rate, training=self.training)

    def _packed(
        self, x_RD: Tensor, packed: Packed, *, empty: Empty | None = None, near_HLL: Tensor | None = None
    ) -> Tensor:
        q, k, v = self._project(x_RD)
        root, rate = math.sqrt(q.shape[-1]), self.attention_dropout
        mixed_RD = attend_packed(
            q, k, v, packed, empty, near_HLL=near_HLL, root=root, rate=rate, training=self.training
        )
        return self._finish(x_RD, mixed_RD, packed.among)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(self.norm_attention(x))
        q, k, v = qkv.view(*x.shape[:-1], 3, self.heads, -1).unbind(-3)
        return q, k, v


class SasRecBlock(Block):
    """The block of SASRec (Kang & McAuley 2018, arXiv 1808.09781) as in its authors' code.

    Only queries are normalised before attention; the residual stream itself is normalised before the feed-forward net.
    """

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = x.shape[-1]
        q = F.linear(self.norm_attention(x), self.qkv.weight[:width], self.qkv.bias[:width])
        kv = F.linear(x, self.qkv.weight[width:], self.qkv.bias[width:])
        k, v = kv.view(*x.shape[:-1], 2, self.heads, -1).unbind(-3)
        return q.view(k.shape), k, v

    def _finish(self, x: Tensor, mixed: Tensor, among: Spread | None = None) -> Tensor:
        x = self.norm_feedforward(x + self.out(mixed))
        hidden = dropout(F.relu(self.up(x)), self.hidden_dropout, self.training, among)
        return x + dropout(self.down(hidden), self.dropout, self.training, among)


def after_empty(seen_BLM: Tensor, empty_B: Tensor) -> Tensor:
    """The mask of visible positions with columns for empty positions in front; a sequence sees only its own ones."""
    columns = int(empty_B.max())
    empty_BLP = (torch.arange(columns) < empty_B[:, None])[:, None].expand(-1, seen_BLM.shape[-2], -1)
    return torch.cat([empty_BLP, seen_BLM.expand(len(empty_B), -1, -1)], -1)


def reset(network: nn.Module, layers: int, generator: torch.Generator, initial: str = "small") -> None:
    """Initialise all weights; biases are 0.

    "small": normal with standard deviation 0.02; projections into the residual stream are scaled by depth (GPT-2).
    "xavier": normal with a standard deviation set by the matrix shape (Glorot & Bengio 2010).
    """
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2 and initial == "xavier":
            nn.init.xavier_normal_(parameter, generator=generator)
        elif parameter.dim() == 2:
            into_stream = name.endswith(("out.weight", "down.weight"))
            std = 0.02 / math.sqrt(2 * layers) if into_stream else 0.02
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class Distances(nn.Module):
    """A learnt number per head and distance."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.by_distance = nn.Parameter(torch.zeros(shape.heads, shape.history + 1))

    def start(self) -> None:
        """Start heads with different reach: each slope is half the one before, the last is 0. These are the slopes of
        Press et al. 2022 (arXiv 2108.12409), which are not learnt there."""
        heads, distances = self.by_distance.shape
        slopes_H = torch.tensor([0.5**head for head in range(heads - 1)] + [0.0])
        with torch.no_grad():
            self.by_distance.copy_(-slopes_H[:, None] * torch.arange(distances))

    def forward(self, length: int) -> Tensor:
        """Every position's numbers for itself and earlier ones; minus infinity for later ones. Shape: (H, L, L)."""
        place_L = torch.arange(length)
        back_LL = place_L[:, None] - place_L[None, :]
        return self.by_distance[:, back_LL.clamp_min(0)].masked_fill(back_LL < 0, -torch.inf)


class NearBlock(Block):
    """Attention with a bias by distance."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.distances = Distances(shape)

    def forward(
        self, x_BLD: Tensor, padding_BL: Tensor | None = None, empty_B: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Run whole sequences. Padding is at the end, where no real position sees it; `empty` is ignored."""
        q, k, v = (t.transpose(1, 2) for t in self._project(x_BLD))
        near_BHLL = self.distances(x_BLD.shape[1]).expand(len(x_BLD), -1, -1, -1)
        mixed = self._attend(q, k, v, near_BHLL)
        return self._finish(x_BLD, mixed.transpose(1, 2).flatten(2)), Cache(k, v)

    def packed(self, x_RD: Tensor, packed: Packed, empty_B: Tensor | None = None) -> Tensor:
        """As `forward` on padded sequences, for their real rows alone; the same elements are dropped.

        `empty` is ignored.
        """
        return self._packed(x_RD, packed, near_HLL=self.distances(packed.among.width))


class MixingBlock(Layer):
    """Every head is a weighted mean of this and earlier positions, with the same weights for every history."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        self.value = nn.Linear(shape.width, shape.width)
        self.distances = Distances(shape)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, None]:
        """Run whole sequences; there is no cache."""
        mixed_BLHK = _mixed(self._weights(x_BLD.shape[1]), self._values(x_BLD))
        return self._finish(x_BLD, mixed_BLHK.flatten(2)), None

    def packed(self, x_RD: Tensor, packed: Packed, empty_B: Tensor | None = None) -> Tensor:
        """As `forward` on padded sequences, for their real rows alone; the same elements are dropped.

        `empty` is ignored.
        """
        values_RHK, weights_HLM = self._values(x_RD), self._weights(packed.among.width)
        mixed = []
        for group in packed.groups:
            # What a position sees does not depend on the length of its sequence.
            near_HLM = weights_HLM[:, : group.own.width, : group.own.width]
            mixed.append(group.own.rows(_mixed(near_HLM, group.own.padded(values_RHK[group.rows]))))
        return self._finish(x_RD, torch.cat(mixed).flatten(1), packed.among)

    def _values(self, x: Tensor) -> Tensor:
        return self.value(self.norm_attention(x)).unflatten(-1, (self.heads, -1))

    def _weights(self, length: int) -> Tensor:
        """Weights of this and earlier positions. Shape: (H, L, L)."""
        return dropout(self.distances(length).softmax(-1), self.attention_dropout, self.training)


def _mixed(weights_HLM: Tensor, values_BMHK: Tensor) -> Tensor:
    return torch.einsum("hlm,bmhk->blhk", weights_HLM, values_BMHK)
