"""Fits the weights of a memory of transitions to held-out cases, after the network has been trained without them.

A network that is trained with its memory leaves to it what it could have learnt itself. Here a handful of weights is
fitted afterwards to maximise the likelihood of the held-out items. Networks are overconfident on held-out items, and
bonuses look useless beside scores that are too large, so scores are divided by the temperature that fits the cases
best. The temperature is used only here, because it hardly changes the order of items. The loss is convex in the
weights. Knows networks, lessons and terms, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from capsid.data.split import Cases
from capsid.errors import ConfigError
from capsid.generate.generator import Trainable
from capsid.generate.memory import REACH, Memory, bonuses
from capsid.generate.network import Predictions
from capsid.generate.next_token import NextToken
from capsid.generate.terms import NOTHING, BoundTerm, Step, TermContext
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.rng import numpy_rng

# Three numbers need no more cases than this.
CASES = 8_192
BATCH = 256
ITERATIONS = 25
TEMPERATURES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class SettledMemory:
    """The weights by distance, and the mean loss of the cases' tokens without and with them at `temperature`."""

    weights: tuple[float, ...]
    temperature: float
    before: float
    after: float

    def __str__(self) -> str:
        weights = ", ".join(f"{w:.2f}" for w in self.weights)
        return f"memory: weights {weights}; loss at {self.temperature}: {self.before:.3f} -> {self.after:.3f}"


def memory_of(generator: Trainable) -> Memory:
    """The memory of a generator that has one."""
    memory = getattr(generator.network, "memory", None)
    if not isinstance(memory, Memory):
        raise ConfigError(f"the generator {generator.kind!r} has no memory of transitions")
    return memory


def settle_memory(generator: Trainable, context: TermContext, cases: Cases, sequences: Ragged) -> SettledMemory:
    """Fit the memory's weights to the targets of `cases`, or, where there are none, to the last items of `sequences`.

    The last items are in the counted transitions, so each is left out of the counts for itself, as in training.
    """
    network, memory, held_out = generator.network, memory_of(generator), len(cases) > 0
    rows = _complete(cases) if held_out else sequences
    rows = rows.take(np.flatnonzero(rows.lengths > 1))
    chosen = np.sort(numpy_rng(context.seed, "memory").permutation(len(rows))[:CASES])
    network.eval()
    memory.awake = False
    with torch.no_grad():
        lessons = _lessons(context.ids, rows.take(chosen), generator.history, counted=not held_out)
        steps = [Step(lesson, network, network.predict(lesson)) for lesson in lessons]
    memory.awake = True
    tokens = sum(len(step.predictions.targets.values) for step in steps)

    def loss(term: BoundTerm) -> Tensor:
        total = torch.zeros(())
        for step in steps:
            with_bonuses = replace(step, predictions=_remembered(step.predictions, step.lesson, memory))
            total = total + term.loss(with_bonuses, NOTHING) * len(step.predictions.targets.values)
        return total / max(tokens, 1)

    terms = {temperature: NextToken(temperature=temperature).bind(context) for temperature in TEMPERATURES}
    memory.start()
    before = min(loss(term).item() for term in terms.values())
    found = []
    for temperature, term in terms.items():
        memory.start()
        if steps:
            _minimise(memory.weight, lambda term=term: loss(term))  # type: ignore[misc]
        found.append((loss(term).item(), temperature, memory.weight.detach().clone()))
    after, temperature, best = min(found, key=lambda f: f[0])
    with torch.no_grad():
        memory.weight.copy_(best)
    return SettledMemory(tuple((REACH * best).tolist()), temperature, before, after)


def _complete(cases: Cases) -> Ragged:
    """Histories with their targets."""
    ones = np.ones(len(cases), dtype=np.int64)
    return cases.histories.beside(Ragged.from_lengths(cases.targets.astype(cases.histories.values.dtype), ones))


def _lessons(ids: SemanticIds, rows: Ragged, history: int, *, counted: bool) -> Iterator[Lesson]:
    """The last item of every row is predicted."""
    for start in range(0, len(rows), BATCH):
        part = rows.take(np.arange(start, min(start + BATCH, len(rows))))
        yield ids.lesson(part, last=history + 1, counted=counted).latest()


def _remembered(found: Predictions, lesson: Lesson, memory: Memory) -> Predictions:
    """Predictions of a sleeping memory with its bonuses."""
    own = bonuses(lesson, memory)
    second = None
    if found.second is not None and lesson.second is not None:
        second = _remembered(found.second, lesson.second, memory)
    return replace(found, added=own if found.added is None else found.added.joined(own), second=second)


def _minimise(weight: nn.Parameter, loss: Callable[[], Tensor]) -> None:
    optimizer = torch.optim.LBFGS([weight], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        (weight.grad,) = torch.autograd.grad(value, weight)
        return value

    optimizer.step(closure)
