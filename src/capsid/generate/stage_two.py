"""Stage 2: the generator learns together with adapters of the routing and a bias of the merge gate (paper, final
objective; methods 6.6).

Ids are hard, so the next-token loss reaches the routing through the inputs alone: an input is the embedding of the
item's own token plus the routed mixture of all tokens' embeddings minus its own value, which is zero and has a
gradient (methods 6.6, G3). Targets stay hard. Capsule centres and the gate's weights do not learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.errors import ConfigError
from capsid.ids.layout import TokenLayout
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting
from capsid.tokenize.item_tokenizer import ItemTokenizer


@dataclass(kw_only=True, frozen=True)
class RoutingAdapters:
    """What learns beside the generator during the first `share` of a phase's steps, in `refreshes` equal parts.

    After each part at most a share `churn` of the items gets new codes; then the routing is frozen.
    """

    kind: ClassVar[str] = "routing-adapters"
    rank: int = setting(8, "Rank of the adapter matrix of each depth.", least=1)
    gate_bias: bool = setting(True, "Whether the bias of the merge gate learns too.")
    share: float = setting(1 / 3, "Share of the phase's steps in which the routing adapts.", above=0, below=1)
    refreshes: int = setting(1, "How many times items get new codes, evenly spread over those steps.", least=1)
    churn: float = setting(0.05, "Share of the items that a refresh may give new codes, at most.", least=0, most=1)
    merge_weight: float = setting(0.2, "Weight of the merge gate's loss.", least=0)

    def __post_init__(self) -> None:
        check_settings(self)


class Companion(nn.Module):
    """The adapters and the gate's bias; with a batch's items, what they add to inputs and loss."""

    def __init__(self, settings: RoutingAdapters, tokenizer: ItemTokenizer, *, seed: int) -> None:
        super().__init__()
        if not hasattr(tokenizer.tokenizer_, "begin_adapting") or tokenizer.vectors_ is None:
            raise ConfigError(
                f"the tokenizer {tokenizer.tokenizer_.kind!r} has no routing to adapt", hint="drop adapt from the phase"
            )
        self.adapters = tokenizer.tokenizer_.begin_adapting(settings.rank, seed=seed)
        self.gate: _Gate | None = None
        if settings.gate_bias and len(tokenizer.ids.layout.merges):
            self.gate = _Gate(tokenizer.merges_, settings.merge_weight)
        # Frozen parts are looked at, not owned: they must not enter checkpoints.
        self._seen = (tokenizer.tokenizer_, tokenizer.ids, tokenizer.vectors_)

    @property
    def bias(self) -> float:
        """What the gate's bias has become."""
        return float(self.gate.bias.detach()) if self.gate is not None else 0.0

    def forward(self, token_VD: Tensor, items: Ragged) -> tuple[Tensor, Tensor]:
        """A zero with a gradient for every closed token of every item in turn, and the terms of the tokenizer's side.

        Shapes: (tokens, D), ().
        """
        tokenizer, ids, vectors_NI = self._seen
        token_VD = token_VD.detach()
        unique_U, which = np.unique(items.values, return_inverse=True)
        x_UI = torch.from_numpy(np.array(vectors_NI[unique_U], dtype=np.float32))
        # Late: recipes name this part, and who serves a recipe loads no training code.
        from capsid.tokenize.capsules.stage_one import routing_loss

        loss, depths = routing_loss(tokenizer, tokenizer.network_, x_UI, 1.0)
        tokens = ids.closed.take(unique_U)
        soft = [
            depth.routed.weights_BK @ token_VD[base : base + size]
            for depth, base, size in zip(depths, ids.layout.bases, ids.layout.sizes)
        ]
        nudges_RD = _per_token(torch.stack([s - s.detach() for s in soft], 1), tokens, ids.layout)
        if self.gate is not None:
            nudges_RD = nudges_RD + self.gate.nudges(token_VD, tokens, ids.layout)
            loss = loss + self.gate.loss()
        rows = Ragged.ranges(tokens.offsets[which], tokens.lengths[which]).values
        return nudges_RD[torch.from_numpy(rows)], loss


class _Gate(nn.Module):
    """The learnable scalar on the merge gate: one number, shared by all pairs."""

    def __init__(self, merges: Any, weight: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        pairs = merges.candidates_
        chosen = np.flatnonzero(pairs.merge >= 0)
        own = merges.bias
        self._logit_M = torch.from_numpy(pairs.logit[chosen[np.argsort(pairs.merge[chosen])]] + own).float()
        self._logit_C = torch.from_numpy(pairs.logit + own).float()
        self._target_C = torch.from_numpy(pairs.target.astype(np.float32))
        self._weight = weight

    def nudges(self, token_VD: Tensor, tokens: Ragged, layout: TokenLayout) -> Tensor:
        """At a merged token, the way from its parts to itself times the gate's slope. Shape: (tokens, D)."""
        merges = layout.merges
        number_R = torch.from_numpy(tokens.values.astype(np.int64) - merges.first)
        place_R = (number_R >= 0).nonzero()[:, 0]
        number_R = number_R[place_R]
        left, right = (torch.tensor(c)[number_R] for c in (merges.left, merges.right))
        way_RD = token_VD[merges.first + number_R] - token_VD[left] - token_VD[right]
        open_R = torch.sigmoid(self._logit_M[number_R] + self.bias)
        zero_R = open_R - open_R.detach()
        return torch.zeros(len(tokens.values), token_VD.shape[1]).index_add(0, place_R, zero_R[:, None] * way_RD)

    def loss(self) -> Tensor:
        """How far the shifted gate is from what the merge scores ask for (methods 6.7, B5)."""
        return self._weight * F.binary_cross_entropy_with_logits(self._logit_C + self.bias, self._target_C)


def _per_token(depths_ULD: Tensor, tokens: Ragged, layout: TokenLayout) -> Tensor:
    """The sum over the depths that each token stands for; none for suffix and end tokens. Shape: (tokens, D)."""
    running_ULD = F.pad(depths_ULD.cumsum(1), (0, 0, 1, 0))
    item_R = tokens.row_numbers
    spans_R = code_spans(layout)[tokens.values]
    start_R = np.where(spans_R > 0, layout.depth_of[tokens.values], 0)
    return running_ULD[item_R, start_R + spans_R] - running_ULD[item_R, start_R]


def code_spans(layout: TokenLayout) -> np.ndarray:
    """How many codes every token stands for. Shape: (vocabulary,)."""
    out = ((layout.depth_of >= 0) & (layout.depth_of < len(layout.sizes))).astype(np.int64)
    if len(layout.merges):
        out[layout.merges.first :] = layout.merges.members.lengths
    return out
