"""Training of the RQ-VAE: initialisation by k-means, the common loop, and re-seeding of unused codes.

In one stage, or in two: first the popular items, then the others with new codes (SA2CRQ, Wang et al. 2026, arXiv
2602.23978). In the second stage the codes of the first are frozen: the other items use them or the new codes. Encoder
and decoder keep learning. The best step has the least unexplained variance and the fewest collisions on a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.popularity import most_popular
from capsid.base.randomness import child_seed
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.ids.order import SharedPrefixes, group_numbers, unshared_lengths
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.kmeans import balanced_kmeans, faiss_kmeans, kmeans
from capsid.tokenize.rivals.rqvae_network import RQVAENetwork, encode, nearest, quantized_blocks
from capsid.tokenize.rivals.rqvae_terms import SHORTEST, BoundCodeTerm, CodeStep, RQVAESettings
from capsid.tokenize.training import VectorTraining, draw_sample, unused_codes, weight_source, worst_first


class IdLengths(nn.Module):
    """Lengths of the ids of these vectors. Prefixes are counted among them, unless `counted` is given."""

    length_N: Tensor

    def __init__(self, vectors_NI: np.ndarray, crowd: int, counted: SharedPrefixes | None = None) -> None:
        super().__init__()
        self.vectors_NI, self.crowd, self.counted = vectors_NI, crowd, counted
        self.register_buffer("length_N", torch.zeros(len(vectors_NI), dtype=torch.int64))

    def begin(self, network: RQVAENetwork) -> None:
        """Lengths under the current weights."""
        codes_NL = encode(network, self.vectors_NI).dense()
        shared = self.counted or count_prefixes(codes_NL, network, self.crowd)
        self.length_N.copy_(torch.as_tensor(unshared_lengths(codes_NL, shared, SHORTEST)))

    def of(self, rows_B: np.ndarray) -> Tensor:
        """Lengths of some rows. Shape: (rows,)."""
        return self.length_N[torch.as_tensor(rows_B)]


def count_prefixes(codes_NL: np.ndarray, network: RQVAENetwork, crowd: int) -> SharedPrefixes:
    """Prefixes that more than `crowd` items share."""
    return SharedPrefixes.count(codes_NL, [len(book_KD) for book_KD in network.books], crowd, of="items")


KMEANS_ITERATIONS = 20
NAME = "rq-vae"
# A code is not re-seeded on an item with a residual below this share of the latents' length: it would be a duplicate.
EXPLAINED = 1e-3


@dataclass(frozen=True, eq=False)
class Look:
    """Statistics of the network on the sample; lists are by depth. `unexplained` is the share of the vectors' variance
    that the decoded codes do not explain; `left` is the norm of the latent's residual after each depth as a share of
    the latent's norm; `collisions` is the share of items in excess of the distinct prefixes."""

    codes_NL: np.ndarray
    residuals_LND: list[np.ndarray]
    utilization: list[float]
    left: list[float]
    collisions: list[float]
    unexplained: float

    @property
    def score(self) -> float:
        return -(self.unexplained + self.collisions[-1])

    def line(self) -> str:
        percent = lambda values: "/".join(f"{100 * v:.0f}" for v in values)  # noqa: E731
        return (
            f"used {percent(self.utilization)} %, unexplained {100 * self.unexplained:.1f} %, "
            f"latent residual {percent(self.left)} %, collisions {percent(self.collisions)} %"
        )


def fit_rqvae(
    settings: RQVAESettings, table: ItemTable, *, seed: int, checkpoint: CheckpointFile | None, progress: Progress
) -> RQVAENetwork:
    """Initialise the codebooks from data, then train the whole network on all items of the table."""
    vectors_NI = table.vectors(settings.block)
    sample_NI = draw_sample(vectors_NI, seed, NAME)
    # Duplicates would make equal centres, and rounding would decide the ties.
    different_NI = np.unique(sample_NI, axis=0)
    sizes = tuple(min(size, len(different_NI)) for size in settings.codebooks)
    if sizes != settings.codebooks:
        progress.line(f"rq-vae: {len(different_NI):,} different items, so codebooks are reduced to {sizes}")
    network = RQVAENetwork(vectors_NI.shape[1], settings.hidden, settings.latent, sizes)
    network.reset(weight_source(seed, NAME))
    network.measure(torch.as_tensor(sample_NI))
    start_books(network, torch.as_tensor(different_NI), seed, bounded=settings.start == "bounded")
    job = RQVAETraining(settings.training, network, vectors_NI, sample_NI, progress, settings)
    job.terms = bound_terms(settings, table, sizes)
    if settings.crowd:
        job.lengths = IdLengths(vectors_NI, settings.crowd)
    job.run(seed=seed, checkpoint=checkpoint)
    job.tell("rq-vae done")
    return network


def bound_terms(settings: RQVAESettings, table: ItemTable, sizes: tuple[int, ...]) -> list[tuple[float, BoundCodeTerm]]:
    """The terms with their weights. One without weight is left out, so that it changes neither bits nor time."""
    return [(t.weight, t.bind(table, sizes, settings.latent)) for t in settings.terms if t.weight]


@torch.no_grad()
def start_books(network: RQVAENetwork, x_NI: torch.Tensor, seed: int, *, bounded: bool = False) -> None:
    """k-means of the latents, then of the residuals, depth by depth (TIGER, section 3.1, on more than a batch).
    `bounded` clusters hold at least half of the mean size (but at most 50) and at most four times that (LETTER's
    release)."""
    left_ND = network.encoder(network.enter(x_NI))
    for depth, book_KD in enumerate(network.books):
        seeds = child_seed(seed, "rq-vae", "k-means", depth)
        book_KD.copy_(torch.as_tensor(faiss_kmeans(left_ND.numpy(), len(book_KD), KMEANS_ITERATIONS, seeds)))
        if bounded:
            least = min(len(x_NI) // (2 * len(book_KD)), 50)
            most = max(4 * least, -(-len(x_NI) // len(book_KD)))
            found = balanced_kmeans(left_ND.numpy(), book_KD.numpy(), most, least=least, iterations=10)
            book_KD.copy_(torch.as_tensor(found.centres_KD))
        left_ND = left_ND - book_KD[nearest(left_ND, book_KD)]


@dataclass(eq=False)
class RQVAETraining(VectorTraining):
    """Trains the RQ-VAE and revives codes that no item uses. `lengths` cuts the loss where ids end. The first
    `frozen[d]` codes of a depth are not revived."""

    name: ClassVar[str] = NAME
    most_answers: ClassVar[int | None] = 20
    network: RQVAENetwork
    settings: RQVAESettings
    terms: Sequence[tuple[float, BoundCodeTerm]] = ()
    lengths: IdLengths | None = None
    frozen: Sequence[int] = ()

    @property
    def learner(self) -> torch.nn.Module:
        """The network, and the loss terms and the lengths of ids if there are any."""
        beside = [term for _, term in self.terms] + ([] if self.lengths is None else [self.lengths])
        return torch.nn.ModuleList([self.network, *beside]) if beside else self.network

    def begin_epoch(self) -> None:
        """Update the terms from the current codebooks, and the lengths of ids from the current codes."""
        for _, term in self.terms:
            term.begin(list(self.network.books))
        if self.lengths is not None:
            self.lengths.begin(self.network)

    def loss(self, x_BI: torch.Tensor, rows_B: np.ndarray, share: float) -> torch.Tensor:
        """Reconstruction, commitment and the terms, with constant weights."""
        entered_BI = self.network.enter(x_BI)
        found = self.network.quantize(self.network.encoder(entered_BI), self.settings.assign)
        length_B = None if self.lengths is None else self.lengths.of(rows_B)
        total = self.network.loss_of(entered_BI, found, length_B)
        for weight, term in self.terms:
            total = total + weight * term.loss(CodeStep(rows_B, found, list(self.network.books)))
        return total

    def look(self) -> Look:
        return look(self.network, self.looked_at_NI)

    def revive(self) -> None:
        """Reinitialise unused codes with the largest residuals of their depth."""
        seen = self.look()
        floor = EXPLAINED * float(np.linalg.norm(seen.residuals_LND[0], axis=1).mean())
        revived = []
        unused = unused_codes(seen.codes_NL, [len(book_KD) for book_KD in self.network.books])
        if self.frozen:
            unused = [dead[dead >= first] for dead, first in zip(unused, self.frozen)]
        for depth, (book_KD, dead) in enumerate(zip(self.network.books, unused)):
            error_N = np.linalg.norm(seen.residuals_LND[depth + 1], axis=1)
            worst = worst_first(error_N)
            places_RD = _different(seen.residuals_LND[depth][worst[error_N[worst] > floor]], len(dead))
            with torch.no_grad():
                book_KD[torch.as_tensor(dead[: len(places_RD)])] = torch.as_tensor(places_RD)
            revived.append(len(places_RD))
        if sum(revived):
            self.progress.line(f"rq-vae: revived unused codes, by depth: {', '.join(map(str, revived))}")


def look(network: RQVAENetwork, vectors_NI: np.ndarray) -> Look:
    """Codes, residuals and the share of variance that the codes explain."""
    codes, residuals, error, whole = [], [], 0.0, 0.0
    for x_BI, found in quantized_blocks(network, vectors_NI):
        codes.append(found.codes_BL.numpy())
        residuals.append([r.numpy() for r in found.residuals_LBD])
        with torch.inference_mode():
            decoded_BI = network.decoder(found.residuals_LBD[0] - found.residuals_LBD[-1])
        error += float((decoded_BI - x_BI).square().sum())
        whole += float(x_BI.square().sum())
    codes_NL = np.concatenate(codes)
    residuals_LND = [np.concatenate(parts) for parts in zip(*residuals)]
    lengths = [float(np.linalg.norm(r, axis=1).mean()) for r in residuals_LND]
    return Look(
        codes_NL=codes_NL,
        residuals_LND=residuals_LND,
        utilization=[len(np.unique(codes_NL[:, d])) / len(book) for d, book in enumerate(network.books)],
        left=[left / max(lengths[0], 1e-12) for left in lengths[1:]],
        collisions=[_collisions(codes_NL[:, : d + 1]) for d in range(codes_NL.shape[1])],
        unexplained=error / max(whole, 1e-12),
    )


def _collisions(codes_NL: np.ndarray) -> float:
    return 1 - len(np.unique(group_numbers(Ragged.from_dense(codes_NL)))) / len(codes_NL)


def _different(rows_ND: np.ndarray, count: int) -> np.ndarray:
    """The first distinct rows, at most `count`."""
    rows_ND = rows_ND[: 4 * count]
    _, first = np.unique(rows_ND.round(4), axis=0, return_index=True)
    return rows_ND[np.sort(first)[:count]]


def fit_stages(
    settings: RQVAESettings, table: ItemTable, *, seed: int, checkpoint: CheckpointFile | None, progress: Progress
) -> tuple[RQVAENetwork, SharedPrefixes]:
    """Train on the popular items, then on the others: the network, and the prefixes of popular items at which no id
    ends."""
    popular = most_popular(table.counts, settings.head, table.items)
    head = table if len(popular) == len(table) else table.take(popular)
    network = fit_rqvae(settings, head, seed=seed, checkpoint=checkpoint, progress=progress)
    shared = _shared(settings, network, head)
    if len(head) < len(table):
        progress.line(f"rq-vae: {len(head):,} popular items are done, {len(table) - len(head):,} others follow")
        others = table.take(np.setdiff1d(np.arange(len(table)), popular))
        job = _second_stage(settings, network, shared, table, others, seed, progress)
        second = None if checkpoint is None else checkpoint.beside("others")
        job.run(seed=child_seed(seed, NAME, "others"), checkpoint=second)
        job.tell("rq-vae done")
        network = job.network
        # Encoder and codes are others now: lengths must fit the ids of today.
        shared = _shared(settings, network, head)
        if second is not None:
            second.remove()
    return network, shared


def _shared(settings: RQVAESettings, network: RQVAENetwork, table: ItemTable) -> SharedPrefixes:
    if not settings.crowd:
        return SharedPrefixes.none([len(book_KD) for book_KD in network.books])
    return count_prefixes(encode(network, table.vectors(settings.block)).dense(), network, settings.crowd)


def _second_stage(
    settings: RQVAESettings,
    network: RQVAENetwork,
    shared: SharedPrefixes,
    table: ItemTable,
    others: ItemTable,
    seed: int,
    progress: Progress,
) -> RQVAETraining:
    """Training of the other items. The best step is that of the whole catalogue: popular items are not forgotten."""
    vectors_NI = others.vectors(settings.block)
    different_NI = np.unique(draw_sample(vectors_NI, seed, NAME), axis=0)
    frozen = [len(book_KD) for book_KD in network.books]
    extra = [min(math.ceil(settings.extra * size), len(different_NI)) for size in frozen]
    grown = network.grown(extra)
    start_new_codes(grown, torch.as_tensor(different_NI), frozen, seed)
    _freeze(grown, frozen)
    sample_NI = draw_sample(table.vectors(settings.block), seed, NAME)
    # Weight decay would shrink the frozen codes too.
    training = replace(settings.training, weight_decay=0.0)
    job = RQVAETraining(training, grown, vectors_NI, sample_NI, progress, settings, frozen=frozen)
    job.terms = bound_terms(settings, others, tuple(len(book_KD) for book_KD in grown.books))
    if settings.crowd:
        job.lengths = IdLengths(vectors_NI, settings.crowd, shared)
    return job


@torch.no_grad()
def start_new_codes(network: RQVAENetwork, x_NI: Tensor, frozen: list[int], seed: int) -> None:
    """New codes start at k-means of the residuals that the frozen codes explain worst, at least half of them."""
    left_ND = network.encoder(network.enter(x_NI))
    for depth, (first, book_KD) in enumerate(zip(frozen, network.books)):
        new = len(book_KD) - first
        old_KD = book_KD[:first]
        if new:
            error_N = (left_ND - old_KD[nearest(left_ND, old_KD)]).square().sum(1)
            worst = torch.argsort(error_N, descending=True, stable=True)[: max(new, len(error_N) // 2)]
            seeds = child_seed(seed, NAME, "others", depth)
            book_KD[first:] = torch.as_tensor(kmeans(left_ND[worst].numpy(), new, KMEANS_ITERATIONS, 1, seeds))
        left_ND = left_ND - book_KD[nearest(left_ND, book_KD)]


def _freeze(network: RQVAENetwork, frozen: list[int]) -> None:
    """The first codes of every codebook get no gradient."""
    for book_KD, first in zip(network.books, frozen):
        learns_K1 = (torch.arange(len(book_KD)) >= first).float()[:, None]
        book_KD.register_hook(lambda gradient, learns_K1=learns_K1: gradient * learns_K1)
