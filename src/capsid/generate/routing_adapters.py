"""Stage 2 as a loss term: routing adapters and a bias of the merge gate that are trained with the generator.

Ids are hard, so the next-token loss reaches the routing only through the inputs (CapsID, arXiv 2605.05096, Eq. 10): an
input is the embedding of the item's own token plus the routed mixture of all tokens' embeddings minus
the same mixture without gradient, so it adds zero but has a gradient. Targets stay hard. Centres and the gate's weights
are frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.generate.backbone import Backbone
from capsid.generate.soft_tokens import per_token
from capsid.generate.terms import BoundTerm, Part, Prepared, Step, TermContext, equal_parts
from capsid.ids.layout import TokenLayout
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import churn
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting
from capsid.tokenize.base import Adapting, SoftAssigning
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.merging.semantic_bpe import SemanticBPE


@dataclass(kw_only=True, frozen=True)
class RoutingAdapters:
    """Adapters trained with the generator during the first `share` of a phase's steps, in `refreshes` stretches.

    After each stretch at most a share `churn` of the items gets new codes; after the last the routing is frozen.
    """

    kind: ClassVar[str] = "routing-adapters"
    carries: ClassVar[bool] = False
    weight: float = setting(1.0, "Weight of the tokenizer's own loss.", least=0)
    rank: int = setting(8, "Rank of the adapter matrix of each depth.", least=1)
    gate_bias: bool = setting(True, "Whether the bias of the merge gate is trained too.")
    share: float = setting(1 / 3, "Share of the phase's steps in which the routing adapts.", above=0, below=1)
    refreshes: int = setting(1, "How many times items get new codes, evenly spaced over these steps.", least=1)
    churn: float = setting(0.05, "Largest share of the items that get new codes in one refresh.", least=0, most=1)
    merge_weight: float = setting(0.2, "Weight of the merge gate's loss.", least=0)
    rate: float = setting(1.0, "The adapters' learning rate, as a multiple of the generator's.", above=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def parts(self, steps: int) -> tuple[Part, ...]:
        """`refreshes` equal parts, each of which ends with new codes."""
        return equal_parts(self, steps, self.share, self.refreshes)

    def bind(self, context: TermContext) -> BoundTerm:
        """Adapters on the routing of the context's tokenizer."""
        return BoundAdapters(self, context)


@dataclass(frozen=True, eq=False)
class _Routed(Prepared):
    """Inputs, and the tokenizer's own loss on the items of the batch."""

    loss: Tensor | None = None


class BoundAdapters(BoundTerm):
    """The bound adapters and the gate's bias."""

    def __init__(self, settings: RoutingAdapters, context: TermContext) -> None:
        super().__init__(settings.weight)
        self.rate = settings.rate
        tokenizer = context.tokenizer
        kind = None if tokenizer is None else tokenizer.tokenizer_.kind
        if tokenizer is None or not isinstance(tokenizer.tokenizer_, Adapting) or tokenizer.vectors_ is None:
            raise ConfigError(f"the tokenizer {kind!r} has no routing to adapt", hint="drop adapt from the phase")
        if not isinstance(tokenizer.tokenizer_, SoftAssigning):
            raise ConfigError(f"the tokenizer {kind!r} has no soft assignment", hint="drop adapt from the phase")
        self.adapters = tokenizer.tokenizer_.begin_adapting(settings.rank, seed=context.seed)
        self.gate: _Gate | None = None
        merges = tokenizer.merges_
        if settings.gate_bias and isinstance(merges, SemanticBPE) and len(context.ids.layout.merges):
            self.gate = _Gate(merges, settings.merge_weight)
        # Frozen modules are referenced, not registered, so that they stay out of checkpoints.
        self._seen: tuple[SoftAssigning, np.ndarray] = tokenizer.tokenizer_, tokenizer.vectors_
        self._ids, self._tokenizer, self._churn = context.ids, tokenizer, settings.churn

    @property
    def bias(self) -> float:
        """The bias that the gate has learnt since the last refresh."""
        return float(self.gate.bias.detach()) if self.gate is not None else 0.0

    def prepare(self, lesson: Lesson, network: Backbone) -> Prepared:
        """Zeros with a gradient, one row for every token of every item in order, and the tokenizer's own loss."""
        return self.routed(network.embed(), lesson.batch.items)

    def routed(self, token_VD: Tensor, items: Ragged) -> _Routed:
        """The same from the embeddings of all tokens."""
        (soft, vectors_NI), ids = self._seen, self._ids
        token_VD = token_VD.detach()
        unique_U, which = np.unique(items.values, return_inverse=True)
        x_UI = torch.as_tensor(np.array(vectors_NI[unique_U], dtype=np.float32))
        weights, loss = soft.soft(x_UI)
        tokens = ids.prefix_free.take(unique_U)
        mixed = [
            weights_UK @ token_VD[base : base + size]
            for weights_UK, base, size in zip(weights, ids.layout.bases, ids.layout.sizes)
        ]
        inputs_RD = per_token(torch.stack([m - m.detach() for m in mixed], 1), tokens, ids.layout)
        if self.gate is not None:
            inputs_RD = inputs_RD + self.gate.inputs(token_VD, tokens, ids.layout)
            loss = loss + self.gate.loss()
        rows = Ragged.ranges(tokens.offsets[which], tokens.lengths[which]).values
        return _Routed(inputs_RD=inputs_RD[torch.as_tensor(rows)], loss=loss)

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """The tokenizer's own terms and the gate's."""
        assert isinstance(prepared, _Routed)
        assert prepared.loss is not None
        return prepared.loss

    def settle(self, table: ItemTable, progress: Progress) -> ItemTokenizer:
        """New ids from the adapted routing, at most as many as the settings allow."""
        old = self._tokenizer.ids
        new = self._tokenizer.adapt(table, most=self._churn, gate_bias=self.bias)
        progress.line(churn(old, new.ids))
        if self.gate is not None:
            before, after = (i.statistics().mean_tokens for i in (old, new.ids))
            progress.line(f"merge gate: bias {self.bias:+.3f}, tokens per item {before:.2f} before, {after:.2f} after")
        return new


class _Gate(nn.Module):
    """The learnable scalar bias of the merge gate, shared by all pairs."""

    def __init__(self, merges: Any, weight: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        pairs = merges.candidates_
        chosen = np.flatnonzero(pairs.merge >= 0)
        # A bias that an earlier refresh has learnt stays, and this one is added to it.
        own = merges.bias + merges.learnt_bias_
        self._logit_M = torch.as_tensor(pairs.logit[chosen[np.argsort(pairs.merge[chosen])]] + own).float()
        self._logit_C = torch.as_tensor(pairs.logit + own).float()
        self._target_C = torch.as_tensor(pairs.target.astype(np.float32))
        self._weight = weight

    def inputs(self, token_VD: Tensor, tokens: Ragged, layout: TokenLayout) -> Tensor:
        """Embedding of a merged token minus its members', times the gate's slope; 0 elsewhere. Shape: (tokens, D)."""
        merges = layout.merges
        number_R = torch.as_tensor(tokens.values.astype(np.int64) - merges.first)
        merged_R = (number_R >= 0).nonzero()[:, 0]
        number_R = number_R[merged_R]
        left, right = (torch.tensor(c)[number_R] for c in (merges.left, merges.right))
        change_RD = token_VD[merges.first + number_R] - token_VD[left] - token_VD[right]
        open_R = torch.sigmoid(self._logit_M[number_R] + self.bias)
        zero_R = open_R - open_R.detach()
        return torch.zeros(len(tokens.values), token_VD.shape[1]).index_add(0, merged_R, zero_R[:, None] * change_RD)

    def loss(self) -> Tensor:
        """Cross-entropy of the shifted gate and its targets."""
        return self._weight * F.binary_cross_entropy_with_logits(self._logit_C + self.bias, self._target_C)
