"""Stage 1: start the capsules, train them by the tokenizer's objective, and fit what follows from the codes.

Nothing that training learnt is overwritten afterwards. The weights that are kept have the best Recall@10 of plain
counts over the ids, among validations after the annealing; see `inspection.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.devices import keep_freed_memory
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.ids.order import SharedPrefixes
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.base import Beside, Trace
from capsid.tokenize.capsules.capsules import CapsuleNetwork
from capsid.tokenize.capsules.catalogue import encode_catalogue, trace
from capsid.tokenize.capsules.centres import fit_centres
from capsid.tokenize.capsules.inspection import Followers, Inspection, inspect, warn_of_collapse
from capsid.tokenize.capsules.objective import objective
from capsid.tokenize.capsules.settings import ANNEALED, CapsuleSettings
from capsid.tokenize.capsules.start import calibrate_all, start_from_data
from capsid.tokenize.training import SAMPLE_ROWS, VectorTraining, sample_rows, weight_source

# Where more than this share of the residuals grows, a depth subtracts less (eta; CapsID, appendix A.1).
GROWTH, STEP_FACTOR, STEP_FLOOR = 0.25, 0.8, 0.1
# Items that are looked at between epochs, and in the reference for drift.
INSPECTED_ROWS, REFERENCE_ROWS = 1_500, 4_096
NAME = "capsules"


@dataclass(frozen=True, eq=False)
class StageOne:
    """Result of stage 1. `reference` holds sorted confidences and hard residuals of the fitted items by depth, for
    drift checks, shape (2, depths, quantiles); `encoded` are codes and confidences of all items."""

    network: CapsuleNetwork
    shared: SharedPrefixes
    reference: np.ndarray
    encoded: tuple[Ragged, Ragged]


def fit_stage_one(
    settings: CapsuleSettings,
    table: ItemTable,
    beside: Beside | None = None,
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> StageOne:
    """Start, train if there are steps, and freeze the prefix counts. `beside` learns from the codes of every epoch."""
    keep_freed_memory()
    vectors_NI = table.vectors(settings.block)
    network = CapsuleNetwork(settings, vectors_NI.shape[1], weight_source(seed, NAME))
    sample_N = sample_rows(len(vectors_NI), SAMPLE_ROWS, seed, NAME)
    sample_NI = np.array(vectors_NI[sample_N], dtype=np.float32)
    if settings.start == "data":
        start_from_data(network, torch.as_tensor(sample_NI), settings, seed)
    else:
        calibrate_all(network, torch.as_tensor(sample_NI), settings)
    training = settings.training.in_steps(len(vectors_NI))
    job = CapsuleTraining(training, network, vectors_NI, sample_NI, progress, settings, table.sequences, seed, beside)
    if training.steps:
        job.run(seed=seed, checkpoint=checkpoint)
    network.requires_grad_(False)
    return _freeze(job, sample_N)


@dataclass(eq=False)
class CapsuleTraining(VectorTraining):
    """Minimises the objective, and watches how many residuals grow."""

    name: ClassVar[str] = NAME
    network: CapsuleNetwork
    settings: CapsuleSettings
    sequences: Ragged
    seed: int
    beside: Beside | None = None

    @cached_property
    def learner(self) -> nn.Module:
        """The network, and what learns beside it: checkpoints and the kept weights hold both."""
        return self.network if self.beside is None else nn.ModuleList([self.network, self.beside])  # type: ignore[list-item]

    def begin_epoch(self) -> None:
        """What learns beside counts again."""
        if self.beside is not None:
            self.beside.recount()

    def loss(self, x_BI: Tensor, rows_B: np.ndarray, share: float) -> Tensor:
        """The objective; margins are annealed over the first part of training."""
        found = objective(self.settings, self.network, x_BI, min(1.0, share / ANNEALED))
        if self.beside is None:
            return found.loss
        self.beside.see(rows_B, found.codes(len(rows_B), len(self.network.depths)))
        return found.loss + self.beside.loss(share)

    @cached_property
    def looked_at_NI(self) -> np.ndarray:
        return self.sample_NI[:: -(-len(self.sample_NI) // INSPECTED_ROWS)]

    @cached_property
    def followers(self) -> Followers | None:
        """The counts that score ids; None without sequences."""
        return Followers.of(self.sequences, len(self.vectors_NI), seed=self.seed)

    def look(self) -> Inspection:
        """Statistics of the rows that are looked at; collisions and recall of the whole catalogue."""
        (codes, _), shared = encode_catalogue(self.settings, self.network, self.vectors_NI)
        found = inspect(self.settings, trace(self.network, self.looked_at_NI), shared, codes)
        return found if self.followers is None else dataclasses.replace(found, recall=self.followers.recall(codes))

    def answer(self, *, early: bool) -> None:
        """Report where residuals grow; where many do, subtract less from now on."""
        grew_L = trace(self.network, self.looked_at_NI).grew.mean(0)
        for depth, capsules in enumerate(self.network.depths):
            if grew_L[depth] > GROWTH and float(capsules.step) > STEP_FLOOR:
                capsules.step.mul_(STEP_FACTOR)
                self.progress.line(
                    f"capsules: {100 * grew_L[depth]:.1f} % of the residuals grew at depth {depth + 1}; "
                    f"its step is now {float(capsules.step):.2f}"
                )


def _freeze(job: CapsuleTraining, sample_N: np.ndarray) -> StageOne:
    """Prefix counts and codes of all items, centres fitted to the codes of the sample, quantiles for drift."""
    settings, network = job.settings, job.network
    encoded, shared = encode_catalogue(settings, network, job.vectors_NI)
    with torch.inference_mode():
        x_ND = network.enter(torch.as_tensor(job.sample_NI)).numpy()
    start = [capsules.centres.numpy() for capsules in network.depths]
    sampled = encoded[0].take(sample_N)
    fitted = fit_centres(x_ND, sampled.dense(), sampled.lengths, start)
    with torch.no_grad():
        for capsules, centres in zip(network.depths, fitted):
            capsules.centres.copy_(torch.as_tensor(centres))
    seen = reference_trace(network, job.sample_NI)
    found = inspect(settings, seen, shared, encoded[0])
    job.progress.line(f"capsules: {found.line()}")
    warn_of_collapse(found, settings.codebooks, len(seen), job.progress)
    return StageOne(network, shared, drift_reference(seen), encoded)


def reference_trace(network: CapsuleNetwork, vectors_NI: np.ndarray) -> Trace:
    """The trace of an evenly spaced sample of the items."""
    rows = np.unique(np.linspace(0, len(vectors_NI) - 1, min(REFERENCE_ROWS, len(vectors_NI))).astype(np.int64))
    return trace(network, vectors_NI[rows])


def drift_reference(seen: Trace) -> np.ndarray:
    """Quantiles of confidence and hard residual by depth. Shape: (2, depths, quantiles)."""
    share = np.linspace(0, 1, 101)
    columns = [np.quantile(seen.confidence, share, axis=0).T, np.quantile(seen.hard, share, axis=0).T]
    return np.stack(columns).astype(np.float32)
