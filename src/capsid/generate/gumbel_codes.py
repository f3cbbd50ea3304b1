"""Trains codebooks with the generator: soft codes behind hard ones, with noise on overused codes.

Ids are hard and fixed between refreshes. The next-token loss reaches the codebooks by three paths (DIGER, Fu et al.
2026, arXiv 2601.19711): through items of the history, through tokens that are read to predict the next, and through the
labels. Each adds zero with a gradient, so the generator's own loss and gradients do not change. Encoder and decoder of
the tokenizer stay as they are. Shapes: U unique items, K codes of a depth, C width of latents, M items.
"""

from __future__ import annotations

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
        """On the codebooks of the context's tokenizer."""
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
        """Cross-entropy with soft labels less that with hard ones, as far as codes go; a mean over predicted tokens.

        A depth's soft weights sum to 1, so what is subtracted from all scores of a row does not matter: scores of the
        depth's codes will do for their log-probabilities.
        """
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
