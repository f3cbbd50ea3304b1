"""Stage 1: train the capsules through the common loop, watch them, and settle what is set and not trained.

Nothing here needs a generator: the best step is the one with the least hard error and the fewest collisions on a sample
of the catalogue. Vectors are read by row, so a mapped file larger than memory will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from capsid.progress import Progress
from capsid.rng import child_seed, numpy_rng
from capsid.running import CheckpointFile
from capsid.tokenize.capsules.centres import fit_centres
from capsid.tokenize.capsules.encoding import trace, traces
from capsid.tokenize.capsules.initialise import GAIN, settle, start_from_data
from capsid.tokenize.capsules.losses import terms
from capsid.tokenize.capsules.network import CapsuleNetwork, Depth, Projection
from capsid.tokenize.capsules.votes import norm
from capsid.tokenize.capsules.watch import Watch, look, warn_of_collapse
from capsid.tokenize.stopping import Crowded
from capsid.tokenize.trace import Trace
from capsid.train.batches import BatchPlan
from capsid.train.loop import Loss, Task, train

if TYPE_CHECKING:
    from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer

# Above this share of growing residuals a depth's step is made smaller (paper, appendix A.1), down to a floor.
GROWTH, STEP_FACTOR, STEP_FLOOR = 0.01, 0.8, 0.1
# Capsules are re-seeded only while there is time left to learn from it.
RESEED_UNTIL = 0.8
LOOK_ROWS = 16_384


@dataclass(frozen=True, eq=False)
class StageOne:
    """What stage 1 made. `reference` holds confidence and hard residual of the fitted items by depth, sorted, to see
    drift against. Shape: (2, depths, quantiles)."""

    network: CapsuleNetwork
    crowded: Crowded
    reference: np.ndarray


def fit_stage_one(
    settings: CapsuleTokenizer,
    vectors_NI: np.ndarray,
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> StageOne:
    """Initialise, train, settle, and freeze the prefix counts."""
    rng = torch.Generator().manual_seed(child_seed(seed, "capsules", "weights"))
    network = CapsuleNetwork(settings, vectors_NI.shape[1], rng)
    rows = np.sort(numpy_rng(seed, "capsules", "sample").permutation(len(vectors_NI))[: settings.sample])
    sample_NI = np.array(vectors_NI[rows], dtype=np.float32)
    if settings.start == "data":
        start_from_data(network, torch.from_numpy(sample_NI), settings.masses, seed)
    job = _Job(settings, network, vectors_NI, sample_NI, progress)
    job.tell("capsules start")
    plan = BatchPlan(np.ones(len(vectors_NI), dtype=np.int64), settings.training.batch_size, seed)
    task = Task(network, plan, job.loss(len(plan)), job.score, "score")
    train(task, settings.training, seed=seed, checkpoint=checkpoint, progress=progress, name="capsules")
    network.requires_grad_(False)
    if settings.start == "data":
        settle(network, torch.from_numpy(sample_NI), settings.masses)
    return _freeze(job)


def routing_loss(
    settings: CapsuleTokenizer, network: CapsuleNetwork, x_BI: Tensor, share: float
) -> tuple[Tensor, list[Depth]]:
    """All tokenizer-side terms of a batch with their weights (paper, final objective without the generator's part),
    `share` of the way through the schedule of the margin; and the depths they were read from."""
    s = settings
    unit_BD = network.enter(x_BI)
    depths = network(unit_BD)
    wanted = s.margin[0] + (s.margin[1] - s.margin[0]) * share
    t = terms(
        depths,
        [layer.centres for layer in network.depths],
        # A margin above the target mass would pull against the temperature for ever.
        [min(wanted, m) for m in s.masses] or [wanted] * len(depths),
        rivals=s.rivals,
        confidence=s.confidence,
        residual=s.residual,
        alone=s.crowd == 0 and s.stops,
    )
    total = s.soft_weight * t.soft + s.hard_weight * t.hard + s.spread_weight * t.spread
    total = total + s.length_weight * t.length + s.tie_weight * t.tie + s.balance_weight * t.balance
    if network.project is not None:
        total = total + _decoding(network.project, x_BI, unit_BD, depths[-1].hard_BD)
    return total, depths


def _decoding(project: Projection, x_BI: Tensor, unit_BD: Tensor, missing_BD: Tensor) -> Tensor:
    """How far the projection's decoder stays from the input, given the whole vector and given the tokens."""
    unit_BI = x_BI / norm(x_BI)[:, None]
    whole = (project.decode(unit_BD) - unit_BI).square().sum(1).mean()
    coded = (project.decode(unit_BD - missing_BD) - unit_BI).square().sum(1).mean()
    return whole + coded


@dataclass(eq=False)
class _Job:
    settings: CapsuleTokenizer
    network: CapsuleNetwork
    vectors_NI: np.ndarray
    sample_NI: np.ndarray
    progress: Progress

    def loss(self, steps_an_epoch: int) -> Callable[[np.ndarray, int], Loss]:
        steps = self.settings.training.steps
        # A catalogue so large that training ends within the first epoch is looked at all the same.
        steps_an_epoch = min(steps_an_epoch, max(1, steps // 5))

        def of(rows: np.ndarray, step: int) -> Loss:
            if step and step % steps_an_epoch == 0:
                self.between_epochs(step, steps)
            return Loss(self._loss(rows, step / max(steps - 1, 1)), len(rows))

        return of

    def _loss(self, rows: np.ndarray, share: float) -> Tensor:
        s = self.settings
        for layer in self.network.depths:
            layer.leak.fill_(s.leak[0] + (s.leak[1] - s.leak[0]) * share)
        x_BI = torch.from_numpy(np.array(self.vectors_NI[np.sort(rows)], dtype=np.float32))
        return routing_loss(s, self.network, x_BI, share)[0]

    @cached_property
    def looked_at_NI(self) -> np.ndarray:
        """Part of the sample: a look comes several times in a fit and should cost little beside the steps."""
        return self.sample_NI[:: -(-len(self.sample_NI) // LOOK_ROWS)]

    def watch(self) -> tuple[Trace, Watch]:
        """The items looked at as the network sees them now."""
        seen = trace(self.network, self.looked_at_NI)
        return seen, look(self.settings, seen)

    def score(self) -> float:
        """Higher is better: little hard error, few collisions (methods 6.6, G1)."""
        watch = self.tell("capsules")
        return -(watch.hard_at_end + watch.collision_rate)

    def tell(self, name: str) -> Watch:
        """One line of progress."""
        watch = self.watch()[1]
        self.progress.line(f"{name}: {watch.line()}")
        return watch

    def between_epochs(self, step: int, steps: int) -> None:
        """Answers to what an epoch showed; a function of the weights alone, so a resumed run answers the same."""
        seen, watch = self.watch()
        with torch.no_grad():
            for depth, layer in enumerate(self.network.depths):
                if watch.grew[depth] > GROWTH and float(layer.step) > STEP_FLOOR:
                    layer.step.mul_(STEP_FACTOR)
                    self.progress.line(
                        f"capsules: {100 * watch.grew[depth]:.1f} % of the residuals grew at depth {depth + 1}; "
                        f"its step is now {float(layer.step):.2f}"
                    )
            if self.settings.reseed and step <= RESEED_UNTIL * steps:
                self._reseed(seen)

    def _reseed(self, seen: Trace) -> None:
        """Unused capsules begin anew on items that the centres explain worst."""
        dead = [np.setdiff1d(np.arange(k), seen.codes[:, d]) for d, k in enumerate(self.settings.codebooks)]
        if not sum(map(len, dead)):
            return
        worst = np.argsort(-seen.hard[:, -1], kind="stable")
        for depth, capsules in enumerate(dead):
            rows = worst[: len(capsules)]
            if len(capsules) and len(rows) == len(capsules):
                self._place(depth, torch.from_numpy(capsules), torch.from_numpy(self.looked_at_NI[rows]))
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


def _freeze(job: _Job) -> StageOne:
    """Prefix counts from all items, centres fitted to the final codes, quantiles for drift."""
    settings, network = job.settings, job.network
    full_NL = np.concatenate([t.codes for t in traces(network, job.vectors_NI)])
    crowded = Crowded.count(full_NL, settings.codebooks, settings.crowd)
    seen = trace(network, job.sample_NI)
    watch = look(settings, seen, crowded)
    with torch.inference_mode():
        x_ND = network.enter(torch.from_numpy(job.sample_NI)).numpy()
    start = [layer.centres.numpy() for layer in network.depths]
    fitted = fit_centres(x_ND, seen.codes, watch.stops.lengths, start)
    with torch.no_grad():
        for layer, centres in zip(network.depths, fitted):
            layer.centres.copy_(torch.from_numpy(centres))
    seen = trace(network, job.sample_NI)
    watch = look(settings, seen, crowded)
    job.progress.line(f"capsules settled: {watch.line()}")
    warn_of_collapse(watch, settings.codebooks, len(job.sample_NI), job.progress)
    return StageOne(network, crowded, drift_reference(seen))


def drift_reference(seen: Trace) -> np.ndarray:
    """Quantiles of confidence and hard residual by depth. Shape: (2, depths, quantiles)."""
    share = np.linspace(0, 1, 101)
    columns = [np.quantile(seen.confidence, share, axis=0).T, np.quantile(seen.hard, share, axis=0).T]
    return np.stack(columns).astype(np.float32)
