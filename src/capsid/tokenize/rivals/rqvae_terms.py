"""Settings of the RQ-VAE and its loss terms, and modules that compute the terms of a batch.

State that changes during training is in buffers, so checkpoints save it. Knows neither recipes nor the training loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.data.item_table import ItemTable
from capsid.encode.base import has_evidence
from capsid.errors import ConfigError, DataError
from capsid.settings import Checked, setting
from capsid.tokenize.kmeans import balanced_kmeans, kmeans
from capsid.tokenize.rivals.rqvae_network import Quantized, Sinkhorn
from capsid.train.options import Training

GROUP_ITERATIONS = 10
# Groups of a codebook, and their bounds: fewer and larger ones where the codes do not fit otherwise.
GROUPS, LEAST, MOST = 10, 10, 60
# The view that quantised latents are matched with, as wide as the latent.
BEHAVIOUR = "behaviour"


@dataclass(frozen=True, eq=False)
class CodeStep:
    """A batch after quantisation: rows of the item table, their quantised latents and the codebooks."""

    rows_B: np.ndarray
    found: Quantized
    books: Sequence[Tensor]


class BoundCodeTerm(nn.Module):
    """A loss term bound to given items and codebooks."""

    def begin(self, books: Sequence[Tensor]) -> None:
        """Prepare for an epoch from the current codebooks."""

    def loss(self, step: CodeStep) -> Tensor:
        """Mean loss of the batch."""
        raise NotImplementedError


class BoundMatch(BoundCodeTerm):
    """Cross-entropy of each item's quantised latent over the behaviour vectors of the batch. The straight-through
    gradient of the latent reaches the encoder and no codebook."""

    def __init__(self, behaviour_ND: np.ndarray, latent: int) -> None:
        super().__init__()
        if behaviour_ND.shape[1] != latent:
            raise ConfigError(
                f"the vectors {BEHAVIOUR!r} must be as wide as the latent ({latent}), got {behaviour_ND.shape[1]}",
                hint="set tokenizer.latent or the width of that view's encoder",
            )
        self.seen_N = has_evidence(behaviour_ND)
        if not self.seen_N.any():
            raise DataError(
                f"the vectors {BEHAVIOUR!r} of all items are zeros", hint="behaviour needs training sequences"
            )
        self.behaviour_ND = behaviour_ND

    def loss(self, step: CodeStep) -> Tensor:
        """The mean loss; zero for a batch without negatives."""
        seen_B = self.seen_N[step.rows_B]
        latent_BD = step.found.through_BD[torch.as_tensor(seen_B)]
        behaviour_BD = torch.as_tensor(np.array(self.behaviour_ND[step.rows_B[seen_B]], dtype=np.float32))
        if len(latent_BD) < 2:
            return latent_BD.sum() * 0
        return F.cross_entropy(latent_BD @ behaviour_BD.T, torch.arange(len(latent_BD)))


class BoundDiversity(BoundCodeTerm):
    """Cross-entropy of a random other code of the group, scored by the chosen code over all but itself. Query and
    candidates are codes, so the gradient reaches the codebooks only."""

    def __init__(self, sizes: Sequence[int], groups: int = GROUPS, least: int = LEAST, most: int = MOST) -> None:
        super().__init__()
        self.groups, self.least, self.most = groups, least, most
        for depth, size in enumerate(sizes):
            self.register_buffer(f"group_{depth}", torch.zeros(size, dtype=torch.int64))

    def group_of(self, depth: int) -> Tensor:
        """The group of every code. Shape: (K,)."""
        return self.get_buffer(f"group_{depth}")

    @torch.no_grad()
    def begin(self, books: Sequence[Tensor]) -> None:
        """Cluster every codebook. A function of the codebooks alone: the seed is fixed."""
        for depth, book_KD in enumerate(books):
            codes = len(book_KD)
            groups = max(1, min(self.groups, codes // self.least))
            vectors_KD = np.ascontiguousarray(book_KD.detach().numpy())
            found = balanced_kmeans(
                vectors_KD,
                kmeans(vectors_KD, groups, GROUP_ITERATIONS, 1, depth),
                max(self.most, math.ceil(codes / groups)),
                least=min(self.least, codes // groups),
                iterations=GROUP_ITERATIONS,
            )
            self.group_of(depth).copy_(torch.as_tensor(found.labels_N))

    def loss(self, step: CodeStep) -> Tensor:
        """Mean over the depths; an item whose code is alone in its group is skipped at that depth."""
        losses = [
            self._of_depth(depth, code_B, chosen_BD, book_KD)
            for depth, (code_B, chosen_BD, book_KD) in enumerate(
                zip(step.found.codes_BL.T, step.found.chosen_LBD, step.books)
            )
        ]
        return torch.stack(losses).mean()

    def _of_depth(self, depth: int, code_B: Tensor, chosen_BD: Tensor, book_KD: Tensor) -> Tensor:
        group_K = self.group_of(depth)
        own_BK = F.one_hot(code_B, len(book_KD)).bool()
        mates_BK = (group_K[code_B][:, None] == group_K) & ~own_BK
        has_mate_B = mates_BK.any(1)
        if not has_mate_B.any():
            return chosen_BD.sum() * 0
        mate_B = torch.multinomial(mates_BK[has_mate_B].float(), 1)[:, 0]
        scores_BK = (chosen_BD @ book_KD.T).masked_fill(own_BK, -torch.inf)
        return F.cross_entropy(scores_BK[has_mate_B], mate_B)


class CodeTerm(Protocol):
    """A weighted term of the tokenizer's loss. With weight 0 it is left out altogether."""

    kind: ClassVar[str]
    weight: float

    def bind(self, table: ItemTable, sizes: tuple[int, ...], latent: int) -> BoundCodeTerm:
        """The term for these items, with codebooks of these sizes and this width."""


@dataclass(kw_only=True, frozen=True)
class CollaborativeMatch(Checked):
    """Quantised latents find their own item's behaviour vector within the batch (LETTER, arXiv 2405.07314, Eq. 2).
    Scores are plain inner products, so the length of the behaviour vectors sets their temperature. Items without
    behaviour are skipped."""

    kind: ClassVar[str] = "collaborative-match"
    weight: float = setting(0.1, "Weight in the tokenizer's loss.", least=0)

    def bind(self, table: ItemTable, sizes: tuple[int, ...], latent: int) -> BoundCodeTerm:
        return BoundMatch(table.vectors(BEHAVIOUR), latent)


@dataclass(kw_only=True, frozen=True)
class CodeDiversity(Checked):
    """Each chosen code is pulled towards another code of its group and pushed from all others (LETTER, Eq. 4). Groups
    are clusters of a codebook's vectors, of bounded size and recomputed every epoch."""

    kind: ClassVar[str] = "code-diversity"
    weight: float = setting(1e-4, "Weight in the tokenizer's loss.", least=0)

    def bind(self, table: ItemTable, sizes: tuple[int, ...], latent: int) -> BoundCodeTerm:
        return BoundDiversity(sizes)


# The first codes of an id whatever shares them (SA2CRQ: the rule begins after two levels).
SHORTEST = 2


def rqvae_training() -> Training:
    """Takes 90 seconds on one core for 12,000 items. No averaging, since codes may be revived."""
    return Training(
        steps=4_500, batch_size=256, learning_rate=2e-3, weight_decay=1e-4, ema=0.0, validate_every=500, patience=9
    )


@dataclass(kw_only=True)
class RQVAESettings(Checked):
    """An encoder with ReLU layers to a latent vector, residual codebooks there, and a mirrored decoder."""

    kind: ClassVar[str] = "rq-vae"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256), "Codes at each depth, fewer where there are fewer different items.", least=1, count=(1, None)
    )
    hidden: tuple[int, ...] = setting((512, 256, 128), "Widths of encoder layers, mirrored in the decoder.", least=1)
    latent: int = setting(32, "Width of the latent vectors that are quantised.", least=1)
    assign: Sinkhorn | None = setting(None, "How training chooses codes at the last depths; none: the nearest at all.")
    terms: tuple[CodeTerm, ...] = setting((), "Loss terms on the codes, beside reconstruction and commitment.")
    start: Literal["k-means", "bounded"] = setting(
        "k-means", "Initialisation of the codebooks: k-means of the latents, or k-means with clusters of bounded size."
    )
    head: float = setting(
        1.0, "Share of the interactions whose items, the most popular, train first; 1: all at once.", above=0, most=1
    )
    extra: float = setting(
        0.0, "New codes for the other items, as a share of each codebook; the popular items' codes are frozen.", least=0
    )
    crowd: int = setting(
        0, "Ids end where at most this many popular items share a prefix of two or more codes; 0: never.", least=0
    )
    training: Training = setting(factory=rqvae_training, about="How encoder, codebooks and decoder train.")
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))
