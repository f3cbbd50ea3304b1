"""Stage 1: train the capsules in the common loop, monitor them, then set the values that are not trained.

The best step has the least error of codes and the fewest collisions on a sample of the catalogue.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.base.freed_memory import keep_freed_memory
from capsid.base.run_options import CheckpointFile
from capsid.progress import Progress
from capsid.tokenize.capsules.centres import fit_centres
from capsid.tokenize.capsules.early_exit import Encoded, encode, encode_catalogue
from capsid.tokenize.capsules.encoding import trace
from capsid.tokenize.capsules.initialise import GAIN, calibrate_all, settle, start_from_data
from capsid.tokenize.capsules.losses import terms
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork, Depth, Projection
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.votes import norm
from capsid.tokenize.capsules.watch import Watch, collision_rate, look, warn_of_collapse
from capsid.tokenize.stopping import SharedPrefixes
from capsid.tokenize.trace import Trace
from capsid.tokenize.training import VectorTraining, sample_rows, unused_codes, weight_source, worst_first

# Above this share of growing residuals a depth's step is made smaller (CapsID, appendix A.1), down to a floor.
GROWTH, STEP_FACTOR, STEP_FLOOR = 0.01, 0.8, 0.1
# Items in the reference for drift: quantiles of this many are accurate to one or two percent.
REFERENCE_ROWS = 4096
# A batch whose mean weights are to be even has this many items per capsule, or more.
ITEMS_PER_CAPSULE = 4
NAME = "capsules"


@dataclass(frozen=True, eq=False)
class StageOne:
    """Result of stage 1. `reference` holds sorted confidences and hard residuals of the fitted items by depth, for
    drift checks, shape (2, depths, quantiles); `encoded` are the codes of all items."""

    network: CapsuleNetwork
    shared: SharedPrefixes
    reference: np.ndarray
    encoded: Encoded


def fit_stage_one(
    settings: CapsuleSettings,
    vectors_NI: np.ndarray,
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> StageOne:
    """Initialise, train and settle if there are steps, and freeze the prefix counts."""
    keep_freed_memory()
    network = CapsuleNetwork(settings, vectors_NI.shape[1], weight_source(seed, NAME))
    sample_N = sample_rows(len(vectors_NI), settings.sample, seed, NAME)
    sample_NI = np.array(vectors_NI[sample_N], dtype=np.float32)
    if settings.start == "data":
        start_from_data(network, torch.as_tensor(sample_NI), settings.masses, seed)
    elif settings.masses:
        calibrate_all(network, torch.as_tensor(sample_NI), settings.masses)
    job = CapsuleTraining(settings.training, network, vectors_NI, sample_NI, progress, settings)
    if settings.training.steps:
        warn_of_small_batches(settings, progress)
        job.run(seed=seed, checkpoint=checkpoint)
        if settings.start == "data" or settings.masses:
            settle(network, torch.as_tensor(sample_NI), settings.masses)
    network.requires_grad_(False)
    return _freeze(job, sample_N)


def warn_of_small_batches(settings: CapsuleSettings, progress: Progress) -> None:
    """Balance is measured on a batch, in which a capsule must be able to win several items."""
    batch, most = settings.training.batch_size, max(settings.codebooks)
    enough = ITEMS_PER_CAPSULE * most
    if settings.balance_weight and batch < enough:
        progress.line(
            f"capsules: batches of {batch:,} items cannot balance {most:,} capsules; "
            f"set tokenizer.training.batch_size to {enough:,} or more, or tokenizer.balance_weight to 0"
        )


def routing_loss(
    settings: CapsuleSettings, network: CapsuleNetwork, x_BI: Tensor, share: float
) -> tuple[Tensor, list[Depth]]:
    """All tokenizer-side terms of a batch with their weights (CapsID, Eq. 10 without the generator's loss),
    `share` of the way through the margin's schedule; and the depths they were computed from."""
    s = settings
    unit_BD = network.enter(x_BI)
    depths = network(unit_BD)
    wanted = s.margin[0] + (s.margin[1] - s.margin[0]) * share
    t = terms(
        depths,
        [layer.centres for layer in network.depths],
        # A margin above the target mass could never be met at the calibrated temperature.
        [min(wanted, m) for m in s.masses] or [wanted] * len(depths),
        rivals=s.rivals,
        confidence=s.confidence,
        residual=s.residual,
        residual_of=s.residual_of,
        alone=s.max_sharing == 0 and s.stops,
    )
    total = s.soft_weight * t.soft + s.hard_weight * t.hard + s.spread_weight * t.spread
    total = total + s.length_weight * t.length + s.tie_weight * t.tie + s.balance_weight * t.balance
    if network.project is not None:
        total = total + _decoding(network.project, x_BI, unit_BD, depths[-1].hard_BD)
    return total, depths


def _decoding(project: Projection, x_BI: Tensor, unit_BD: Tensor, missing_BD: Tensor) -> Tensor:
    """Error of the projection's decoder, given the whole vector and given the tokens."""
    unit_BI = x_BI / norm(x_BI)[:, None]
    whole = (project.decode(unit_BD) - unit_BI).square().sum(1).mean()
    coded = (project.decode(unit_BD - missing_BD) - unit_BI).square().sum(1).mean()
    return whole + coded


@dataclass(eq=False)
class CapsuleTraining(VectorTraining):
    """Reports depths whose residuals grow and reduces their step, and re-seeds capsules that no item uses."""

    name: ClassVar[str] = NAME
    network: CapsuleNetwork
    settings: CapsuleSettings

    def loss(self, x_BI: Tensor, rows_B: np.ndarray, share: float) -> Tensor:
        """The tokenizer-side terms, with the current leak."""
        s = self.settings
        for layer in self.network.depths:
            layer.leak.fill_(s.leak[0] + (s.leak[1] - s.leak[0]) * share)
        return routing_loss(s, self.network, x_BI, share)[0]

    def watch(self) -> tuple[Trace, Watch]:
        """The routing of the sample, and its statistics."""
        seen = trace(self.network, self.looked_at_NI)
        return seen, look(self.settings, seen)

    def look(self) -> Watch:
        """The statistics alone."""
        return self.watch()[1]

    def answer(self, *, early: bool) -> None:
        """Report where residuals grow and reduce these steps; re-seed unused capsules."""
        seen, watch = self.watch()
        with torch.no_grad():
            for depth, layer in enumerate(self.network.depths):
                if watch.grew[depth] > GROWTH:
                    self._answer_growth(depth, layer, watch.grew[depth])
            if self.settings.reseed and early:
                self._reseed(seen)

    def _answer_growth(self, depth: int, layer: CapsuleLayer, grew: float) -> None:
        """Without `shrink_step` the growth is only reported: the step (eta of CapsID, Eq. 7) stays as it is."""
        told = f"capsules: {100 * grew:.1f} % of the residuals grew at depth {depth + 1}"
        if not self.settings.shrink_step:
            self.progress.line(told)
        elif float(layer.step) > STEP_FLOOR:
            layer.step.mul_(STEP_FACTOR)
            self.progress.line(f"{told}; its step is now {float(layer.step):.2f}")

    def _reseed(self, seen: Trace) -> None:
        """Reinitialise unused capsules on the items with the largest residuals."""
        dead = unused_codes(seen.codes, self.settings.codebooks)
        if not sum(map(len, dead)):
            return
        worst = worst_first(seen.hard[:, -1])
        for depth, capsules in enumerate(dead):
            rows = worst[: len(capsules)]
            if len(capsules) and len(rows) == len(capsules):
                self._place(depth, torch.as_tensor(capsules), torch.as_tensor(self.looked_at_NI[rows]))
        counts = ", ".join(str(len(c)) for c in dead)
        self.progress.line(f"capsules: re-seeded unused ones, by depth: {counts}")

    def _place(self, depth: int, capsules: Tensor, x_RI: Tensor) -> None:
        layer = self.network.depths[depth]
        soft_RD = hard_RD = self.network.enter(x_RI)
        for earlier in self.network.depths[:depth]:
            out = earlier(soft_RD, hard_RD)
            soft_RD, hard_RD = out.soft_BD, out.hard_BD
        seen_RD = soft_RD / norm(soft_RD)[:, None] if layer.on_direction else soft_RD
        bias_RC = seen_RD @ layer.poses.shared().T  # type: ignore[operator]
        layer.poses.restart(capsules, GAIN * bias_RC / norm(bias_RC)[:, None])  # type: ignore[operator]
        layer.outputs[capsules] = soft_RD
        layer.centres[capsules] = hard_RD


def _freeze(job: CapsuleTraining, sample_N: np.ndarray) -> StageOne:
    """Prefix counts and codes of all items, centres fitted to the final codes of the sample, quantiles for drift."""
    settings, network = job.settings, job.network
    encoded, shared = encode_catalogue(settings, network, job.vectors_NI)
    with torch.inference_mode():
        x_ND = network.enter(torch.as_tensor(job.sample_NI)).numpy()
    start = [layer.centres.numpy() for layer in network.depths]
    sampled = encoded.codes.take(sample_N)
    fitted = fit_centres(x_ND, sampled.dense(), sampled.lengths, start)
    with torch.no_grad():
        for layer, centres in zip(network.depths, fitted):
            layer.centres.copy_(torch.as_tensor(centres))
    if settings.ends_by_centres:
        encoded = encode(settings, network, job.vectors_NI, shared)
    seen = reference_trace(network, job.sample_NI)
    watch = dataclasses.replace(
        look(settings, seen, shared),
        mean_length=float(encoded.codes.lengths.mean()),
        collision_rate=collision_rate(encoded.codes),
    )
    job.progress.line(f"capsules settled: {watch.line()}")
    warn_of_collapse(watch, settings.codebooks, len(seen), job.progress)
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
