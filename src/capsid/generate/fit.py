"""Trains a generator on histories with a list of loss terms. Prepares the data; `capsid.train` runs the loop.

Every next item of every training sequence is a target once per epoch, or one random item per sequence if the generator
or the reading of the ids chooses so. A sequence longer than the model's history is cut into pieces that overlap by one
item, so that no target is lost.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from capsid.base.randomness import numpy_rng
from capsid.base.run_options import ALONE, CheckpointFile, Team
from capsid.data.augment import Augment, random_ends, training_pieces
from capsid.errors import ConfigError, DataError
from capsid.generate.generator import ChoosesTargets, Trainable
from capsid.generate.terms import Objective
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.train.batches import BatchPlan
from capsid.train.lanes import LaneLoss, Loss
from capsid.train.loop import Carried, Task, TrainingResult, train
from capsid.train.options import Training


def fit_generator(
    generator: Trainable,
    ids: SemanticIds,
    sequences: Ragged,
    objective: Objective,
    training: Training,
    *,
    seed: int,
    learns: Sequence[str] = ("*",),
    augment: Augment | None = None,
    validate: Callable[[], float] | None = None,
    steps: range | None = None,
    checkpoint: CheckpointFile | None = None,
    progress: Progress = silent,
    name: str = "generator",
    team: Team = ALONE,
    before: Carried | None = None,
) -> TrainingResult:
    """Train the parameters whose names match `learns` (shell patterns); the others stay as they are.

    Without patterns the generator is frozen: it runs without dropout, and the terms alone are trained. `steps` are the
    steps of the schedule to train now, all of them by default; `before` is what the stretch before has carried.
    Terms with parameters are trained too. Sequences are augmented again at every step.
    """
    pieces = training_pieces(sequences, generator.history)
    if not len(pieces):
        raise DataError(
            "no training sequence has two or more items",
            hint="give longer histories: a generator learns to predict the next item",
        )
    tokens_N = ids.prefix_free.lengths
    lengths = np.concatenate([part.sums(tokens_N[part.values]) for part in pieces.parts()])
    network = generator.network
    _freeze(network, learns)
    plan = BatchPlan(lengths, training.batch_size, seed, training.window)
    source = _Lessons(generator, ids, pieces, augment, seed)
    # With one target per sequence all targets have the same weight anyway.
    weighted = training.equal_targets and not source.one_target
    usual = int((pieces.lengths - 1).sum()) / len(plan)

    def batch(rows: np.ndarray, step: int) -> tuple[Ragged, float]:
        """The items of a batch, and the factor of its loss."""
        items = source.items(rows, step)
        # Sequences of a batch have similar lengths, so batches differ much in their number of targets.
        return items, int((items.lengths - 1).sum()) / usual if weighted else 1.0

    def loss_of(items: Ragged, factor: float, rng: np.random.Generator) -> Loss:
        lesson = source.lesson(items, rng)
        found = objective.measured(lesson, network)
        total = found.value * factor if weighted else found.value
        return Loss(total, int(lesson.batch.lengths_B.sum()) - len(lesson.batch), found.predictions)

    def loss(rows: np.ndarray, step: int) -> Loss:
        return loss_of(*batch(rows, step), numpy_rng(seed, "reading", step))

    def lanes(rows: np.ndarray, step: int, count: int) -> list[LaneLoss]:
        # Augmented before it is cut, so that the sequences do not depend on the lanes.
        items, factor = batch(rows, step)
        parts = np.array_split(np.arange(len(items)), count)
        return [
            partial(loss_of, items.take(part), factor, numpy_rng(seed, "reading", step, lane)) if len(part) else None
            for lane, part in enumerate(parts)
        ]

    task = Task(network, plan, loss, validate, training.select, lanes=lanes)
    # Names must be the same in all stretches that carry something on, whether their terms learn or not.
    if objective.learns or before is not None:
        task = _joint(task, objective, frozen=not learns)
    given: dict[str, Any] = {"checkpoint": checkpoint, "progress": progress, "name": name, "team": team}
    return train(task, training, seed=seed, steps=steps, before=before, **given)


def _joint(task: Task, objective: Objective, *, frozen: bool) -> Task:
    """The task with the terms' own parameters, and without the generator's where it is frozen."""
    learner = nn.ModuleDict({} if frozen else {"generator": task.network})
    learner["objective"] = objective
    rates = {f"objective.{pattern}": rate for pattern, rate in objective.rates.items()}
    return replace(task, network=learner, apart=tuple(objective), rates=rates)


@dataclass(frozen=True, eq=False)
class _Lessons:
    """Turns rows of a batch plan into lessons. Whatever is random depends on the seed and the step only."""

    generator: Trainable
    ids: SemanticIds
    pieces: Ragged
    augment: Augment | None
    seed: int

    @property
    def one_target(self) -> bool:
        """Whether a sequence has one target, at a random end, instead of all its items."""
        chosen = isinstance(self.generator, ChoosesTargets) and self.generator.targets == "last"
        return chosen or self.ids.reading.one_target

    def items(self, rows: np.ndarray, step: int) -> Ragged:
        """The sequences of a batch, as they are read in this step."""
        items = self.pieces.take(rows)
        if self.augment is not None:
            items = self.augment.apply(items, numpy_rng(self.seed, "augment", step))
        return random_ends(items, numpy_rng(self.seed, "target", step)) if self.one_target else items

    def lesson(self, items: Ragged, rng: np.random.Generator) -> Lesson:
        """These sequences as network input, with the items to predict."""
        lesson = self.ids.lesson(items, last=self.generator.history + 1, rng=rng)
        return lesson.latest() if self.one_target else lesson


def _freeze(network: torch.nn.Module, learns: Sequence[str]) -> None:
    if not learns:
        network.eval()
    found = False
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, pattern) for pattern in learns))
        found |= parameter.requires_grad
    if learns and not found:
        raise ConfigError(f"no parameter of the generator matches {list(learns)}")
