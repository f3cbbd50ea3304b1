"""Terms of others that train an RQ-VAE with the generator: soft codes behind hard ones (DIGER), and turns (ETEGRec).

`GumbelCodes`: ids are hard and fixed between refreshes. The next-token loss reaches the codebooks by three paths
(DIGER, Fu et al. 2026, arXiv 2601.19711): through items of the history, through tokens that are read to predict the
next, and through the labels. Each adds zero with a gradient, so the generator's own loss and gradients do not change.
Encoder and decoder of the tokenizer stay as they are.

`Alternating` (ETEGRec, Liu et al. 2025, arXiv 2409.05546): while one side is trained, the other is frozen (Eq. 17 and
18). Two losses tie them together. Sequence-item alignment: a head maps the generator's representation of a history to
the tokenizer's latent space, where it should have the same distribution over the codes as the next item (Eq. 6 and 15;
the minus sign in Eq. 15 is a mistake, since divergences are minimised). Preference-semantic alignment: another head
maps the row that predicts the first token near the reconstruction of the next item (Eq. 16). Heads are trained with
the generator. Shapes: U different items of a batch, I width of item vectors, C of latents, D of hidden rows, K codes
of a depth, M items.
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
from capsid.generate.backbone import Backbone, Predictions
from capsid.generate.terms import BoundTerm, Part, Prepared, Step, TermContext, equal_parts, per_token
from capsid.ids.layout import ABSENT
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import churn, code_use
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.train.options import Training

PATHS = ("history", "forced", "labels")


@dataclass(kw_only=True, frozen=True)
class GumbelCodes(Checked):
    """Trains the codebooks with the generator in the first `share` of a phase's steps, in `refreshes` stretches."""

    kind: ClassVar[str] = "gumbel-codes"
    carries: ClassVar[bool] = True
    weight: float = setting(1.0, "Weight of this term in the sum of all terms.", least=0)
    own_weight: float = setting(1.0, "Weight of the losses that keep codebooks near the latents.", least=0)
    temperature: float = setting(2.0, "Squared distances, less noise, are divided by this before the softmax.", above=0)
    noise: float = setting(1.0, "Scale of the Gumbel noise.", least=0)
    ratio: float = setting(1.5, "Noise is added where a code is used this many times the mean, or more.", least=0)
    momentum: float = setting(0.99, "Decay of the running use of codes.", least=0, below=1)
    paths: tuple[str, ...] = setting(PATHS, "How the loss reaches the codebooks.", choices=PATHS)
    rate: float = setting(0.01, "The codebooks' learning rate, as a multiple of the generator's.", least=0)
    share: float = setting(2 / 3, "Share of the phase's steps in which the codebooks learn.", above=0, below=1)
    refreshes: int = setting(8, "How many times items get new codes, evenly spread over those steps.", least=1)

    def parts(self, steps: int) -> tuple[Part, ...]:
        """`refreshes` equal parts, each of which ends with new codes."""
        return equal_parts(self, steps, self.share, self.refreshes)

    def bind(self, context: TermContext) -> BoundTerm:
        return BoundCodes(self, context)


@dataclass(frozen=True, eq=False)
class _Soft(Prepared):
    """Soft codes of the batch's unique items by depth, the hard ones, and the codebooks' own loss."""

    unique_U: np.ndarray | None = None
    zeros: Sequence[Tensor] = ()
    loss: Tensor | None = None


class BoundCodes(BoundTerm):
    """The codebooks at work. The running use of codes and the number of steps are saved with them."""

    carries = True
    steps: Tensor

    def __init__(self, settings: GumbelCodes, context: TermContext) -> None:
        super().__init__(settings.weight)
        self.settings, self.rate = settings, settings.rate
        tokenizer, found, vectors_NI = context.learner(RQVAE, "codebooks to train")
        if len(context.ids.layout.merges) or (context.ids.codes.values == ABSENT).any():
            raise ConfigError("soft codes need ids with one token at every depth", hint="drop merges from the recipe")
        centres, lengths_N = found.centres(), context.ids.codes.lengths
        if (lengths_N < len(centres)).any():
            raise ConfigError(
                f"soft codes need ids with one token at every depth, {len(centres)} here, got ids with "
                f"{lengths_N.min()} to {lengths_N.max()}",
                hint="set tokenizer.crowd=0",
            )
        self.books = nn.ParameterList([torch.as_tensor(np.array(centre)) for centre in centres])
        self._tokenizer, self._found, self._ids, self._seed = tokenizer, found, context.ids, context.seed
        # Looked at, not owned: latents do not learn, and hard codes stay for the stretch.
        self._latents_NC = found.latents(vectors_NI)
        self._codes_NL = context.ids.codes.dense().astype(np.int64)
        for depth, centre in enumerate(centres):
            used_K = np.bincount(self._codes_NL[:, depth], minlength=len(centre)) / len(self._codes_NL)
            self.register_buffer(f"use_{depth}", torch.as_tensor(used_K.astype(np.float32)))
        self.register_buffer("steps", torch.zeros(()))

    def prepare(self, lesson: Lesson, network: Backbone) -> Prepared:
        """Zeros with a gradient for what is read, and the codebooks' own loss."""
        unique_U, which_E = np.unique(lesson.batch.items.values, return_inverse=True)
        soft, own = self._soft(unique_U)
        zeros = [weights_UK - weights_UK.detach() for weights_UK in soft]
        token_VD, layout = network.embed().detach(), self._ids.layout
        mixed = [zero_UK @ token_VD[base : base + zero_UK.shape[1]] for zero_UK, base in zip(zeros, layout.bases)]
        tokens = self._ids.prefix_free.take(unique_U)
        rows_RD = per_token(torch.stack(mixed, 1), tokens, layout)
        inputs_RD, forced_ND = None, None
        if "history" in self.settings.paths:
            inputs_RD = rows_RD[_rows(tokens, which_E)]
        if "forced" in self.settings.paths:
            forced_ND = rows_RD[_rows(tokens, np.searchsorted(unique_U, lesson.item_M))]
        return _Soft(inputs_RD=inputs_RD, forced_ND=forced_ND, unique_U=unique_U, zeros=zeros, loss=own)

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """The codebooks' own loss, and the path through the labels, which is zero with a gradient."""
        assert isinstance(prepared, _Soft)
        assert prepared.unique_U is not None
        assert prepared.loss is not None
        total = self.settings.own_weight * prepared.loss
        if "labels" in self.settings.paths:
            items_M = np.searchsorted(prepared.unique_U, step.lesson.item_M)
            total = total + self._labels(step, prepared.zeros, torch.as_tensor(items_M))
        return total

    def _soft(self, unique_U: np.ndarray) -> tuple[list[Tensor], Tensor]:
        """Weights of all codes by depth, and how far the hard codes are from what they stand for."""
        settings = self.settings
        left_UC = torch.as_tensor(self._latents_NC[unique_U])
        source = torch.Generator().manual_seed(child_seed(self._seed, "gumbel", int(self.steps)))
        soft, own = [], left_UC.new_zeros(())
        whole_UC, latent_UC = torch.zeros_like(left_UC), left_UC
        for depth, book_KC in enumerate(self.books):
            own_U1 = left_UC.square().sum(1, keepdim=True)
            scores_UK = 2 * left_UC @ book_KC.T - book_KC.square().sum(1) - own_U1
            noisy_U = self._crowded(depth, scores_UK.detach().argmax(1))
            if settings.noise:
                uniform_UK = torch.rand(scores_UK.shape, generator=source).clamp(1e-9, 1 - 1e-7)
                gumbel_UK = -(-uniform_UK.log()).log()
                scores_UK = scores_UK + settings.noise * noisy_U[:, None] * gumbel_UK
            soft.append((scores_UK / settings.temperature).softmax(1))
            chosen_UC = book_KC[torch.as_tensor(self._codes_NL[unique_U, depth])]
            own = own + F.mse_loss(chosen_UC, left_UC)
            whole_UC = whole_UC + chosen_UC
            left_UC = left_UC - chosen_UC.detach()
        if self.training:
            self.steps += 1
        return soft, own + F.mse_loss(whole_UC, latent_UC)

    def _crowded(self, depth: int, nearest_U: Tensor) -> Tensor:
        """1 where an item's nearest code is used much, and the running use brought up to date."""
        use_K: Tensor = getattr(self, f"use_{depth}")
        crowded_U = (use_K * len(use_K) > self.settings.ratio)[nearest_U].float()
        if self.training:
            share_K = torch.bincount(nearest_U, minlength=len(use_K)) / len(nearest_U)
            use_K.lerp_(share_K, 1 - self.settings.momentum)
        return crowded_U

    def _labels(self, step: Step, zeros: Sequence[Tensor], items_M: Tensor) -> Tensor:
        """Cross-entropy with soft labels less that with hard ones, as far as codes go; a mean over predicted tokens. A
        depth's soft weights sum to 1, so what is subtracted from all scores of a row does not matter: scores of the
        depth's codes will do for their log-probabilities."""
        found, layout = step.predictions, self._ids.layout
        starts_M = torch.as_tensor(found.targets.offsets[:-1])
        total = torch.zeros(())
        for depth, (zero_UK, base) in enumerate(zip(zeros, layout.bases)):
            scores_MK = _scores(step.network, found, starts_M + depth, base, zero_UK.shape[1])
            total = total - (zero_UK[items_M] * scores_MK).sum()
        return total / len(found.targets.values)

    def settle(self, table: ItemTable, progress: Progress) -> ItemTokenizer:
        """New ids from the codebooks as they have become."""
        old = self._tokenizer.ids
        books = [book.detach().numpy().copy() for book in self.books]
        new = self._tokenizer.with_tokenizer(table, self._found.with_books(books))
        progress.line(f"{churn(old, new.ids)}, {code_use(new.ids)}")
        return new


@torch.no_grad()
def _scores(network: Backbone, found: Predictions, rows_M: Tensor, base: int, size: int) -> Tensor:
    """Scores of one depth's codes in the rows that predict them. Shape: (M, K)."""
    scores_MK = found.norm(found.hidden_ND[rows_M]) @ found.score_VS[base : base + size].T
    if found.added is not None:
        added = found.added
        place_E = torch.searchsorted(rows_M, added.rows_E).clamp_max(len(rows_M) - 1)
        inside_E = (rows_M[place_E] == added.rows_E) & (added.tokens_E >= base) & (added.tokens_E < base + size)
        scores_MK[place_E[inside_E], added.tokens_E[inside_E] - base] += added.values_E[inside_E]
    return scores_MK


def _rows(tokens: Ragged, items: np.ndarray) -> Tensor:
    """Numbers of the tokens of these items, in turn."""
    return torch.as_tensor(Ragged.ranges(tokens.offsets[items], tokens.lengths[items]).values)


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
    share: float = setting(0.7, "Share of the steps after which the generator learns alone.", above=0, below=1)
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
