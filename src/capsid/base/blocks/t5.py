"""Layers of T5 (Raffel et al. 2020, arXiv 1910.10683): RMSNorm, relative position buckets, scores that are not scaled.

An encoder block reads whole sequences. A decoder block reads short sequences that attend to encoded ones, whole in
training and one position at a time in search. No layer has biases. Knows only vectors. Shapes: B encoded sequences,
L their length, Q queries of an encoded sequence, S short sequences, T their length, R rows without padding, otherwise
as in `capsid.base.blocks.layers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.attention import attend
from capsid.base.blocks.layers import Cache
from capsid.base.blocks.packed import Spread, dropout

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class T5Shape:
    """Sizes of a block. `gated`: the feed-forward net multiplies two projections, otherwise it is a plain ReLU net.

    Distances between positions fall into `buckets`; those beyond `reach` share one.
    """

    width: int
    heads: int
    head_width: int
    feedforward: int
    gated: bool
    buckets: int
    reach: int
    dropout: float
    attention_dropout: float
    hidden_dropout: float


class RelativePositions(nn.Module):
    """A learnt number per head and bucket of distances, added to attention scores; all layers of a stack share it."""

    def __init__(self, shape: T5Shape, *, both_ways: bool) -> None:
        super().__init__()
        self.buckets, self.reach, self.both_ways = shape.buckets, shape.reach, both_ways
        self.weight = nn.Parameter(torch.zeros(shape.buckets, shape.heads))

    def forward(self, length: int) -> Tensor:
        """For every query and key of a sequence. Shape: (H, L, L)."""
        values_HE = self._at(torch.arange(1 - length, length, device=self.weight.device))
        # The keys of query i are at distances -i to L-1-i: a window of the distances, and windows move backwards.
        return values_HE.unfold(1, length, 1).flip(1)

    def last(self, length: int) -> Tensor:
        """For the last query alone. Shape: (H, L)."""
        return self._at(torch.arange(1 - length, 1, device=self.weight.device))

    def _at(self, distance_E: Tensor) -> Tensor:
        return F.embedding(bucket_of(distance_E, self.buckets, self.reach, both_ways=self.both_ways), self.weight).T


def bucket_of(distance_E: Tensor, buckets: int, reach: int, *, both_ways: bool) -> Tensor:
    """The bucket of every distance (key minus query).

    The first half of the buckets holds one distance each, the other half ranges that grow logarithmically up to
    `reach`. With `both_ways` later keys have half of all buckets; otherwise they count as distance 0.
    """
    first_E = torch.zeros_like(distance_E)
    if both_ways:
        buckets //= 2
        first_E, back_E = (distance_E > 0) * buckets, distance_E.abs()
    else:
        back_E = -distance_E.clamp_max(0)
    exact = buckets // 2
    share_E = torch.log(back_E.clamp_min(1).float() / exact) / math.log(reach / exact)
    far_E = (exact + (share_E * (buckets - exact)).long()).clamp_max(buckets - 1)
    return first_E + torch.where(back_E < exact, back_E, far_E)


class FeedForward(nn.Module):
    """ReLU, or GELU times a second projection, with a residual connection."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.dropout, self.hidden_dropout = shape.dropout, shape.hidden_dropout
        self.norm = nn.RMSNorm(shape.width, eps=EPS)
        self.gate = nn.Linear(shape.width, shape.feedforward, bias=False) if shape.gated else None
        self.up = nn.Linear(shape.width, shape.feedforward, bias=False)
        self.down = nn.Linear(shape.feedforward, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of any shape."""
        normed = self.norm(x)
        hidden = self.up(normed)
        hidden = F.relu(hidden) if self.gate is None else F.gelu(self.gate(normed), approximate="tanh") * hidden
        hidden = dropout(hidden, self.hidden_dropout, self.training)
        return x + dropout(self.down(hidden), self.dropout, self.training)


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each on a normalised input."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.head_width
        self.norm_attention = nn.RMSNorm(shape.width, eps=EPS)
        self.qkv = nn.Linear(shape.width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, shape.width, bias=False)
        self.feedforward = FeedForward(shape)

    def forward(self, x_BLD: Tensor, added_BHLL: Tensor) -> Tensor:
        """Whole sequences; `added` is added to the scores."""
        q, k, v = (t.transpose(1, 2) for t in self._project(x_BLD))
        return self.feedforward(self._joined(x_BLD, self._attend(q, k, v, added_BHLL), self.out))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows. Shape of each: (..., H, K)."""
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.shape.heads, -1)).unbind(-3)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attention, heads side by side. Shape: (B, L, H * K)."""
        mixed = attend(q, k, v, mask, root=1.0, rate=self.shape.attention_dropout, training=self.training)
        return mixed.transpose(1, 2).flatten(2)

    def _joined(self, x: Tensor, mixed: Tensor, out: nn.Linear) -> Tensor:
        return x + dropout(out(mixed), self.shape.dropout, self.training)


class DecoderBlock(EncoderBlock):
    """An encoder block over the tokens of an item, with cross-attention to an encoded sequence before feed-forward."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__(shape)
        inner = shape.heads * shape.head_width
        self.norm_cross = nn.RMSNorm(shape.width, eps=EPS)
        self.query = nn.Linear(shape.width, inner, bias=False)
        self.key_value = nn.Linear(shape.width, 2 * inner, bias=False)
        self.cross_out = nn.Linear(inner, shape.width, bias=False)

    def keys(self, encoded_BLD: Tensor) -> Cache:
        """Keys and values of encoded sequences, computed once for all that attends to them."""
        k, v = self.key_value(encoded_BLD).unflatten(-1, (2, self.shape.heads, -1)).unbind(-3)
        return Cache(k.transpose(1, 2), v.transpose(1, 2))

    def whole(
        self, x_RD: Tensor, own: Spread, crossing: Spread, cache: Cache, added_HTT: Tensor, seen_BQL: Tensor
    ) -> Tensor:
        """All rows of short sequences. `own` places them in these, `crossing` in the encoded sequence of each.

        `added` is added to the scores inside a short sequence; `seen` marks what each query sees of the encoded one.
        """
        q, k, v = (own.padded(t).transpose(1, 2) for t in self._project(x_RD))
        x_RD = self._joined(x_RD, own.rows(self._attend(q, k, v, added_HTT[None])), self.out)
        q_BHQK = crossing.padded(self._query(x_RD)).transpose(1, 2)
        mixed = self._attend(q_BHQK, cache.keys_UHLK, cache.values_UHLK, seen_BQL[:, None])
        return self.feedforward(self._joined(x_RD, crossing.rows(mixed), self.cross_out))

    def step(
        self, x_UWD: Tensor, cache: Cache, parents_UW: Tensor, added_HT: Tensor, seen_UL: Tensor
    ) -> tuple[Tensor, Cache]:
        """Add one position per beam; all beams of a user share the keys of that user's encoded sequence."""
        q_UWHK, k, v = self._project(x_UWD)
        cache = cache.reordered(parents_UW, k, v)
        own_k, own_v = cache.own_keys_UWTHK, cache.own_values_UWTHK
        assert own_k is not None
        assert own_v is not None
        weights_UWHT = (torch.einsum("uwhk,uwthk->uwht", q_UWHK, own_k) + added_HT).softmax(-1)
        mixed_UWHK = torch.einsum("uwht,uwthk->uwhk", weights_UWHT, own_v)
        x_UWD = self._joined(x_UWD, mixed_UWHK.flatten(2), self.out)
        q_UHWK = self._query(x_UWD).transpose(1, 2)
        mixed = self._attend(q_UHWK, cache.keys_UHLK, cache.values_UHLK, seen_UL[:, None, None])
        return self.feedforward(self._joined(x_UWD, mixed, self.cross_out)), cache

    def _query(self, x: Tensor) -> Tensor:
        return self.query(self.norm_cross(x)).unflatten(-1, (self.shape.heads, -1))


def reset_t5(network: nn.Module, shape: T5Shape, generator: torch.Generator) -> None:
    """T5's own fresh weights: a spread by the number of inputs, and 1 for token embeddings.

    Queries are smaller by the root of the head width, because scores are not divided by it.
    """
    inputs = {"out": shape.heads * shape.head_width, "cross_out": shape.heads * shape.head_width}
    inputs |= {"down": shape.feedforward, "query": shape.width * shape.head_width, "token": 1}
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            part = name.split(".")[-2]
            nn.init.normal_(parameter, std=inputs.get(part, shape.width) ** -0.5, generator=generator)
            if part == "qkv":
                with torch.no_grad():
                    parameter[: shape.heads * shape.head_width] *= shape.head_width**-0.5
