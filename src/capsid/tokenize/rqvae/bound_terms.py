"""Loss terms on codes as modules: they hold their lookup data and compute the loss of every batch.

State that changes during training is in buffers, so checkpoints save it. Knows neither recipes nor the training loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.encode.base import has_evidence
from capsid.errors import ConfigError, DataError
from capsid.tokenize.balanced import balanced_kmeans
from capsid.tokenize.kmeans import kmeans
from capsid.tokenize.rqvae.network import Quantized

GROUP_ITERATIONS = 10


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
    """Cross-entropy of each item's quantised latent over the behaviour vectors of the batch.

    The straight-through gradient of the latent reaches the encoder and no codebook.
    """

    def __init__(self, behaviour_ND: np.ndarray, name: str, latent: int) -> None:
        super().__init__()
        if behaviour_ND.shape[1] != latent:
            raise ConfigError(
                f"the vectors {name!r} must be as wide as the latent ({latent}), got {behaviour_ND.shape[1]}",
                hint="set tokenizer.latent or the width of that view's encoder",
            )
        self.seen_N = has_evidence(behaviour_ND)
        if not self.seen_N.any():
            raise DataError(f"the vectors {name!r} of all items are zeros", hint="behaviour needs training sequences")
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
    """Cross-entropy of a random other code of the group, scored by the chosen code over all but itself.

    Query and candidates are codes, so the gradient reaches the codebooks only.
    """

    def __init__(self, sizes: Sequence[int], groups: int, least: int, most: int) -> None:
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
