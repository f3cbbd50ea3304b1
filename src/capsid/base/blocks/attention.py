"""Attention: of padded sequences, and of the real rows of sequences alone. Knows only queries, keys and values.

Attention of real rows equals that of padded sequences, and drops the same weights. Shapes: B batch, H heads, L queries,
M keys, K head width, R rows, G sequences of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from capsid.base.blocks.packed import Group, Packed, drops, kept, random_bytes


def attend(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Tensor | None, *, root: float, rate: float, training: bool
) -> Tensor:
    """Attention with scores divided by `root` and a share `rate` of the weights dropped in training.

    `mask` is True at visible positions, or holds numbers that are added to the scores; without it attention is causal.
    """
    if not drops(rate, training):
        return _attended(q_BHLK, k_BHMK, v_BHMK, mask, None, root)
    factors_BHLM = kept(random_bytes((*q_BHLK.shape[:3], k_BHMK.shape[2])), rate)
    return _attended(q_BHLK, k_BHMK, v_BHMK, mask, factors_BHLM, root)


@dataclass(frozen=True, eq=False)
class Empty:
    """Empty positions in front of sequences, which all their positions see: `count_B` for each sequence.

    They are all alike, so one key and one value stand for those of a sequence, with the weight of all of them.
    """

    key_1HK: Tensor
    value_1HK: Tensor
    count_B: Tensor

    @property
    def most(self) -> int:
        """How many columns they have in front of padded sequences."""
        return int(self.count_B.max())


def attend_packed(
    q_RHK: Tensor,
    k_RHK: Tensor,
    v_RHK: Tensor,
    packed: Packed,
    empty: Empty | None,
    *,
    near_HLL: Tensor | None = None,
    root: float,
    rate: float,
    training: bool,
) -> Tensor:
    """Causal attention of the rows of sequences. Shape: (R, D).

    `near` is added to the scores, and hides later positions. Empty positions have no distance, so it excludes them.
    """
    assert near_HLL is None or empty is None
    among, heads = packed.among, q_RHK.shape[1]
    bytes_BHLM = None
    if drops(rate, training):
        columns = among.width + (0 if empty is None else empty.most)
        bytes_BHLM = random_bytes((among.sequences, heads, among.width, columns))
    mixed = []
    for group in packed.groups:
        q, k, v = (group.own.padded(t[group.rows]).transpose(1, 2) for t in (q_RHK, k_RHK, v_RHK))
        mask = None
        if empty is not None:
            k, v, mask = _in_front(k, v, empty, group.numbers_G)
        if near_HLL is not None:
            mask = near_HLL[:, : group.own.width, : group.own.width].expand(len(q), -1, -1, -1)
        factors = None if bytes_BHLM is None else _factors(bytes_BHLM, group, empty, rate)
        mixed.append(group.own.rows(_attended(q, k, v, mask, factors, root).transpose(1, 2).flatten(2)))
    return torch.cat(mixed)


def _attended(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, mask: Tensor | None, factors_BHLM: Tensor | None, root: float
) -> Tensor:
    """Attention whose weights are multiplied by `factors`, if there are any."""
    if factors_BHLM is None:
        return F.scaled_dot_product_attention(
            q_BHLK, k_BHMK, v_BHMK, attn_mask=mask, is_causal=mask is None, scale=1 / root
        )
    # torch's attention would draw one random number per element for its dropout.
    scores_BHLM = (q_BHLK / root) @ k_BHMK.transpose(2, 3)
    if mask is None:
        mask = torch.ones(scores_BHLM.shape[-2:], dtype=torch.bool, device=scores_BHLM.device).tril()
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)
    return ((scores_BHLM + mask).softmax(-1) * factors_BHLM) @ v_BHMK


def _in_front(k_GHLK: Tensor, v_GHLK: Tensor, empty: Empty, numbers_G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values with those of the empty positions in front, and the mask: the log of their number, then causal.

    Shape of the mask: (G, 1, L, 1 + L).
    """
    sequences, length = len(k_GHLK), k_GHLK.shape[2]
    k, v = (
        torch.cat([own_1HK[:, :, None].expand(sequences, -1, -1, -1), rows], 2)
        for own_1HK, rows in ((empty.key_1HK, k_GHLK), (empty.value_1HK, v_GHLK))
    )
    later_LL = torch.ones(length, length, dtype=torch.bool).triu(1)
    causal_LL = torch.zeros(length, length).masked_fill(later_LL, -torch.inf)
    count_G111 = empty.count_B[numbers_G][:, None, None, None].to(k.dtype).log()
    mask = torch.cat([count_G111.expand(-1, 1, length, 1), causal_LL.expand(sequences, 1, -1, -1)], 3)
    return k, v, mask


def _factors(bytes_BHLM: Tensor, group: Group, empty: Empty | None, rate: float) -> Tensor:
    """The factors of a group's weights, from the decisions for all weights of the padded sequences."""
    width, most = group.own.width, 0 if empty is None else empty.most
    bytes_GHLM = bytes_BHLM[:, :, :width, : most + width][group.numbers_G]
    factors_GHLM = kept(bytes_GHLM, rate)
    if empty is None:
        return factors_GHLM
    # Weights of a sequence's empty positions are equal: dropping some of them leaves that share of their sum.
    count_G111 = empty.count_B[group.numbers_G][:, None, None, None]
    there_G11M = torch.arange(most) < count_G111
    share_GHL1 = (factors_GHLM[..., :most] * there_G11M).sum(-1, keepdim=True) / count_G111.clamp_min(1)
    return torch.cat([share_GHL1, factors_GHLM[..., most:]], 3)
