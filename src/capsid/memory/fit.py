"""Fits the memory of a method to held-out cases, after the network has been trained without it.

A handful of weights is fitted to maximise the likelihood of the held-out items. Networks are overconfident on held-out
items, and bonuses look useless beside scores that are too large, so scores are divided by a temperature, here and in
the search. Every temperature gives other weights, and the most likely ones need not rank best: all are tried, and those
are kept that rank the validation cases best. The loss is convex in the weights. Knows no files.

Shapes: J weights, M predicted items, N their tokens, T tokens of an item, E entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.blocks.cross_entropy import Added
from capsid.base.randomness import numpy_rng
from capsid.data.split import Cases
from capsid.generate.backbone import Predictions
from capsid.generate.dense_items import DenseItems
from capsid.generate.next_token import NextToken
from capsid.generate.terms import NOTHING, BoundTerm, Step, TermContext
from capsid.ids.layout import PAD
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.memory.memory import REACH, FittedMemory, Followers, Transitions
from capsid.ragged import Ragged

# A few numbers need no more cases than this.
CASES = 8_192
BATCH = 256
ITERATIONS = 25
TEMPERATURES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class MemoryFit:
    """The weights for one temperature, and the mean loss of the cases' tokens without and with them."""

    memory: FittedMemory
    before: float
    after: float

    def __str__(self) -> str:
        weights = ", ".join(f"{w:.2f}" for w in self.memory.weights)
        return f"memory: weights {weights}; loss at {self.memory.temperature}: {self.before:.3f} -> {self.after:.3f}"


def fit_weights(
    generator: Any,
    transitions: Transitions,
    context: TermContext,
    cases: Cases,
    sequences: Ragged,
    dense: DenseItems | None = None,
) -> tuple[MemoryFit, ...]:
    """Fit the weights to the targets of `cases`, or, where there are none, to the last items of `sequences`.

    `dense` are the vectors that the network reads beside the tokens, as a search does. One fit for each temperature,
    the most likely first. The last items of sequences are in the counted transitions, so each is left out of the
    counts for itself.
    """
    held_out = len(cases) > 0
    rows = _complete(cases) if held_out else sequences
    rows = rows.take(np.flatnonzero(rows.lengths > 1))
    chosen = np.sort(numpy_rng(context.seed, "memory").permutation(len(rows))[:CASES])
    with torch.no_grad():
        asked = [
            _Asked(step, tuple(_remembered(step.lesson, context.ids, transitions, counted=not held_out)))
            for step in _steps(generator, context.ids, rows.take(chosen), dense)
        ]
    found = []
    for temperature in TEMPERATURES:
        without = _Bonusless.of(asked, NextToken(temperature=temperature).bind(context), temperature)
        weight = nn.Parameter(torch.zeros(transitions.columns))
        if asked:
            _minimise(weight, lambda without=without, weight=weight: without.loss(weight))  # type: ignore[misc]
        memory = FittedMemory(transitions, tuple((REACH * weight.detach()).tolist()), temperature)
        found.append(MemoryFit(memory, without.mean, without.loss(weight).item()))
    return tuple(sorted(found, key=lambda fit: fit.after))


@dataclass(frozen=True, eq=False)
class Remembered:
    """What a lesson's predictions remember: counts of tokens that lead to followers; pairs are sorted by row."""

    rows_E: Tensor
    tokens_E: Tensor
    counts_EJ: Tensor

    @classmethod
    def of(cls, lesson: Lesson, found: Followers) -> Remembered:
        """For every predicted token: each token that leads to a follower and agrees with the tokens before it. Rows are
        numbered as in `predict`: the tokens of the lesson's items, in order."""
        case_E, tokens_ET = found.items.row_numbers, found.own.dense(PAD).astype(np.int64)
        target_MT, lengths_M = lesson.tokens.dense(PAD), lesson.tokens.lengths
        stride = int(max(tokens_ET.max(initial=0), target_MT.max(initial=0))) + 1
        open_E = np.arange(len(case_E))
        keys, counts = [np.zeros(0, np.int64)], [found.counts_EJ[:0]]
        for depth in range(min(target_MT.shape[1], tokens_ET.shape[1])):
            open_E = open_E[(found.own.lengths[open_E] > depth) & (lengths_M[case_E[open_E]] > depth)]
            row_E = lesson.tokens.offsets[case_E[open_E]] + depth
            keys.append(row_E * stride + tokens_ET[open_E, depth])
            counts.append(found.counts_EJ[open_E])
            # A follower stays open below this token only if it has the target's token here.
            open_E = open_E[tokens_ET[open_E, depth] == target_MT[case_E[open_E], depth]]
        key_C, entry_E = np.unique(np.concatenate(keys), return_inverse=True)
        counts_CJ = torch.zeros(len(key_C), found.counts_EJ.shape[1])
        counts_CJ.index_add_(0, torch.as_tensor(entry_E), torch.as_tensor(np.concatenate(counts)))
        row_C, token_C = np.divmod(key_C, stride)
        return cls(torch.as_tensor(row_C), torch.as_tensor(token_C), counts_CJ)


@dataclass(frozen=True, eq=False)
class _Asked:
    """Predictions of a lesson, and what is remembered of its items in each id system."""

    step: Step
    remembered: tuple[Remembered, ...]

    def with_zeros(self) -> tuple[Predictions, list[Tensor]]:
        """The predictions with zeros added to the scores of remembered tokens, and the zeros of each id system."""
        systems, zeros = [], []
        first = self.step.predictions
        for found, tokens in zip((first, *first.others), self.remembered):
            zeros_E = torch.zeros(len(tokens.rows_E), requires_grad=True)
            own = Added(tokens.rows_E, tokens.tokens_E, zeros_E)
            systems.append(replace(found, added=own if found.added is None else found.added.joined(own)))
            zeros.append(zeros_E)
        return replace(systems[0], others=tuple(systems[1:])), zeros


@dataclass(frozen=True, eq=False)
class _Bonusless:
    """Predictions without bonuses, as far as bonuses can change them: the loss with any weights follows from this.
    Entry e is a token of row `row_E` that leads to a follower. Its probability p grows to p exp(b) / z with a bonus b,
    where z = 1 + sum p (exp(b) - 1) over the entries of the row, so the network is asked once for all weights."""

    mean: float
    tokens: int
    rows: int
    row_E: Tensor
    probability_E: Tensor
    target_E: Tensor
    logs_EJ: Tensor

    @classmethod
    def of(cls, asked: Sequence[_Asked], term: BoundTerm, temperature: float) -> _Bonusless:
        total, tokens, rows = 0.0, 0, 0
        parts: list[tuple[Tensor, ...]] = []
        for one in asked:
            predictions, zeros = one.with_zeros()
            step, predicted = replace(one.step, predictions=predictions), len(one.step.lesson.tokens.values)
            value = term.loss(step, NOTHING) * predicted
            total += value.item()
            for found, own, values_E in zip((predictions, *predictions.others), one.remembered, zeros):
                (slope_E,) = torch.autograd.grad(value, values_E, retain_graph=True)
                own_E = found.targets_N[own.rows_E] == own.tokens_E
                # The slope of a loss in a score is the probability of its token, minus 1 for the target.
                probability_E = (temperature * slope_E + own_E).clamp(0, 1)
                parts.append((own.rows_E + rows, probability_E, own_E, own.counts_EJ.log1p() / temperature))
                rows += len(found.targets_N)
            tokens += predicted
        width = parts[0][3].shape[1] if parts else 1
        nothing = (torch.zeros(0).long(), torch.zeros(0), torch.zeros(0, dtype=torch.bool), torch.zeros(0, width))
        columns = [torch.cat(column) for column in zip(nothing, *parts)]
        return cls(total / max(tokens, 1), tokens, rows, *columns)

    def loss(self, weight_J: Tensor) -> Tensor:
        """The mean loss with these weights."""
        bonus_E = self.logs_EJ @ (REACH * weight_J)
        # Relative to the largest bonus of the row, so that no exponential overflows.
        most_N = torch.zeros(self.rows).scatter_reduce(0, self.row_E, bonus_E.detach(), "amax")
        rest_N = (1 - torch.zeros(self.rows).index_add(0, self.row_E, self.probability_E)).clamp_min(0)
        raised_E = self.probability_E * (bonus_E - most_N[self.row_E]).exp()
        z_N = (rest_N * (-most_N).exp()).index_add(0, self.row_E, raised_E)
        gained = (z_N.log() + most_N).sum() - bonus_E[self.target_E].sum()
        return self.mean + gained / max(self.tokens, 1)


def _steps(generator: Any, ids: SemanticIds, rows: Ragged, dense: DenseItems | None) -> Iterator[Step]:
    """What the network predicts; the last item of every row is the target."""
    for start in range(0, len(rows), BATCH):
        part = rows.take(np.arange(start, min(start + BATCH, len(rows))))
        lesson = ids.lesson(part, last=generator.history + 1).latest()
        inputs_RD = None if dense is None else dense.inputs(lesson.batch)
        yield Step(lesson, generator, generator.predict(lesson, inputs_RD))


def _remembered(lesson: Lesson, ids: SemanticIds, transitions: Transitions, *, counted: bool) -> Iterator[Remembered]:
    """What is remembered before the items of a lesson. `counted`: their own transitions are among the counted ones."""
    found = transitions.before(lesson, ids.prefix_free, counted=counted)
    yield Remembered.of(lesson, found)
    for own, other in zip(lesson.others, ids.others):
        yield Remembered.of(own, found.seen_as(other.prefix_free))


def _complete(cases: Cases) -> Ragged:
    """Histories with their targets."""
    ones = np.ones(len(cases), dtype=np.int64)
    return cases.histories.beside(Ragged.from_lengths(cases.targets.astype(cases.histories.values.dtype), ones))


def _minimise(weight: nn.Parameter, loss: Callable[[], Tensor]) -> None:
    optimizer = torch.optim.LBFGS([weight], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        (weight.grad,) = torch.autograd.grad(value, weight)
        return value

    optimizer.step(closure)
