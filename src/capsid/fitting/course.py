"""Runs the phases of a schedule in order: binds objectives, trains stretches (parts of a phase), takes over new ids.

Ids, trie and labels change together, between two stretches. Knows neither optimisers nor files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split
from capsid.decode.ranked import validating
from capsid.decode.retrieve import Retriever
from capsid.errors import ConfigError
from capsid.evaluate.evaluator import metric_values
from capsid.fitting.log import PhaseLog
from capsid.fitting.stages import Done, Job, Stages
from capsid.generate.dense_items import DenseItems
from capsid.generate.generator import Generator, Trainable
from capsid.generate.terms import BoundTerm, Objective, TermContext
from capsid.ids.semantic_ids import changed_codes, churn
from capsid.ids.trie import Trie
from capsid.popularity import popularity_ranks
from capsid.progress import Progress
from capsid.recipe import Phase, Recipe, Stretch
from capsid.rng import numpy_rng
from capsid.running import CheckpointFile, Team
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.loop import Carried
from capsid.train.options import Training


@dataclass
class Course:
    """The phases of a schedule, one after the other, with the ids and weights that they lead to."""

    recipe: Recipe
    table: ItemTable
    split: Split
    seed: int
    progress: Progress
    stages: Stages
    tokenizer: ItemTokenizer
    generator: Generator
    dense: DenseItems | None = None
    dense_before: DenseItems | None = None

    def __post_init__(self) -> None:
        self.number = 0
        self.objective: Objective | None = None
        self.bound: dict[str, BoundTerm] = {}
        self.log: list[dict[str, Any]] = []
        self._new_ids(self.tokenizer)

    def take(self, phase: Phase) -> None:
        """Train a phase, stretch by stretch."""
        if not isinstance(self.generator, Trainable):
            kind = self.generator.kind
            raise ConfigError(f"the generator {kind!r} has nothing to train", hint="leave the schedule empty")
        log, first = PhaseLog(), self.number
        # What generator and tokenizer carry on, each from its own stretches.
        carried: dict[bool, Carried] = {False: {}, True: {}}
        for stretch in phase.stretches():
            seed = self.seed + (first if stretch.carries else self.number)
            before = carried[stretch.freezes] if stretch.carries else None
            done = self._train(stretch, self.generator, seed, before)
            carried[stretch.freezes] = done.carried
            log.add(done.log)
            if stretch.part is not None and stretch.part.settles:
                old = self.tokenizer.ids
                self._settle()
                log.settled(changed_codes(old, self.tokenizer.ids))
            self.number += 1
        self.log += log.entries

    def _train(self, stretch: Stretch, generator: Trainable, seed: int, before: Carried | None) -> Done:
        phase, number, team = stretch.phase, self.number, self.stages.run.team
        if phase.retokenize:
            revision = _Revision(self.tokenizer, generator, self.table, self.progress)
            self._new_ids(self.stages.tokenizer(f"tokenizer-{number}", revision))
        ids, over = self.tokenizer.ids, self.recipe.over
        width = generator.network.width
        context = TermContext(ids, self.tries, over, self.tokenizer, width, seed)
        objective = Objective(stretch.terms(self.recipe.objective), context)
        objective.carry(self.bound)
        if self.objective is None:
            objective.continue_from(self.dense_before)
        validate = None
        if not stretch.freezes:
            now = _Now(
                Retriever(dataclasses.replace(self.fitted(), dense=None).model, validating(self.recipe.decoder)),
                objective,
            )
            validate = _validation(now, self.split.valid, phase.training, self.seed, team)
        job = Job(stretch, generator, ids, self.table, objective, validate, seed, team, before)
        done = self.stages.train(number, job, self.progress)
        self.objective, self.dense = objective, objective.dense() or self.dense
        self.bound |= objective.by_name
        return done

    def _settle(self) -> None:
        assert self.objective is not None
        settled = _Settled(self.objective, self.table, self.progress)
        self._new_ids(self.stages.tokenizer(f"tokenizer-{self.number}-adapted", settled))

    def _new_ids(self, tokenizer: ItemTokenizer) -> None:
        """Take over a tokenizer; its tries are rebuilt with it."""
        self.tokenizer, priority = tokenizer, bucket_priority(self.table)
        self.tries = tuple(Trie.build(ids.prefix_free, priority) for ids in tokenizer.ids.systems)

    def fitted(self) -> Fitted:
        """Everything that was learnt so far."""
        return Fitted(self.tokenizer, self.tries, self.generator, self.recipe.over, tuple(self.log), self.dense)


def bucket_priority(table: ItemTable) -> np.ndarray:
    """Order inside a bucket: training popularity, then item id (docs/protocol.md)."""
    return popularity_ranks(table.counts, table.items)


@dataclass(frozen=True, eq=False)
class _Revision:
    """New ids from the mean embedding of each item's tokens; reports how many items got a new id."""

    tokenizer: ItemTokenizer
    generator: Trainable
    table: ItemTable
    progress: Progress

    def __call__(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        old = self.tokenizer.ids
        weights = self.generator.network.embed().detach().numpy()
        sums = old.tokens.sums(weights[old.tokens.values])
        learnt = (sums / old.tokens.lengths[:, None]).astype(np.float32)
        new = self.tokenizer.revise(self.table, learnt)
        self.progress.line(churn(old, new.ids))
        return new


@dataclass(frozen=True, eq=False)
class _Settled:
    """New ids that a joint term has learnt."""

    objective: Objective
    table: ItemTable
    progress: Progress

    def __call__(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        settled = self.objective.settle(self.table, self.progress)
        if settled is None:
            raise ConfigError("the term of phase.adapt returned no codes", hint="move it to the terms of the phase")
        return settled


@dataclass(frozen=True, eq=False)
class _Now:
    """The search with the current weights: item vectors are recomputed on every call."""

    retriever: Retriever
    objective: Objective

    def __call__(self) -> Retriever:
        model = dataclasses.replace(self.retriever.model, dense=self.objective.dense())
        return dataclasses.replace(self.retriever, model=model)


def _validation(
    retriever: Callable[[], Retriever], cases: Cases, training: Training, seed: int, team: Team
) -> Callable[[], float] | None:
    """The selected metric on a fixed sample of users, the same for every method and step; None without cases.

    The processes of a team share the users; all of them get the same number.
    """
    if not len(cases):
        return None
    rows = np.sort(numpy_rng(seed, "validation").permutation(len(cases))[: training.validation_users])
    sample, filtered, part = cases.take(rows), training.select_filtered, (team.rank, team.size)

    def measured() -> float:
        own = metric_values(retriever(), sample, training.select, filter_history=filtered, part=part)
        # Only one process has a value other than 0 for a user, so the sums are exact.
        return float(team.sum(torch.as_tensor(own)).numpy().mean())

    return measured
