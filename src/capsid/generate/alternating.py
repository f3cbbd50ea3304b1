"""Trains tokenizer and generator in turns, aligned with each other (ETEGRec, Liu et al. 2025, arXiv 2409.05546).

While one is trained, the other is frozen (Eq. 17 and 18). Two losses tie them together. Sequence-item alignment: a head
maps the generator's representation of a history to the tokenizer's latent space, where it should have the same
distribution over the codes as the next item (Eq. 6 and 15; the minus sign in Eq. 15 is a mistake, since divergences are
minimised). Preference-semantic alignment: another head maps the row that predicts the first token near the
reconstruction of the next item (Eq. 16). Heads are trained with the generator. Shapes: U different targets of a batch,
I width of item vectors, C of latents, D of hidden rows, K codes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.randomness import child_seed
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.generate.terms import BoundTerm, Part, Prepared, Step, TermContext
from capsid.ids.semantic_ids import churn, code_use
from capsid.progress import Progress
from capsid.settings import Checked, setting
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.train.options import Training

# Cosines of preference-semantic alignment are divided by this.
TEMPERATURE = 0.07


def tokenizer_training() -> Training:
    """Six epochs of twenty thousand sequences at a small learning rate; no averages, so that last weights are kept."""
    return Training(steps=2_100, learning_rate=1e-4, weight_decay=1e-4, ema=0.0)


@dataclass(kw_only=True, frozen=True)
class Alternating(Checked):
    """Generator parts, each followed by a tokenizer part that ends with new codes; later the generator learns alone."""

    kind: ClassVar[str] = "alternating"
    carries: ClassVar[bool] = True
    cycles: int = setting(6, "How many times the tokenizer learns and items get new codes.", least=0)
    share: float = setting(
        0.7,
        "Share of the phase's steps after which the tokenizer stays and the generator learns alone.",
        above=0,
        below=1,
    )
    warm: float = setting(0.2, "Share of the phase's steps before the first turn, without alignment.", least=0, below=1)
    sequence_weight: float = setting(1e-4, "Weight of sequence-item alignment.", least=0)
    preference_weight: float = setting(3e-4, "Weight of preference-semantic alignment.", least=0)
    training: Training = setting(
        factory=tokenizer_training, about="How the tokenizer learns; its steps are those of all its turns together."
    )

    def check_together(self) -> None:
        if self.warm >= self.share:
            raise ConfigError(f"warm must be below share, got {self.warm} and {self.share}", hint="raise share")

    @property
    def aligns(self) -> bool:
        """Whether any alignment has a weight."""
        return self.sequence_weight > 0 or self.preference_weight > 0

    def parts(self, steps: int) -> tuple[Part, ...]:
        """The generator warms up; then both learn in turns."""
        end = min(round(steps * self.share), steps - 1)
        warm = min(round(steps * self.warm), end)
        own = _ranges(warm, end, max(1, self.cycles))
        turns = _ranges(0, self.training.steps, len(own)) if self.cycles and own else ()
        generator, tokenizer = Side(self, "generator"), Side(self, "tokenizer")
        parts = [Part(Side(self, "generator", aligned=False), range(warm), settles=False)] if warm else []
        for part, turn in itertools.zip_longest(own, turns):
            parts += [Part(generator, part, settles=False)] if part else []
            parts += [Part(tokenizer, turn, training=self.training)] if turn else []
        return tuple(parts)


@dataclass(frozen=True)
class Side:
    """The term of one side's turn: this side learns, the other one is frozen."""

    kind: ClassVar[str] = Alternating.kind
    weight: ClassVar[float] = 1.0
    settings: Alternating
    learns: str
    aligned: bool = True

    def bind(self, context: TermContext) -> BoundTerm:
        """On the network of the context's tokenizer."""
        return BoundSides(self, context)


class BoundSides(BoundTerm):
    """Both heads and the tokenizer's network, of which one side learns. What was learnt is carried to the next turn."""

    carries = True

    def __init__(self, side: Side, context: TermContext) -> None:
        super().__init__(side.weight)
        tokenizer, found, vectors_NI = context.learner(RQVAE, "network to train")
        network = found.joint_network()
        self.tokenizer = network
        self.heads = Heads(context.width, network.latent, network.inputs)
        self.heads.reset(torch.Generator().manual_seed(child_seed(context.seed, "heads")))
        self.tokenizer.requires_grad_(side.learns == "tokenizer")
        self.heads.requires_grad_(side.learns == "generator")
        self._side, self._settings = side, side.settings
        # Looked at, not owned: what is frozen here must not enter checkpoints.
        self._found, self._fitted, self._vectors_NI = found, tokenizer, vectors_NI

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """Both alignments over the different targets of the batch, and the tokenizer's own loss if it learns."""
        settings, own = self._settings, self._side.learns == "tokenizer"
        aligned = self._side.aligned and settings.aligns
        if not own and not aligned:
            return torch.zeros(())
        # A target that occurs more than once is read where it comes first; otherwise it would be its own wrong answer.
        unique_U, first_U = np.unique(step.lesson.item_M, return_index=True)
        read = self.tokenizer.read(torch.as_tensor(np.array(self._vectors_NI[unique_U], dtype=np.float32)))
        total = read.loss if own else torch.zeros(())
        if not aligned:
            return total
        starts_MD, firsts_MD = step.predictions.starts_MD, step.predictions.firsts_MD
        if starts_MD is None:
            raise ConfigError("the generator gives no rows of histories to align with", hint="set generator=timeline")
        rows_U = torch.as_tensor(first_U)
        if settings.sequence_weight:
            scores = self.tokenizer.scores(self.heads.sequence(starts_MD[rows_U]))
            total = total + settings.sequence_weight * sequence_alignment(read.scores, scores)
        if settings.preference_weight:
            preferred_UI = self.heads.preference(firsts_MD[rows_U])
            near = preference_alignment(preferred_UI, read.decoded_UI)
            total = total + settings.preference_weight * near
        return total

    def settle(self, table: ItemTable, progress: Progress) -> ItemTokenizer:
        """New ids from the network as it has become."""
        new = self._fitted.with_tokenizer(table, self._found.with_network(self.tokenizer))
        progress.line(f"{churn(self._fitted.ids, new.ids)}, {code_use(new.ids)}")
        return new


class Heads(nn.Module):
    """From hidden rows to latents, and from hidden rows to item vectors."""

    def __init__(self, width: int, latent: int, inputs: int) -> None:
        super().__init__()
        self.sequence = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, latent))
        self.preference = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inputs))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
                nn.init.zeros_(module.bias)


def sequence_alignment(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """Kullback-Leibler divergence both ways between the softmaxes of two scores (U, K) by depth: mean over both axes.
    It is zero where the distributions are equal, and positive elsewhere."""
    both = []
    for ours_UK, theirs_UK in zip(ours, theirs, strict=True):
        p_UK, q_UK = ours_UK.log_softmax(1), theirs_UK.log_softmax(1)
        # KL(p || q) + KL(q || p), term by term.
        both.append(((p_UK.exp() - q_UK.exp()) * (p_UK - q_UK)).sum(1).mean())
    return torch.stack(both).mean()


def preference_alignment(ours_UI: Tensor, theirs_UI: Tensor) -> Tensor:
    """Each row has to find its partner among the other side's rows by cosine, both ways: the sum of cross-entropies."""
    scores_UU = F.normalize(ours_UI, dim=1) @ F.normalize(theirs_UI, dim=1).T / TEMPERATURE
    own_U = torch.arange(len(scores_UU))
    return F.cross_entropy(scores_UU, own_U) + F.cross_entropy(scores_UU.T, own_U)


def _ranges(begin: int, end: int, count: int) -> tuple[range, ...]:
    """About equal consecutive ranges; with fewer steps than ranges, fewer ranges."""
    ends = [begin + round((end - begin) * n / count) for n in range(count + 1)]
    return tuple(range(a, b) for a, b in itertools.pairwise(ends) if a < b)
