"""Fits a recipe: ids first, then the phases of its schedule, then its memory. `Fit.run` is the whole way.

With a working folder every finished stage is saved there, and a killed fit resumes: finished stages are read back, and
an unfinished one continues from its checkpoint. Ids, tries and labels change together, between two stretches (parts of
a phase). Knows no optimiser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsid.base.config import canonical_json, difference, kinds_of
from capsid.base.popularity import popularity_ranks
from capsid.base.randomness import numpy_rng
from capsid.base.run_options import CheckpointFile, RunOptions
from capsid.data.augment import training_pieces
from capsid.data.item_table import ItemTable
from capsid.data.split import Split
from capsid.decode.ranked import Retriever, validating
from capsid.encode.base import fresh
from capsid.errors import ConfigError
from capsid.evaluate.evaluator import metric_values
from capsid.fit.stages import PhaseLog, Stages, entry_of, with_memory
from capsid.generate.dense_items import DenseItems
from capsid.generate.fit import fit_generator
from capsid.generate.generator import Generator, ReadsSoftly, Trainable
from capsid.generate.similar_items import LearnsAtOnce
from capsid.generate.terms import BoundTerm, Objective, TermContext
from capsid.ids.layout import FIRST
from capsid.ids.semantic_ids import SemanticIds, changed_codes, churn
from capsid.ids.trie import Trie
from capsid.progress import Progress, duration
from capsid.recipe import Phase, Recipe, Stretch
from capsid.settings import check_together
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.lanes import check_lanes
from capsid.train.loop import Carried

# Supplies a fitted tokenizer; called with items, seed and progress.
TokenizerFrom = Callable[[ItemTable, int, Progress], ItemTokenizer]


@dataclass
class Fit:
    """One fit of a recipe on an item table. `tokenizer_from` supplies a tokenizer that was fitted elsewhere.

    `start` is an earlier fit to continue from: its ids are kept, and training begins with its weights.
    """

    recipe: Recipe
    table: ItemTable
    split: Split
    seed: int
    work: Path | None
    progress: Progress
    options: RunOptions
    tokenizer_from: TokenizerFrom | None = None
    start: Fitted | None = None

    def run(self) -> Fitted:
        """Everything in order."""
        check_together(self.recipe)
        for phase in self.recipe.schedule:
            check_lanes(phase.training.lanes, self.options.team.size)
        self.stages = Stages(self.work, kinds_of(self.recipe), self.options)
        self._begin(self.stages.tokenizer("tokenizer", self._first_tokenizer))
        for phase in self.recipe.schedule:
            self._take(phase)
        rest: dict[str, Any] = {"seed": self.seed, "progress": self.progress}
        return with_memory(self.fitted(), self.recipe, self.table, self.split, **rest)

    def fitted(self) -> Fitted:
        return Fitted(self.tokenizer, self.tries, self.generator, self.recipe.over, tuple(self.log), self.dense)

    def _first_tokenizer(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        """The ids to begin with: those of the fit to continue from, from elsewhere, or new ones."""
        parts = self.recipe.item_tokenizer()
        if self.start is not None:
            supplied = self.start.tokenizer
        elif self.tokenizer_from is not None:
            supplied = self.tokenizer_from(self.table, self.seed, self.progress)
        else:
            return parts.fit(self.table, seed=self.seed, progress=self.progress, checkpoint=checkpoint)
        _check_supplied(supplied, parts, self.table)
        return supplied

    def _begin(self, tokenizer: ItemTokenizer) -> None:
        """A generator with fresh weights, or those of the fit to continue from, that reads these ids."""
        recipe, start = self.recipe, self.start
        _show_ids(tokenizer.ids, self.progress)
        generator: Generator = fresh(recipe.generator)
        tokenizer = tokenizer.with_reading(recipe.reading)
        if isinstance(generator, ReadsSoftly) and generator.soft_input:
            tokenizer = tokenizer.softened(self.table, generator.soft_input, generator.soft_sharpness)
        vectors = tokenizer.token_vectors()
        self.generator = generator.build(tokenizer.ids, self.table.counts, seed=self.seed, vectors=vectors)
        if isinstance(generator, LearnsAtOnce):
            generator.learn(tokenizer.ids, self.table.sequences, tokenizer.vectors_)
        if start is not None and isinstance(generator, Trainable):
            generator.load_state(tokenizer.ids, start.generator.state())
        self.number, self.log = 0, list[dict[str, Any]]()
        self.objective: Objective | None = None
        self.bound: dict[str, BoundTerm] = {}
        self.dense: DenseItems | None = None
        self._new_ids(tokenizer)

    def _new_ids(self, tokenizer: ItemTokenizer) -> None:
        """Take over a tokenizer; its tries are rebuilt with it."""
        self.tokenizer, priority = tokenizer, bucket_priority(self.table)
        self.tries = tuple(Trie.build(ids.prefix_free, priority) for ids in tokenizer.ids.systems)

    def _take(self, phase: Phase) -> None:
        """Train a phase, stretch by stretch."""
        if not isinstance(self.generator, Trainable):
            kind = self.generator.kind
            raise ConfigError(f"the generator {kind!r} has nothing to train", hint="leave the schedule empty")
        phase = phase.in_steps(len(training_pieces(self.table.sequences, self.generator.history)))
        log, first = PhaseLog(), self.number
        # What generator and tokenizer carry on, each from its own stretches.
        carried: dict[bool, Carried] = {False: {}, True: {}}
        for stretch in phase.stretches():
            if stretch.phase.retokenize:
                self._new_ids(self.stages.tokenizer(f"tokenizer-{self.number}", self._revised))
            seed = self.seed + (first if stretch.carries else self.number)
            before = carried[stretch.freezes] if stretch.carries else None
            entry, carried[stretch.freezes] = self._train(stretch, self.generator, seed, before)
            log.add(entry)
            if stretch.part is not None and stretch.part.settles:
                old = self.tokenizer.ids
                self._new_ids(self.stages.tokenizer(f"tokenizer-{self.number}-adapted", self._settled))
                log.settled(changed_codes(old, self.tokenizer.ids))
            self.number += 1
        self.log += log.entries

    def _train(
        self, stretch: Stretch, generator: Trainable, seed: int, before: Carried | None
    ) -> tuple[dict[str, Any], Carried]:
        """Train a stretch, or read it if it is finished: its entry of the log, and what it carries on."""
        objective = self._bind(stretch, generator, seed)
        done = self.stages.finished(self.number, self.tokenizer.ids, generator, objective, carries=before is not None)
        if done is None:
            phase = stretch.phase
            result = fit_generator(
                generator,
                self.tokenizer.ids,
                self.table.sequences,
                objective,
                stretch.training,
                seed=seed,
                learns=() if stretch.freezes else phase.learns,
                augment=phase.augment,
                validate=None if stretch.freezes else self._validation(stretch, objective),
                steps=stretch.steps,
                checkpoint=self.stages.checkpoint(self.number),
                progress=self.progress,
                name=stretch.name,
                team=self.options.team,
                before=before,
            )
            if stretch.part is None:
                made, took = stretch.steps.start + result.steps, duration(result.seconds)
                self.progress.line(f"{stretch.name}: best at step {result.best_step:,} of {made:,}, {took}")
            done = entry_of(stretch, result), result.carried or {}
            self.stages.finish(self.number, generator, objective, done, carries=before is not None)
        self.objective, self.dense = objective, objective.dense() or self.dense
        self.bound |= objective.by_name
        return done

    def _bind(self, stretch: Stretch, generator: Trainable, seed: int) -> Objective:
        """The terms of a stretch, bound to the ids of now."""
        width = generator.network.width
        context = TermContext(self.tokenizer.ids, self.tries, self.recipe.over, self.tokenizer, width, seed)
        objective = Objective(stretch.terms(self.recipe.objective), context)
        objective.carry(self.bound)
        if self.objective is None and self.start is not None:
            objective.continue_from(self.start.dense)
        return objective

    def _validation(self, stretch: Stretch, objective: Objective) -> Callable[[], float] | None:
        """The selected metric on a fixed sample of users, the same for every method and step; None without cases.

        The processes of a team share the users; all of them get the same number.
        """
        cases, training, team = self.split.valid, stretch.phase.training, self.options.team
        if not len(cases):
            return None
        rows = np.sort(numpy_rng(self.seed, "validation").permutation(len(cases))[: training.validation_users])
        sample, filtered, part = cases.take(rows), training.select_filtered, (team.rank, team.size)
        model, ranker = dataclasses.replace(self.fitted(), dense=None).model, validating(self.recipe.decoder)

        def measured() -> float:
            # Item vectors beside ids change with the weights.
            retriever = Retriever(dataclasses.replace(model, dense=objective.dense()), ranker)
            own = metric_values(retriever, sample, training.select, filter_history=filtered, part=part)
            # Only one process has a value other than 0 for a user, so the sums are exact.
            value = float(team.sum(torch.as_tensor(own)).numpy().mean())
            if self.options.validated is not None:
                self.options.validated(value)
            return value

        return measured

    def _revised(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        """New ids from the mean embedding of each item's tokens."""
        assert isinstance(self.generator, Trainable)
        old = self.tokenizer.ids
        weights = self.generator.network.embed().detach().numpy()
        sums = old.tokens.sums(weights[old.tokens.values])
        learnt = (sums / old.tokens.lengths[:, None]).astype(np.float32)
        new = self.tokenizer.revise(self.table, learnt)
        self.progress.line(churn(old, new.ids))
        return new

    def _settled(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        """New ids that a joint term has learnt."""
        assert self.objective is not None
        settled = self.objective.settle(self.table, self.progress)
        if settled is None:
            raise ConfigError("the term of phase.adapt returned no codes", hint="move it to the terms of the phase")
        return settled


def bucket_priority(table: ItemTable) -> np.ndarray:
    """Order inside a bucket: training popularity, then item id (docs/protocol.md)."""
    return popularity_ranks(table.counts, table.items)


def _check_supplied(supplied: ItemTokenizer, wanted: ItemTokenizer, table: ItemTable) -> None:
    """A tokenizer that was fitted elsewhere must have the parts of the recipe and the items of the table."""
    if canonical_json(supplied) != canonical_json(wanted):
        found = list(difference(supplied, wanted).items())[:3]
        shown = ", ".join(f"{path} {theirs}, not {ours}" for path, (theirs, ours) in found)
        raise ConfigError(
            f"the given tokenizer does not match the recipe: {shown}", hint="fit it with the same recipe and settings"
        )
    if supplied.ids.items != table.items:
        raise ConfigError("the given tokenizer was fitted on other items", hint="fit it on the same data")


def _show_ids(ids: SemanticIds, progress: Progress, name: str = "ids") -> None:
    for number, other in enumerate(ids.others, start=2):
        _show_ids(other, progress, f"ids {number}")
    about = ids.statistics()
    merges = len(ids.layout.merges)
    merged = f" ({merges:,} merged, {about.mean_tokens:.2f} tokens per item)" if merges else ""
    progress.line(
        f"{name}: {about.items:,} items, {about.mean_length:.2f} codes each, "
        f"{100 * about.collision_rate:.1f} % collide, "
        f"use of codebooks {', '.join(f'{100 * u:.0f} %' for u in about.utilization)}, "
        f"{ids.layout.end - ids.layout.first + FIRST:,} tokens{merged}"
    )
