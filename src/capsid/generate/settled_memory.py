"""Fits the weights of a memory of transitions to held-out cases, after the network has been trained without them.

A network that is trained with its memory leaves to it what it could have learnt itself. Here a handful of weights is
fitted afterwards to maximise the likelihood of the held-out items. Networks are overconfident on held-out items, and
bonuses look useless beside scores that are too large, so scores are divided by a temperature, here and in the search.
Every temperature gives other weights; those of the largest likelihood come first, but need not rank best, so all are
given. The loss is convex in the weights. Knows networks, lessons and
terms, no files and no ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from capsid.blocks.cross_entropy import Added
from capsid.data.split import Cases
from capsid.errors import ConfigError
from capsid.generate.dense_items import DenseItems
from capsid.generate.generator import Trainable
from capsid.generate.memory import REACH, Memory, Remembered, remembered
from capsid.generate.network import Predictions
from capsid.generate.next_token import NextToken
from capsid.generate.terms import NOTHING, BoundTerm, Step, TermContext
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.rng import numpy_rng

# A few numbers need no more cases than this.
CASES = 8_192
BATCH = 256
ITERATIONS = 25
TEMPERATURES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class SettledMemory:
    """The weights (of followers by distance, then of neighbours), and the mean loss of the cases' tokens at
    `temperature`, without and with them."""

    weights: tuple[float, ...]
    temperature: float
    before: float
    after: float

    def __str__(self) -> str:
        weights = ", ".join(f"{w:.2f}" for w in self.weights)
        return f"memory: weights {weights}; loss at {self.temperature}: {self.before:.3f} -> {self.after:.3f}"

    def give(self, memory: Memory) -> None:
        """Set the memory's weights and temperature."""
        with torch.no_grad():
            memory.weight.copy_(torch.tensor(self.weights) / REACH)
            memory.temperature.fill_(self.temperature)


def memory_of(generator: Trainable) -> Memory:
    """The memory of a generator that has one."""
    memory = getattr(generator.network, "memory", None)
    if not isinstance(memory, Memory):
        raise ConfigError(f"the generator {generator.kind!r} has no memory of transitions")
    return memory


def settle_memory(
    generator: Trainable, context: TermContext, cases: Cases, sequences: Ragged, dense: DenseItems | None
) -> tuple[SettledMemory, ...]:
    """Fit the memory's weights to the targets of `cases`, or, where there are none, to the last items of `sequences`.

    `dense` are the vectors that the network reads beside the tokens, as a search does. One fit for each temperature,
    the most likely first; the memory gets its weights. The last items of sequences are in
    the counted transitions, so each is left out of the counts for itself, as in training.
    """
    network, memory, held_out = generator.network, memory_of(generator), len(cases) > 0
    rows = _complete(cases) if held_out else sequences
    rows = rows.take(np.flatnonzero(rows.lengths > 1))
    chosen = np.sort(numpy_rng(context.seed, "memory").permutation(len(rows))[:CASES])
    network.eval()
    memory.awake = False
    with torch.no_grad():
        lessons = _lessons(context.ids, rows.take(chosen), generator.history, counted=not held_out)
        steps = [Step(lesson, network, network.predict(lesson, _inputs(dense, lesson))) for lesson in lessons]
    memory.awake = True
    found = []
    for temperature in TEMPERATURES:
        without = _Bonusless.of(steps, NextToken(temperature=temperature).bind(context), temperature)
        memory.start()
        if steps:
            _minimise(memory.weight, lambda without=without: without.loss(memory))  # type: ignore[misc]
        weights = tuple((REACH * memory.weight.detach()).tolist())
        found.append(SettledMemory(weights, temperature, without.mean, without.loss(memory).item()))
    found.sort(key=lambda settled: settled.after)
    found[0].give(memory)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Bonusless:
    """Predictions without bonuses, as far as bonuses can change them: the loss with any weights follows from this.

    Entry e is a token of row `row_E` that leads to a follower. Its probability p grows to p exp(b) / z with a bonus b,
    where z = 1 + sum p (exp(b) - 1) over the entries of the row, so the network is asked once for all weights.
    """

    mean: float
    tokens: int
    rows: int
    row_E: Tensor
    probability_E: Tensor
    target_E: Tensor
    logs_EJ: Tensor

    @classmethod
    def of(cls, steps: list[Step], term: BoundTerm, temperature: float) -> _Bonusless:
        total, tokens, rows = 0.0, 0, 0
        parts: list[tuple[Tensor, ...]] = []
        for step in steps:
            asked = _Asked(step)
            value = term.loss(replace(step, predictions=asked.predictions), NOTHING) * len(step.lesson.tokens.values)
            total += value.item()
            for found, values_E, targets_N in asked.entries:
                (slope_E,) = torch.autograd.grad(value, values_E, retain_graph=True)
                own_E = targets_N[found.rows_E] == found.tokens_E
                # The slope of a loss in a score is the probability of its token, minus 1 for the target.
                probability_E = (temperature * slope_E + own_E).clamp(0, 1)
                parts.append((found.rows_E + rows, probability_E, own_E, found.counts_EJ.log1p() / temperature))
                rows += len(targets_N)
            tokens += len(step.lesson.tokens.values)
        width = parts[0][3].shape[1] if parts else 1
        nothing = (torch.zeros(0).long(), torch.zeros(0), torch.zeros(0, dtype=torch.bool), torch.zeros(0, width))
        columns = [torch.cat(column) for column in zip(nothing, *parts)]
        return cls(total / max(tokens, 1), tokens, rows, *columns)

    def loss(self, memory: Memory) -> Tensor:
        """The mean loss with the memory's present weights."""
        bonus_E = self.logs_EJ @ (REACH * memory.weight)
        # Relative to the largest bonus of the row, so that no exponential overflows.
        most_N = torch.zeros(self.rows).scatter_reduce(0, self.row_E, bonus_E.detach(), "amax")
        rest_N = (1 - torch.zeros(self.rows).index_add(0, self.row_E, self.probability_E)).clamp_min(0)
        raised_E = self.probability_E * (bonus_E - most_N[self.row_E]).exp()
        z_N = (rest_N * (-most_N).exp()).index_add(0, self.row_E, raised_E)
        gained = (z_N.log() + most_N).sum() - bonus_E[self.target_E].sum()
        return self.mean + gained / max(self.tokens, 1)


class _Asked:
    """A step whose remembered tokens have zeros added to their scores, which the loss can be differentiated by."""

    def __init__(self, step: Step) -> None:
        self.entries: list[tuple[Remembered, Tensor, Tensor]] = []
        self.predictions = self._with_zeros(step.predictions, step.lesson)

    def _with_zeros(self, found: Predictions, lesson: Lesson) -> Predictions:
        tokens = remembered(lesson)
        zeros_E = torch.zeros(len(tokens.rows_E), requires_grad=True)
        self.entries.append((tokens, zeros_E, found.targets_N))
        own = Added(tokens.rows_E, tokens.tokens_E, zeros_E)
        others = tuple(self._with_zeros(theirs, other) for theirs, other in zip(found.others, lesson.others))
        return replace(found, added=own if found.added is None else found.added.joined(own), others=others)


def _complete(cases: Cases) -> Ragged:
    """Histories with their targets."""
    ones = np.ones(len(cases), dtype=np.int64)
    return cases.histories.beside(Ragged.from_lengths(cases.targets.astype(cases.histories.values.dtype), ones))


def _lessons(ids: SemanticIds, rows: Ragged, history: int, *, counted: bool) -> Iterator[Lesson]:
    """The last item of every row is predicted."""
    for start in range(0, len(rows), BATCH):
        part = rows.take(np.arange(start, min(start + BATCH, len(rows))))
        yield ids.lesson(part, last=history + 1, counted=counted).latest()


def _inputs(dense: DenseItems | None, lesson: Lesson) -> Tensor | None:
    return None if dense is None else dense.inputs(lesson.batch)


def _minimise(weight: nn.Parameter, loss: Callable[[], Tensor]) -> None:
    optimizer = torch.optim.LBFGS([weight], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        (weight.grad,) = torch.autograd.grad(value, weight)
        return value

    optimizer.step(closure)
