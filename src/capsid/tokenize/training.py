"""The training loop shared by all trained tokenizers: batches of rows, a score on a sample, corrections in between.

A tokenizer defines its loss, how it inspects the sample, and how it corrects the network between epochs. This module
does the rest: it draws the sample, reads vectors by row (from a mapped file larger than memory if need be), runs the
common loop and freezes the weights. It needs no generator and knows no concrete tokenizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.randomness import child_seed, numpy_rng
from capsid.base.run_options import CheckpointFile
from capsid.progress import Progress
from capsid.train.batches import BatchPlan
from capsid.train.lanes import Loss
from capsid.train.loop import Task, TrainingResult, train
from capsid.train.options import Training

# Items that a start is fitted to, and those that are looked at between epochs.
SAMPLE_ROWS, LOOK_ROWS = 65_536, 16_384
# Corrections that need further training are made only until this share of the steps.
EARLY = 0.8


class Look(Protocol):
    """Statistics of a tokenizer on the sample during training."""

    @property
    def score(self) -> float:
        """Higher is better: the weights of the best score are kept."""

    def line(self) -> str:
        """All statistics as one progress line."""


def weight_source(seed: int, name: str) -> torch.Generator:
    """The random generator for a network's initial weights."""
    return torch.Generator().manual_seed(child_seed(seed, name, "weights"))


def draw_sample(vectors_NI: np.ndarray, seed: int, name: str, most: int = SAMPLE_ROWS) -> np.ndarray:
    """At most `most` rows in catalogue order, copied into memory. Shape: (rows, I)."""
    return np.array(vectors_NI[sample_rows(len(vectors_NI), most, seed, name)], dtype=np.float32)


def sample_rows(items: int, most: int, seed: int, name: str) -> np.ndarray:
    """Row numbers of the sample, in catalogue order. Shape: (rows,)."""
    return np.sort(numpy_rng(seed, name, "sample").permutation(items)[:most])


def row_plan(rows: int, training: Training, seed: int) -> BatchPlan:
    """Batches of rows, all of the same size."""
    return BatchPlan(np.ones(rows, dtype=np.int64), training.batch_size, seed)


def train_rows(
    network: nn.Module,
    plan: BatchPlan,
    loss: Callable[[np.ndarray, int], Loss],
    training: Training,
    *,
    name: str,
    seed: int,
    score: Callable[[], float] | None = None,
    checkpoint: CheckpointFile | None = None,
    progress: Progress,
    apart: tuple[nn.Module, ...] = (),
) -> TrainingResult:
    """Run the common loop and keep the weights with the best score. Modules `apart` are clipped separately."""
    task = Task(network, plan, loss, score, "score", apart)
    return train(task, training, seed=seed, checkpoint=checkpoint, progress=progress, name=name)


def share_done(step: int, training: Training) -> float:
    """The share of training done at a step: 0 at the first, 1 at the last."""
    return step / max(training.steps - 1, 1)


def unused_codes(codes_NL: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The codes that no item uses, by depth."""
    return [np.setdiff1d(np.arange(size), codes_NL[:, depth]) for depth, size in enumerate(sizes)]


def worst_first(error_N: np.ndarray) -> np.ndarray:
    """Rows by descending error; ties in row order."""
    return np.argsort(-error_N, kind="stable")


@dataclass(eq=False)
class VectorTraining(ABC):
    """Trains one tokenizer on item vectors. Subclasses define the loss, the statistics and the corrections."""

    name: ClassVar[str]
    # Corrections happen between epochs, at most this often in a fit: inspecting the sample costs several steps.
    most_answers: ClassVar[int | None] = None

    training: Training
    network: nn.Module
    vectors_NI: np.ndarray
    sample_NI: np.ndarray
    progress: Progress

    @abstractmethod
    def loss(self, x_BI: Tensor, rows_B: np.ndarray, share: float) -> Tensor:
        """Mean loss of a batch from these rows, after this share of training."""

    @property
    def learner(self) -> nn.Module:
        """The module that is trained and saved in checkpoints: the network, possibly with more parts."""
        return self.network

    def begin_epoch(self) -> None:  # noqa: B027  (most tokenizers have nothing to prepare)
        """Prepare for an epoch. Keep the results in the learner, so that a resumed run has them."""

    @abstractmethod
    def look(self) -> Look:
        """Statistics of the sample under the current weights."""

    def revive(self) -> None:  # noqa: B027
        """Reinitialise codes that no item uses."""

    def answer(self, *, early: bool) -> None:
        """Correct the network after inspection; `early` says whether enough training is left to adapt to it. Must be a
        function of the weights alone, so that a resumed run makes the same corrections. By default, codes are
        revived."""
        if early:
            self.revive()

    @cached_property
    def looked_at_NI(self) -> np.ndarray:
        """Part of the sample: it is inspected several times per fit, so it must be cheap compared to the steps."""
        return self.sample_NI[:: -(-len(self.sample_NI) // LOOK_ROWS)]

    def tell(self, name: str) -> Look:
        seen = self.look()
        self.progress.line(f"{name}: {seen.line()}")
        return seen

    def score(self) -> float:
        return self.tell(self.name).score

    def run(self, *, seed: int, checkpoint: CheckpointFile | None) -> None:
        """Train, keep the weights of the best score, and freeze them."""
        self.tell(f"{self.name} start")
        plan = row_plan(len(self.vectors_NI), self.training, seed)
        train_rows(
            self.learner,
            plan,
            self.batch_loss(len(plan)),
            self.training,
            name=self.name,
            seed=seed,
            score=self.score,
            checkpoint=checkpoint,
            progress=self.progress,
            apart=() if self.learner is self.network else (self.network,),
        )
        self.network.requires_grad_(False)

    def batch_loss(self, steps_per_epoch: int) -> Callable[[np.ndarray, int], Loss]:
        """The loss of a batch of rows at a step; corrections are made in between."""
        steps = self.training.steps
        epochs = 1 if self.most_answers is None else max(1, round(steps / self.most_answers / steps_per_epoch))
        # A catalogue so large that training ends within the first epoch is still inspected.
        apart = min(epochs * steps_per_epoch, max(1, steps // 5))

        def of(rows: np.ndarray, step: int) -> Loss:
            if step and step % apart == 0:
                self.answer(early=step <= EARLY * steps)
            if step % steps_per_epoch == 0:
                self.begin_epoch()
            rows_B = np.sort(rows)
            x_BI = torch.as_tensor(np.array(self.vectors_NI[rows_B], dtype=np.float32))
            return Loss(self.loss(x_BI, rows_B, share_done(step, self.training)), len(rows))

        return of
