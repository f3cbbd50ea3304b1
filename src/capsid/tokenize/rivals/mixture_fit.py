"""Training of the mixture of quantisers: reconstruction, codebooks, alignment of the views, and sparse routing.

The share of experts to close falls as behaviour grows. The weight of sparsity is adapted at every step, for groups of
items with a similar amount of behaviour (ADA-SID, arXiv 2510.25622). The common loop does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.randomness import child_seed
from capsid.base.run_options import CheckpointFile
from capsid.ids.layout import ABSENT
from capsid.ids.order import group_numbers
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.kmeans import kmeans
from capsid.tokenize.rivals.mixture_network import LEAK, Mixed, MixtureNetwork, MixtureSettings, mixed_blocks
from capsid.tokenize.training import VectorTraining, draw_sample, unused_codes, weight_source, worst_first

NAME = "mixture"
KMEANS_ITERATIONS = 20
# Weights of the losses that keep experts near their codes and align both views of items with much behaviour, and the
# temperature of the latter.
COMMITMENT, ALIGNMENT, TEMPERATURE = 0.25, 0.1, 0.07
# First weight of the loss that closes behaviour experts, and their share to close for items with the least behaviour.
SPARSITY, CLOSED = 1e-3, 0.6
# Groups of items by richness, each with a sparsity weight of its own.
GROUPS = 8
# A sparsity weight changes by this factor at each step, within these bounds of its start.
FACTOR, BOUND = 1.1, 1_000.0
# Shares of closed experts this near to their target are near enough: with three experts, half an expert.
NEAR = 1 / 6
# The weight of alignment is sigmoid(STEEP * richness - LATE), relative to that of the richest items.
STEEP, LATE = 10.0, 9.0


@dataclass(frozen=True, eq=False)
class Look:
    """Statistics of the network on the sample: codes (-1: closed), what is unexplained, outputs by expert."""

    codes_NE: np.ndarray
    outputs_NED: np.ndarray
    cosine_NE: np.ndarray
    utilization: float
    length: float
    collisions: float
    unexplained: float

    @property
    def score(self) -> float:
        return -(self.unexplained + self.collisions)

    def line(self) -> str:
        return (
            f"used {100 * self.utilization:.0f} %, unexplained {100 * self.unexplained:.1f} %, "
            f"collisions {100 * self.collisions:.0f} %, {self.length:.2f} codes per item"
        )


def fit_mixture(
    settings: MixtureSettings,
    vectors_NI: np.ndarray,
    inputs: tuple[int, int],
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> MixtureNetwork:
    """Initialise the codebooks from data, then train the whole network. Rows hold both views side by side."""
    sample_NI = draw_sample(vectors_NI, seed, NAME)
    # Duplicates would make equal centres, and rounding would decide the ties.
    different_NI = np.unique(sample_NI, axis=0)
    size = min(settings.codebook, len(different_NI))
    if size < settings.codebook:
        progress.line(f"mixture: {size:,} different items, so codebooks are reduced to that number")
    network = MixtureNetwork(inputs, settings.experts, settings.dim, (size,) * sum(settings.experts))
    network.reset(weight_source(seed, NAME))
    network.measure(torch.as_tensor(sample_NI))
    start_books(network, different_NI, seed)
    job = MixtureTraining(settings.training, network, vectors_NI, sample_NI, progress, settings)
    job.run(seed=seed, checkpoint=checkpoint)
    network.typical.copy_(typical_gates(network, sample_NI))
    job.tell("mixture done")
    return network


@torch.no_grad()
def start_books(network: MixtureNetwork, vectors_NI: np.ndarray, seed: int) -> None:
    """k-means of each expert's outputs."""
    outputs_NED = torch.cat([found.outputs_BED for found in mixed_blocks(network, vectors_NI)]).numpy()
    for expert, book_KD in enumerate(network.books):
        seeds = child_seed(seed, NAME, expert)
        book_KD.copy_(torch.as_tensor(kmeans(outputs_NED[:, expert], len(book_KD), KMEANS_ITERATIONS, 1, seeds)))


def typical_gates(network: MixtureNetwork, vectors_NI: np.ndarray) -> Tensor:
    """Mean gate of every expert over the items for which it is open. Shape: (experts,)."""
    gates_NE = torch.cat([found.gates_BE for found in mixed_blocks(network, vectors_NI)])
    return gates_NE.sum(0) / (gates_NE > 0).sum(0).clamp_min(1)


class SparsityWeights(nn.Module):
    """One weight for each group of items; a buffer, so that a resumed run continues with it."""

    weight_G: Tensor

    def __init__(self, start: float) -> None:
        super().__init__()
        self.start = start
        self.register_buffer("weight_G", torch.full((GROUPS,), start))

    def of(self, richness_B: Tensor) -> Tensor:
        """The weights of items. Shape: (B,)."""
        return self.weight_G[self._group(richness_B)]

    @torch.no_grad()
    def adapt(self, richness_B: Tensor, closed_B: Tensor, target_B: Tensor) -> None:
        """More weight for groups whose items miss their target by more than `NEAR` on average, less for the others."""
        group_B = self._group(richness_B)
        total_G = torch.zeros(GROUPS).index_add_(0, group_B, (target_B - closed_B).abs() - NEAR)
        self.weight_G.mul_(FACTOR ** total_G.sign()).clamp_(self.start / BOUND, self.start * BOUND)

    @staticmethod
    def _group(richness_B: Tensor) -> Tensor:
        return (richness_B * GROUPS).long().clamp_max(GROUPS - 1)


@dataclass(eq=False)
class MixtureTraining(VectorTraining):
    """Trains experts, gates and router together, and revives codes that no item uses."""

    name: ClassVar[str] = NAME
    most_answers: ClassVar[int | None] = 20
    network: MixtureNetwork
    settings: MixtureSettings

    def __post_init__(self) -> None:
        self.sparsity = SparsityWeights(SPARSITY)
        self.both = nn.ModuleList([self.network, self.sparsity])

    @property
    def learner(self) -> nn.Module:
        return self.both

    def loss(self, x_BI: Tensor, rows_B: np.ndarray, share: float) -> Tensor:
        """The published terms; those of behaviour are of the items that have any."""
        found = self.network(x_BI)
        total = reconstruction(self.network, found) + codebook_loss(found)
        has_B = found.has_B
        if int(has_B.sum()) > 1:
            aligned = alignment(found.content_BD[has_B], found.behaviour_BD[has_B])
            total = total + ALIGNMENT * (alignment_weight(found.richness_B[has_B]) * aligned).mean()
        if self.settings.behaviour_experts and bool(has_B.any()):
            total = total + self._closing(found)
        return total

    def _closing(self, found: Mixed) -> Tensor:
        """Closes open experts of items with fewer closed ones than their target, those that many items use first;
        opens closed experts of the other items."""
        first = sum(self.settings.experts[:2])
        routed_BE, richness_B = found.gates_BE[found.has_B, first:], found.richness_B[found.has_B]
        target_B = CLOSED * (1 - richness_B)
        closed_B = (routed_BE == 0).float().mean(1)
        self.sparsity.adapt(richness_B, closed_B, target_B)
        open_BE = (routed_BE > 0).float()
        use_E = open_BE.mean(0) / (1 - target_B.mean()).clamp_min(1e-6)
        to_close_BE = (closed_B < target_B)[:, None] * use_E * open_BE
        # Closed experts have a part of the gradient only; opening must be as strong as closing.
        to_open_BE = (closed_B > target_B)[:, None] * (1 - open_BE) / LEAK
        return (self.sparsity.of(richness_B) * ((to_close_BE - to_open_BE) * routed_BE).sum(1)).mean()

    def look(self) -> Look:
        return look(self.network, self.looked_at_NI)

    def revive(self) -> None:
        """Reinitialise unused codes with the outputs that are furthest from their code."""
        seen, revived = self.look(), 0
        sizes = [len(book_KD) for book_KD in self.network.books]
        for expert, dead in enumerate(unused_codes(seen.codes_NE, sizes)):
            open_N = np.flatnonzero(seen.codes_NE[:, expert] != ABSENT)
            worst = open_N[worst_first(1 - seen.cosine_NE[open_N, expert])]
            places_RD = np.unique(seen.outputs_NED[worst[: 4 * len(dead)], expert].round(5), axis=0)[: len(dead)]
            with torch.no_grad():
                self.network.books[expert][torch.as_tensor(dead[: len(places_RD)])] = torch.as_tensor(places_RD)
            revived += len(places_RD)
        if revived:
            self.progress.line(f"mixture: revived {revived:,} unused codes")


def reconstruction(network: MixtureNetwork, found: Mixed) -> Tensor:
    """Mean squared error of both views; an item without behaviour has only content to reconstruct."""
    error_BI = (network.decoder(found.through_BD) - found.views_BI).square()
    content_BI, behaviour_BJ = error_BI.split(network.inputs, dim=1)
    return (content_BI.sum() + (found.has_B[:, None] * behaviour_BJ).sum()) / error_BI.numel()


def codebook_loss(found: Mixed) -> Tensor:
    """Squared distances of outputs and chosen codes, of open experts, summed over experts."""
    open_BE1 = found.open_BE[..., None]
    codebook = (open_BE1 * (found.chosen_BED - found.outputs_BED.detach()).square()).mean((0, 2)).sum()
    commit = (open_BE1 * (found.outputs_BED - found.chosen_BED.detach()).square()).mean((0, 2)).sum()
    return codebook + COMMITMENT * commit


def alignment(content_BD: Tensor, behaviour_BD: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Each item's views find each other among those of the batch, both ways, by cosine. Shape: (B,)."""
    scores_BB = F.normalize(content_BD, dim=1) @ F.normalize(behaviour_BD, dim=1).T / temperature
    own_B = torch.arange(len(scores_BB))
    there = F.cross_entropy(scores_BB, own_B, reduction="none")
    return (there + F.cross_entropy(scores_BB.T, own_B, reduction="none")) / 2


def alignment_weight(richness_B: Tensor) -> Tensor:
    """Nearly 0 for items with little behaviour, 1 for the richest. Shape: (B,)."""
    return (STEEP * richness_B - LATE).sigmoid() / torch.tensor(STEEP - LATE).sigmoid()


def look(network: MixtureNetwork, vectors_NI: np.ndarray) -> Look:
    """Codes, outputs, and the share of the content's variance that the decoded codes do not explain."""
    parts, error, whole = [], 0.0, 0.0
    for found in mixed_blocks(network, vectors_NI):
        parts.append(found)
        content_BI = found.views_BI[:, : network.inputs[0]]
        with torch.inference_mode():
            decoded_BI = network.decoder(found.through_BD)[:, : network.inputs[0]]
        error += float((decoded_BI - content_BI).square().sum())
        whole += float(content_BI.square().sum())
    codes_NE = np.concatenate([torch.where(p.open_BE, p.codes_BE, ABSENT).numpy() for p in parts])
    outputs_NED = np.concatenate([p.outputs_BED.numpy() for p in parts])
    chosen_NED = np.concatenate([p.chosen_BED.numpy() for p in parts])
    norms_NE = np.linalg.norm(outputs_NED, axis=2) * np.linalg.norm(chosen_NED, axis=2)
    used = [len(np.unique(c[c != ABSENT])) / len(book) for c, book in zip(codes_NE.T, network.books)]
    return Look(
        codes_NE=codes_NE,
        outputs_NED=outputs_NED,
        cosine_NE=(outputs_NED * chosen_NED).sum(2) / np.maximum(norms_NE, 1e-12),
        utilization=float(np.mean(used)),
        length=float((codes_NE != ABSENT).sum(1).mean()),
        collisions=1 - len(np.unique(group_numbers(Ragged.from_dense(codes_NE)))) / len(codes_NE),
        unexplained=error / max(whole, 1e-12),
    )
