"""Training of the RQ-VAE in one stage, or in two: first the popular items, then the others with new codes (SA2CRQ, Wang
et al. 2026, arXiv 2602.23978).

In the second stage the codes of the first are frozen: the other items use them or the new codes. Encoder and decoder
keep learning. The rest of the second stage is the common training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from capsid.base.popularity import most_popular
from capsid.base.randomness import child_seed
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.progress import Progress
from capsid.tokenize.kmeans import kmeans
from capsid.tokenize.rqvae.fit import KMEANS_ITERATIONS, NAME, RQVAETraining, bound_terms, fit_rqvae
from capsid.tokenize.rqvae.id_lengths import IdLengths, count_prefixes
from capsid.tokenize.rqvae.network import RQVAENetwork, encode, nearest
from capsid.tokenize.rqvae.settings import RQVAESettings
from capsid.tokenize.stopping import SharedPrefixes
from capsid.tokenize.training import draw_sample


@dataclass(frozen=True, eq=False)
class FittedRQVAE:
    """The network, and the prefixes at which no id ends."""

    network: RQVAENetwork
    shared: SharedPrefixes


def fit_stages(
    settings: RQVAESettings, table: ItemTable, *, seed: int, checkpoint: CheckpointFile | None, progress: Progress
) -> FittedRQVAE:
    """Train on the popular items, then on the others; prefixes are counted among the popular items."""
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
    return FittedRQVAE(network, shared)


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
    different_NI = np.unique(draw_sample(vectors_NI, settings.sample, seed, NAME), axis=0)
    frozen = [len(book_KD) for book_KD in network.books]
    extra = [min(math.ceil(settings.extra * size), len(different_NI)) for size in frozen]
    grown = network.grown(extra)
    start_new_codes(grown, torch.as_tensor(different_NI), frozen, seed)
    _freeze(grown, frozen)
    sample_NI = draw_sample(table.vectors(settings.block), settings.sample, seed, NAME)
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
