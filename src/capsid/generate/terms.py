"""Loss terms: values in a recipe that are bound to ids, trie and tokenizer once per phase, and may have parameters.

A bound term may add to the network's input, sees its predictions, and may give items new codes when a stretch of joint
training ends. It knows no optimiser and no schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.generate.backbone import Backbone, Predictions
from capsid.generate.dense_items import DenseItems
from capsid.ids.layout import TokenLayout
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Over, Trie
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.options import Training


@dataclass(frozen=True, eq=False)
class TermContext:
    """What a term may look at while it is bound. Ids and trie stay as they are for the whole stretch. `tries` has one
    trie for each id system of the items. `width` is that of the network's hidden rows."""

    ids: SemanticIds
    tries: tuple[Trie, ...]
    over: Over = "vocabulary"
    tokenizer: ItemTokenizer | None = None
    width: int = 0
    seed: int = 0

    @property
    def trie(self) -> Trie:
        return self.tries[0]

    def learner(self, ability: type, lacks: str) -> tuple[ItemTokenizer, Any, np.ndarray]:
        """The item tokenizer, its tokenizer, which must have an ability, and the items' vectors."""
        found = self.tokenizer
        if found is not None and isinstance(found.tokenizer_, ability) and found.vectors_ is not None:
            return found, found.tokenizer_, found.vectors_
        kind = None if found is None else found.tokenizer_.kind
        raise ConfigError(f"the tokenizer {kind!r} has no {lacks}", hint="drop adapt from the phase")


@dataclass(frozen=True, eq=False)
class Step:
    """One training step: the lesson, the network and its predictions."""

    lesson: Lesson
    network: Backbone
    predictions: Predictions


@dataclass(frozen=True, eq=False)
class Measured:
    """The weighted sum of all terms for one batch, and how many tokens were predicted."""

    value: Tensor
    predictions: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a term prepares before the network reads. Terms that pass more to their loss use a subclass. `inputs_RD` is
    added to what the network reads, one row for each real token of the batch in turn; `forced_ND` to the tokens of the
    lesson's items where they are read to predict the next one."""

    inputs_RD: Tensor | None = None
    forced_ND: Tensor | None = None


NOTHING = Prepared()


class BoundTerm(nn.Module):
    """A bound term. Its parameters, if any, are trained with the generator and clipped separately. `rate` multiplies
    the learning rate of its parameters. A term that `carries` goes on in the next stretch with what it has learnt;
    others start from scratch."""

    rate: float = 1.0
    carries: ClassVar[bool] = False

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    @property
    def closes(self) -> bool:
        """Whether the rows after the last tokens of items are asked for."""
        return False

    def prepare(self, lesson: Lesson, network: Backbone) -> Prepared:
        """Prepare a batch before the network reads it; by default nothing."""
        return NOTHING

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """The term's mean over the batch, unweighted."""
        raise NotImplementedError

    def settle(self, table: ItemTable, progress: Progress) -> ItemTokenizer | None:
        """New codes after a stretch of joint training; None: ids stay as they are."""
        return None

    def dense(self) -> DenseItems | None:
        """Item vectors beside the ids, as the weights are now; None: the term has none."""
        return None

    def continue_from(self, dense: DenseItems) -> None:
        """Begin with the weights of an earlier fit, if the term has such weights."""


class Term(Protocol):
    """Adds `weight * loss` to the objective."""

    kind: ClassVar[str]

    @property
    def weight(self) -> float:
        """Factor of the loss."""

    def bind(self, context: TermContext) -> BoundTerm:
        """The term, bound to these ids."""


@dataclass(frozen=True)
class Part:
    """Consecutive steps of joint training: `term` is bound beside the phase's terms and, if it `settles`, gives items
    new codes at the end. With a `training` of its own the generator is frozen: the term alone is trained, in `steps` of
    that schedule. Otherwise they are steps of the phase's schedule."""

    term: Term
    steps: range
    settles: bool = True
    training: Training | None = None

    @property
    def freezes(self) -> bool:
        return self.training is not None


class JointTerm(Protocol):
    """Trains a tokenizer together with the generator in the first steps of a phase, part by part. In a term that
    `carries`, optimiser, averages and batches go on across parts and into the rest of the phase; in others every part
    starts them afresh."""

    kind: ClassVar[str]
    carries: ClassVar[bool]

    def parts(self, steps: int) -> tuple[Part, ...]:
        """The parts of a phase of so many steps. Those that train the generator follow each other from step 0 on."""


def equal_parts(term: Term, steps: int, share: float, count: int) -> tuple[Part, ...]:
    """The first `share` of the steps in about equal parts, each of which ends with new codes."""
    ends = sorted({max(1, round(steps * share * n / count)) for n in range(1, count + 1)})
    return tuple(Part(term, range(begin, end)) for begin, end in zip([0, *ends], ends))


class Objective(nn.Module):
    """The bound terms of a stretch, named by their kind."""

    def __init__(self, terms: Sequence[Term], context: TermContext) -> None:
        super().__init__()
        self.terms = nn.ModuleDict()
        for number, term in enumerate(terms):
            name = term.kind if term.kind not in self.terms else f"{term.kind}-{number}"
            self.terms[name] = term.bind(context)

    def __iter__(self) -> Iterator[BoundTerm]:
        return iter(self.terms.values())  # type: ignore[arg-type]

    @property
    def learns(self) -> bool:
        """Whether any term has parameters."""
        return next(self.parameters(), None) is not None

    @property
    def rates(self) -> Mapping[str, float]:
        """Learning-rate factor by the name of a term's parameters."""
        return {f"terms.{name}.*": term.rate for name, term in self.by_name.items()}

    def loss(self, lesson: Lesson, network: Backbone) -> Tensor:
        """The weighted sum of all terms for one batch."""
        return self.measured(lesson, network).value

    def measured(self, lesson: Lesson, network: Backbone) -> Measured:
        """The same, with the number of predicted tokens."""
        prepared = [term.prepare(lesson, network) for term in self]
        predictions = network.predict(
            lesson,
            _total([p.inputs_RD for p in prepared]),
            forced_ND=_total([p.forced_ND for p in prepared]),
            closing=any(term.closes for term in self),
        )
        step = Step(lesson, network, predictions)
        value = sum((term.weight * term.loss(step, ready) for term, ready in zip(self, prepared)), torch.zeros(()))
        return Measured(value, len(predictions.targets.values))

    @property
    def by_name(self) -> dict[str, BoundTerm]:
        """The bound terms by their names."""
        return dict(zip(self.terms, self))

    def carry(self, before: Mapping[str, BoundTerm]) -> None:
        """Let terms that carry go on with what the terms of the same names have learnt in earlier stretches."""
        for name, term in self.by_name.items():
            if name in before and term.carries:
                term.load_state_dict(before[name].state_dict())

    def continue_from(self, dense: DenseItems | None) -> None:
        """Begin with the weights of an earlier fit."""
        if dense is not None:
            for term in self:
                term.continue_from(dense)

    def dense(self) -> DenseItems | None:
        """Item vectors beside the ids, as the weights are now, if a term has some."""
        return next((found for term in self if (found := term.dense()) is not None), None)

    def settle(self, table: ItemTable, progress: Progress) -> ItemTokenizer | None:
        """The tokenizer with new codes, if a term returns one."""
        found = [settled for term in self if (settled := term.settle(table, progress)) is not None]
        return found[-1] if found else None


def per_token(depths_ULD: Tensor, tokens: Ragged, layout: TokenLayout) -> Tensor:
    """The sum over the depths that each token spans; none for suffix and end tokens. Shape: (tokens, D)."""
    running_ULD = F.pad(depths_ULD.cumsum(1), (0, 0, 1, 0))
    item_R, spans_R = tokens.row_numbers, layout.spans[tokens.values]
    start_R = np.where(spans_R > 0, layout.depth_of[tokens.values], 0)
    return running_ULD[item_R, start_R + spans_R] - running_ULD[item_R, start_R]


def _total(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of those that there are."""
    given = [part for part in parts if part is not None]
    return sum(given[1:], given[0]) if given else None
