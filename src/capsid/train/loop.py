"""The training loop of all networks of all methods.

The caller supplies the loss of a batch and the validation. If training is killed at any moment and started again with
the same arguments, it continues from its checkpoint and ends with the same bits as an uninterrupted run. Several
processes may share the lanes of a batch; then the first one writes the checkpoints and all of them read them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.devices import keep_freed_memory
from capsid.base.randomness import child_seed
from capsid.base.run_options import ALONE, CheckpointFile, Team
from capsid.errors import CapsidError, ConfigError
from capsid.progress import Progress, duration, silent
from capsid.train.batches import BatchPlan
from capsid.train.checkpoint import (
    NEVER_VALIDATED,
    Checkpoint,
    Snapshots,
    load_checkpoint,
    named_under,
    save_checkpoint,
    tensors_hash,
)
from capsid.train.lanes import LaneLoss, Lanes, Lent, Loss, clipped_together, kept_buffers, rate_groups
from capsid.train.options import Training

# Last weights, averages, optimiser and random state by name, for a stretch that goes on from another one.
Carried = Mapping[str, Tensor]


@dataclass(frozen=True)
class CurvePoint:
    """The result of one validation."""

    step: int
    loss: float
    metric: float
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """The result of training. The network holds the best EMA weights, or the mean of the best `averaged` snapshots.
    `steps` were made; `best_step` and the curve count from the start of the schedule. `carried` is for the next
    stretch, where one was asked for."""

    steps: int
    best_step: int
    best_metric: float
    seconds: float
    tokens: int
    curve: tuple[CurvePoint, ...]
    averaged: int = 1
    carried: Carried | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens (without padding) read per second of training, excluding validation."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, eq=False)
class Task:
    """What to train: `loss` of a batch of rows, and `validate` on the current weights (larger is better).

    Gradients of each module in `apart` are clipped separately, so that a jointly trained module does not change the
    steps of the others. `rates` multiply the learning rate of parameters whose names match a shell pattern. `lanes`
    cuts a batch into this many parts; without it, the task can only be trained on whole batches.
    """

    network: nn.Module
    plan: BatchPlan
    loss: Callable[[np.ndarray, int], Loss]
    validate: Callable[[], float] | None = None
    metric: str = "recall@10"
    apart: tuple[nn.Module, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    lanes: Callable[[np.ndarray, int, int], Sequence[LaneLoss]] | None = None


def train(
    task: Task,
    options: Training,
    *,
    seed: int,
    steps: range | None = None,
    checkpoint: CheckpointFile | None = None,
    progress: Progress = silent,
    name: str = "training",
    team: Team = ALONE,
    before: Carried | None = None,
) -> TrainingResult:
    """Train to the end, starting from the checkpoint if there is one.

    `steps` selects the steps of the schedule to train now, at their learning rates; default: all of them. The processes
    of a `team` share the lanes of every batch and end with the same weights; `validate` must give all of them the same.
    With `before`, what the stretch before has carried (empty for the first one), batches, optimiser, averages and
    dropout go on as if there were no seam; parameters that it does not name start afresh. Without it, all start afresh.
    """
    keep_freed_memory()
    options = options.in_steps(len(task.plan.lengths))
    gpus = {p.device for p in task.network.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(gpus)):
        torch.manual_seed(child_seed(seed, "dropout"))
        wanted = range(options.steps) if steps is None else steps
        run = _Run(task, options, wanted, seed, checkpoint, progress, name, team, before)
        run.resume()
        while not run.over():
            run.step()
        return run.finish()


@dataclass
class _Run:
    task: Task
    options: Training
    steps: range
    seed: int
    checkpoint: CheckpointFile | None
    progress: Progress
    name: str
    team: Team
    before: Carried | None = None
    done: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recent: float = math.nan
    curve: list[CurvePoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parameters = {n: p for n, p in self.task.network.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            rate_groups(self.parameters, self.options.weight_decay, self.task.rates),
            betas=(0.9, self.options.beta2),
            fused=True,
        )
        self.device = next(iter(self.parameters.values())).device
        self.lanes = self._lanes()
        self.clipped = clipped_together(self.parameters, self.task.apart)
        # Without averaging, the averages are the weights themselves.
        self.average = {n: p.detach().clone() if self.options.ema else p.data for n, p in self.parameters.items()}
        # Buffers that a network sets while it trains (temperatures, steps) belong to the weights of that step.
        self.buffers = kept_buffers(self.task.network)
        # Batches, averages and validations count from here.
        self.counted = 0 if self.before is None else self.steps.start
        if self.before:
            self._set(self.before)
            self.recent = float(self.before["recent"])
        self.best = Snapshots(self.options.snapshots)
        self.best.offer(self.steps.start, NEVER_VALIDATED, self._now)
        self.epoch = -1
        self.batches: list[np.ndarray] = []
        self.saved_at = time.monotonic()
        self.start_tokens, self.start_seconds = 0, 0.0

    @property
    def number(self) -> int:
        """How many steps of the schedule are made, earlier stretches included."""
        return self.steps.start + self.done

    @property
    def best_step(self) -> int:
        return self.best.kept[0].step

    @property
    def best_metric(self) -> float:
        return self.best.kept[0].metric

    def over(self) -> bool:
        if self.done >= len(self.steps):
            return True
        stale = [p for p in self.curve if p.step > max(self.best_step, self._selects_from)]
        return len(stale) >= self.options.patience

    @property
    def _selects_from(self) -> int:
        """The step from which validations select weights and count for patience."""
        return math.ceil(self.options.patience_from * self.options.steps)

    def step(self) -> None:
        began = time.monotonic()
        epoch, index = divmod(self.counted + self.done, len(self.task.plan))
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, self.task.plan.epoch(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = group["factor"] * self.options.rate(self.steps[self.done])
        loss, tokens = self._gradients(self.batches[index])
        for together in self.clipped:
            torch.nn.utils.clip_grad_norm_(together, self.options.clip)
        self.optimizer.step()
        self._average()
        self.done += 1
        self.tokens += tokens
        self._watch(loss)
        self.seconds += time.monotonic() - began
        self._after_step()

    def _lanes(self) -> Lanes | None:
        """How the batches are shared; None: whole batches on one process, with one stream of random numbers."""
        if self.options.lanes == 1 and self.team.size == 1:
            return None
        if self.task.lanes is None:
            raise ConfigError(
                f"training.lanes must be 1 for {self.name}, got {self.options.lanes}",
                hint="it is trained on whole batches by one process",
            )
        return Lanes(self.options.lanes, self.team, self.seed, list(self.parameters.values()))

    def _gradients(self, rows: np.ndarray) -> tuple[float, int]:
        """Set the gradients of a batch; its loss and tokens."""
        step = self.counted + self.done
        if self.lanes is not None and self.task.lanes is not None:
            return self.lanes.gradients(self.task.lanes(rows, step, self.lanes.count), step)
        if self.device.type != "cpu":
            # A checkpoint holds the stream of the CPU's random numbers; other devices start again at every step.
            torch.manual_seed(child_seed(self.seed, "dropout", step))
        loss = self.task.loss(rows, step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.value.backward()
        return float(loss.value.detach()), loss.tokens

    def _average(self) -> None:
        if not self.options.ema:
            return
        # The initial weights would dominate early averages, so the decay grows with the steps.
        steps = self.counted + self.done
        decay = min(self.options.ema, (1 + steps) / (10 + steps))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.parameters.values()), 1 - decay)

    def _watch(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise CapsidError(
                f"the loss became {loss} at step {self.number}",
                hint="lower training.learning_rate or check the vectors",
            )
        self.recent = loss if math.isnan(self.recent) else 0.98 * self.recent + 0.02 * loss

    def _after_step(self) -> None:
        last = self.done >= len(self.steps)
        if (self.counted + self.done) % self.options.validate_every == 0 or last:
            self._validate()
            self._save()
        elif self.checkpoint is not None and time.monotonic() - self.saved_at > self.checkpoint.every:
            self._save()
        self.progress.update(self._status())

    def _now(self) -> dict[str, Tensor]:
        return {n: t.clone() for n, t in (self.average | self.buffers).items()}

    def _validate(self) -> None:
        if self.task.validate is None:
            self.best.offer(self.number, NEVER_VALIDATED, self._now)
            return
        metric = self._measured(self.task.validate, self.average)
        self.curve.append(CurvePoint(self.number, self.recent, metric, self.seconds))
        selects = self.number >= self._selects_from
        # Earlier weights are kept only until there are better ones.
        self.best.offer(self.number, metric if selects else NEVER_VALIDATED, self._now)
        best = f"best {self.best_metric:.4f} at {self.best_step:,}" if selects else "before selection"
        self.progress.line(f"{self._status()}  valid {self.task.metric} {metric:.4f} ({best})")

    def _measured(self, validate: Callable[[], float], weights: dict[str, Tensor]) -> float:
        """The metric of weights, and of buffers where these are given too."""
        with Lent({n: t for n, t in (self.parameters | self.buffers).items() if n in weights}, weights):
            self.task.network.eval()
            metric = validate()
            self.task.network.train()
        return metric

    def _status(self) -> str:
        spent = self.seconds - self.start_seconds
        speed = (self.tokens - self.start_tokens) / spent if spent > 0 else 0.0
        left = self.seconds / max(self.done, 1) * (self.options.steps - self.number)
        return (
            f"{self.name}: step {self.number:,}/{self.options.steps:,}  loss {self.recent:.3f}  "
            f"{speed:,.0f} tokens/s  ETA {duration(left)}"
        )

    def finish(self) -> TrainingResult:
        carried = None
        if self.before is not None:
            carried = {**self._state(), "recent": torch.tensor(self.recent, dtype=torch.float64)}
        weights, metric, averaged = self._last()
        with torch.no_grad():
            for name, tensor in (self.parameters | self.buffers).items():
                tensor.copy_(weights[name])
        self.task.network.eval()
        curve = tuple(self.curve)
        return TrainingResult(self.done, self.best_step, metric, self.seconds, self.tokens, curve, averaged, carried)

    def _last(self) -> tuple[dict[str, Tensor], float, int]:
        """The best weights, or the mean of the best if it validates better; their metric; how many were averaged."""
        best = self.best.kept[0]
        if len(self.best.kept) > 1 and self.task.validate is not None:
            mean = self.best.mean()
            metric = self._measured(self.task.validate, mean)
            self.progress.line(f"{self.name}: mean of {len(self.best.kept)}  valid {self.task.metric} {metric:.4f}")
            if metric > best.metric:
                return mean, metric, len(self.best.kept)
        return best.weights, best.metric, 1

    def _save(self) -> None:
        if self.checkpoint is None or self.team.rank:
            return
        tensors = {**self._state(), **self.best.tensors()}
        values = {
            "counters": [self.done, self.tokens],
            "numbers": [self.seconds, self.recent],
            "best": self.best.values(),
            "curve": [[p.step, p.loss, p.metric, p.seconds] for p in self.curve],
        }
        save_checkpoint(self.checkpoint.path, tensors, values)
        self.saved_at = time.monotonic()

    def _state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on."""
        tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
        for name, tensor in (self.parameters | self.buffers).items():
            tensors[f"weights/{name}"] = tensor.detach().clone()
        for name, parameter in self.parameters.items():
            tensors[f"average/{name}"] = self.average[name].clone()
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"adam/{name}/{key}"] = value.clone()
        return tensors

    def resume(self) -> None:
        self.task.network.train()
        saved = load_checkpoint(self.checkpoint.path, self.device) if self.checkpoint is not None else None
        if saved is not None:
            self._restore(saved)
        self._agree()

    def _agree(self) -> None:
        """All processes must begin with the same weights at the same step. Nobody saves before all have read."""
        if self.team.size == 1:
            return
        own = torch.tensor([self.done, int(tensors_hash(self.parameters)[:15], 16)])
        if any(not torch.equal(own, other) for other in self.team.gather(own)):
            raise CapsidError(
                f"the processes begin {self.name} with different weights",
                hint="all of them must read the same files: put --out and --data on a shared disk",
            )

    def _restore(self, saved: Checkpoint) -> None:
        self._restore_tensors(saved)
        self.done, self.tokens = saved.values["counters"]
        self.seconds, self.recent = saved.values["numbers"]
        self.curve = [CurvePoint(*p) for p in saved.values["curve"]]
        self.start_tokens, self.start_seconds = self.tokens, self.seconds
        self.progress.line(f"{self.name}: resuming from step {self.number:,}")

    def _restore_tensors(self, saved: Checkpoint) -> None:
        weights, own = saved.group("weights"), self.parameters | self.buffers
        if {n: t.shape for n, t in weights.items()} != {n: p.shape for n, p in own.items()}:
            raise CapsidError(f"the checkpoint {saved.path} belongs to another network", hint="delete it to start over")
        self._set(saved.tensors)
        self.best.restore(saved.values["best"], saved.group)

    @torch.no_grad()
    def _set(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `_state` gave, as far as it names this network's tensors."""
        weights, average, adam = (named_under(tensors, g) for g in ("weights", "average", "adam"))
        for name, tensor in (self.parameters | self.buffers).items():
            if name in weights:
                tensor.copy_(weights[name])
        for name, parameter in self.parameters.items():
            if name in average:
                own = named_under(adam, name)
                self.optimizer.state[parameter] = {key: t.to(self.device, copy=True) for key, t in own.items()}
                # The order of names stays: averages are matched with parameters by position.
                if self.options.ema:
                    self.average[name] = average[name].to(self.device, copy=True)
        torch.set_rng_state(tensors["rng"].cpu())
