"""Stage 2 as a loss term: routing adapters and a bias of the merge gate that are trained with the generator.

Ids are hard, so the next-token loss reaches the routing only through the inputs (CapsID, arXiv 2605.05096, Eq. 10): an
input is the embedding of the item's own token plus the routed mixture of all tokens' embeddings minus
the same mixture without gradient, so it adds zero but has a gradient. Targets stay hard. Centres and the gate's weights
are frozen. A sample of a batch's items is routed in every step; the others are read as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.randomness import numpy_rng
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.generate.backbone import Backbone
from capsid.generate.terms import BoundTerm, Part, Prepared, Step, TermContext, equal_parts, per_token
from capsid.ids.layout import TokenLayout
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import churn
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.base import Adapting
from capsid.tokenize.capsules.capsules import LowRank
from capsid.tokenize.capsules.pairs import GUMBEL
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.item_tokenizer import ItemTokenizer

# Weight of the merge gate's loss (lambda_b, Eq. 10).
MERGE_WEIGHT = 0.2


@dataclass(kw_only=True, frozen=True)
class RoutingAdapters(Checked):
    """Adapters trained with the generator during the first `share` of a phase's steps, in `refreshes` stretches. After
    each stretch at most a share `churn` of the items gets new codes; after the last the routing is frozen. With a share
    of 1 and one refresh, one optimiser trains adapters and generator to the end."""

    kind: ClassVar[str] = "routing-adapters"
    carries: ClassVar[bool] = False
    weight: float = setting(1.0, "Weight of the tokenizer's own loss.", least=0)
    rank: int = setting(8, "Rank of the adapter matrix of each depth; 0: no adapters, only the gate's bias.", least=0)
    items: int = setting(256, "Items of a batch that are routed in a step, at most.", least=1)
    gate_bias: bool = setting(True, "Whether the bias of the merge gate is trained too.")
    share: float = setting(1 / 3, "Share of the phase's steps in which the routing adapts.", above=0, most=1)
    refreshes: int = setting(1, "How many times items get new codes, evenly spaced over these steps.", least=1)
    churn: float = setting(0.05, "Largest share of the items that get new codes in one refresh.", least=0, most=1)
    rate: float = setting(1.0, "The adapters' learning rate, as a multiple of the generator's.", above=0)

    def parts(self, steps: int) -> tuple[Part, ...]:
        """`refreshes` equal parts, each of which ends with new codes."""
        return equal_parts(self, steps, self.share, self.refreshes)

    def bind(self, context: TermContext) -> BoundTerm:
        return BoundAdapters(self, context)


@dataclass(frozen=True, eq=False)
class _Routed(Prepared):
    """Inputs, and the tokenizer's own loss on the items of the batch."""

    loss: Tensor | None = None


class BoundAdapters(BoundTerm):
    """The bound adapters and the gate's bias."""

    drawn: Tensor

    def __init__(self, settings: RoutingAdapters, context: TermContext) -> None:
        super().__init__(settings.weight)
        self.rate = settings.rate
        tokenizer, own, vectors_NI = context.learner(Adapting, "routing to adapt")
        self.adapters = own.begin_adapting(settings.rank, seed=context.seed)
        self.gate: _Gate | None = None
        merges = tokenizer.merges_
        if settings.gate_bias and isinstance(merges, SemanticBPE) and len(context.ids.layout.merges):
            self.gate = _Gate(merges)
        if not settings.rank and self.gate is None:
            raise ConfigError("adapt.rank must be at least 1 where there is no merge gate to adapt, got 0")
        # Frozen modules are referenced, not registered, so that they stay out of checkpoints.
        self._seen = own, vectors_NI
        self._ids, self._tokenizer, self._settings, self._seed = context.ids, tokenizer, settings, context.seed
        # Draws depend on this number, so that a resumed run repeats them and the generator's dropout stays the same.
        self.register_buffer("drawn", torch.zeros((), dtype=torch.int64))

    @property
    def bias(self) -> float:
        """The bias that the gate has learnt since the last refresh."""
        return float(self.gate.bias.detach()) if self.gate is not None else 0.0

    def prepare(self, lesson: Lesson, network: Backbone) -> Prepared:
        """Zeros with a gradient, one row for every token of every item in order, and the tokenizer's own loss."""
        return self.routed(network.embed(), lesson.batch.items)

    def routed(self, token_VD: Tensor, items: Ragged) -> _Routed:
        """The same from the embeddings of all tokens."""
        token_VD, ids = token_VD.detach(), self._ids
        unique_U, which = np.unique(items.values, return_inverse=True)
        tokens = ids.prefix_free.take(unique_U)
        rng = numpy_rng(self._seed, "stage 2", int(self.drawn))
        inputs_RD, loss = torch.zeros(len(tokens.values), token_VD.shape[1]), torch.zeros(())
        if self._settings.rank:
            mixed_ULD, loss = self._mixed(token_VD, unique_U, rng)
            inputs_RD = per_token(mixed_ULD, tokens, ids.layout)
        if self.gate is not None:
            noise = self.gate.noise(rng) if self.training else None
            inputs_RD = inputs_RD + self.gate.inputs(token_VD, tokens, ids.layout, noise)
            loss = loss + self.gate.loss(noise)
        if self.training:
            self.drawn += 1
        rows = Ragged.ranges(tokens.offsets[which], tokens.lengths[which]).values
        return _Routed(inputs_RD=inputs_RD[torch.as_tensor(rows)], loss=loss)

    def _mixed(self, token_VD: Tensor, items_U: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Zeros with the gradient of the routed mixture by depth, for a sample of the items, and the sample's loss."""
        (soft, vectors_NI), layout, most = self._seen, self._ids.layout, self._settings.items
        chosen_S = np.arange(len(items_U))
        if len(items_U) > most:
            chosen_S = np.sort(rng.permutation(len(items_U))[:most])
        weights, loss = soft.soft(torch.as_tensor(np.array(vectors_NI[items_U[chosen_S]], dtype=np.float32)))
        nothing_UD = torch.zeros(len(items_U), token_VD.shape[1])
        by_depth = [nothing_UD] * len(layout.sizes)
        for depth, (rows, weights_RK) in enumerate(weights):
            base = int(layout.bases[depth])
            mixed_RD = weights_RK @ token_VD[base : base + layout.sizes[depth]]
            by_depth[depth] = nothing_UD.index_copy(0, torch.as_tensor(chosen_S)[rows], mixed_RD - mixed_RD.detach())
        return torch.stack(by_depth, 1), loss

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """The tokenizer's own terms and the gate's."""
        assert isinstance(prepared, _Routed)
        assert prepared.loss is not None
        return prepared.loss

    def settle(self, table: ItemTable, progress: Progress) -> ItemTokenizer:
        """New ids from the adapted routing, at most as many as the settings allow."""
        old = self._tokenizer.ids
        new = self._tokenizer.adapt(table, most=self._settings.churn, gate_bias=self.bias)
        progress.line(churn(old, new.ids))
        if len(self.adapters):
            norms = " ".join(f"{adapter.norm():.3f}" for adapter in self.adapters if isinstance(adapter, LowRank))
            progress.line(f"routing adapters: norm of A B by depth {norms}")
        if self.gate is not None:
            before, after = (i.statistics().mean_tokens for i in (old, new.ids))
            progress.line(f"merge gate: bias {self.bias:+.3f}, tokens per item {before:.2f} before, {after:.2f} after")
        return new


class _Gate(nn.Module):
    """The learnable scalar bias of the merge gate, shared by all pairs."""

    def __init__(self, merges: Any) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        pairs = merges.candidates_
        chosen = np.flatnonzero(pairs.merge >= 0)
        # A bias that an earlier refresh has learnt stays, and this one is added to it.
        own = merges.bias + merges.learnt_bias_
        self._logit_C = torch.as_tensor(pairs.logit + own).float()
        self._target_C = torch.as_tensor(pairs.target.astype(np.float32))
        # The candidate of every merge, in the order of the table of merges.
        self._candidate_M = torch.as_tensor(chosen[np.argsort(pairs.merge[chosen])])

    def noise(self, rng: np.random.Generator) -> Tensor:
        """The difference of two Gumbel numbers for every candidate. Shape: (C,)."""
        return torch.as_tensor(rng.logistic(size=len(self._logit_C)), dtype=torch.float32)

    def _relaxed(self, noise_C: Tensor | None) -> Tensor:
        """The gate's log-odds of merging every candidate: with noise, those of a Gumbel-softmax. Shape: (C,)."""
        logit_C = self._logit_C + self.bias
        return logit_C if noise_C is None else (logit_C + noise_C) / GUMBEL

    def inputs(self, token_VD: Tensor, tokens: Ragged, layout: TokenLayout, noise_C: Tensor | None = None) -> Tensor:
        """Embedding of a merged token minus its members', times the gate's slope; 0 elsewhere. Shape: (tokens, D)."""
        merges = layout.merges
        number_R = torch.as_tensor(tokens.values.astype(np.int64) - merges.first)
        merged_R = (number_R >= 0).nonzero()[:, 0]
        number_R = number_R[merged_R]
        left, right = (torch.tensor(c)[number_R] for c in (merges.left, merges.right))
        change_RD = token_VD[merges.first + number_R] - token_VD[left] - token_VD[right]
        open_R = torch.sigmoid(self._relaxed(noise_C)[self._candidate_M[number_R]])
        zero_R = open_R - open_R.detach()
        return torch.zeros(len(tokens.values), token_VD.shape[1]).index_add(0, merged_R, zero_R[:, None] * change_RD)

    def loss(self, noise_C: Tensor | None = None) -> Tensor:
        """Cross-entropy of the shifted gate and its targets."""
        return MERGE_WEIGHT * F.binary_cross_entropy_with_logits(self._relaxed(noise_C), self._target_C)
