"""Fits a recipe on a dataset: ids first, then the phases of the schedule. Each stage is saved when it is finished.

With a working folder, a killed run can be resumed: finished stages are read back, and an unfinished phase continues
from its checkpoint.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as tensor_bytes

from capsid.artifacts import MANIFEST, new_folder, open_folder, read_json, write_json
from capsid.config import Kinds, canonical_json, difference, kinds_of
from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split
from capsid.decode.ranked import HasQuick
from capsid.decode.reader import Reader
from capsid.decode.retrieve import Retriever
from capsid.encode.base import fresh
from capsid.errors import ConfigError
from capsid.evaluate.evaluator import metric_values
from capsid.generate.fit import fit_generator
from capsid.generate.generator import ReadsSoftly, Remembers, Trainable
from capsid.generate.terms import Objective, TermContext
from capsid.ids.layout import FIRST
from capsid.ids.semantic_ids import SemanticIds, churn
from capsid.ids.trie import Trie
from capsid.popularity import popularity_ranks
from capsid.progress import Progress, duration
from capsid.recipe import Recipe, Stretch
from capsid.rng import numpy_rng
from capsid.running import CheckpointFile, RunOptions, Team
from capsid.settings import check_together
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.lanes import check_lanes
from capsid.train.options import Training

POLL_SECONDS = 0.2
# Supplies a fitted tokenizer; called with items, seed and progress.
TokenizerFrom = Callable[[ItemTable, int, Progress], ItemTokenizer]


def fit_recipe(
    recipe: Recipe,
    table: ItemTable,
    split: Split,
    *,
    seed: int,
    work: Path | None,
    progress: Progress,
    run: RunOptions,
    tokenizer_from: TokenizerFrom | None = None,
    start: Fitted | None = None,
) -> Fitted:
    """Fit every part of the recipe. `tokenizer_from` supplies a tokenizer fitted elsewhere if `work` has none.

    `start` is an earlier fit to continue from: its ids are kept, and training begins with its weights.
    """
    check_together(recipe)
    for phase in recipe.schedule:
        check_lanes(phase.training.lanes, run.team.size)
    if start is not None:
        known = start.tokenizer
        tokenizer_from = lambda table, seed, progress: known  # noqa: E731
    stages = _Stages(work, kinds_of(recipe), run)
    first: Callable[[CheckpointFile | None], ItemTokenizer] = _FirstFit(recipe, table, seed, progress)
    if tokenizer_from is not None:
        first = _Given(tokenizer_from, recipe, table, seed, progress)
    tokenizer = stages.tokenizer("tokenizer", first)
    _tell_ids(tokenizer.ids, progress)
    tokenizer = tokenizer.with_reading(recipe.reading)
    generator = fresh(recipe.generator)
    if isinstance(generator, ReadsSoftly) and generator.soft_input:
        tokenizer = tokenizer.softened(table, generator.soft_input, generator.soft_sharpness)
    if isinstance(generator, Remembers) and generator.memory:
        tokenizer = tokenizer.remembering(table, generator.memory)
    generator.build(tokenizer.ids, table.counts, seed=seed, vectors=tokenizer.token_vectors())
    if start is not None and isinstance(generator, Trainable):
        generator.load_state(tokenizer.ids, start.generator.state())
    trie = Trie.build(tokenizer.ids.prefix_free, bucket_priority(table))
    ids = tokenizer.ids.second
    second = None if ids is None else Trie.build(ids.prefix_free, bucket_priority(table))
    log, dense, before = [], None, None
    for number, stretch in enumerate(stretch for phase in recipe.schedule for stretch in phase.stretches()):
        phase = stretch.phase
        if not isinstance(generator, Trainable):
            raise ConfigError(f"the generator {generator.kind!r} has nothing to train", hint="leave the schedule empty")
        if phase.retokenize:
            tokenizer = stages.tokenizer(f"tokenizer-{number}", _Revision(tokenizer, generator, table, progress))
            trie = Trie.build(tokenizer.ids.prefix_free, bucket_priority(table))
        terms = phase.terms or recipe.objective
        width = generator.network.token.embedding_dim
        context = TermContext(tokenizer.ids, trie, recipe.over, tokenizer, width, seed + number, second)
        objective = Objective(terms if phase.adapt is None else (phase.adapt, *terms), context)
        objective.carry(before)
        if before is None and start is not None:
            objective.continue_from(start.dense)
        reader = Reader(generator, tokenizer.ids, trie, generator.history, recipe.over, second=second)
        ranker = recipe.decoder.quick if isinstance(recipe.decoder, HasQuick) else recipe.decoder
        now = _Now(Retriever(reader, ranker), objective)
        validate = _validation(now, split.valid, phase.training, seed, run.team)
        job = _Stretch(stretch, generator, tokenizer.ids, table, objective, validate, seed + number, run.team)
        log.append(stages.train(number, job, progress))
        dense, before = objective.dense() or dense, objective
        if phase.adapt is not None:
            settled = _Settled(objective, table, progress)
            tokenizer = stages.tokenizer(f"tokenizer-{number}-adapted", settled)
            trie = Trie.build(tokenizer.ids.prefix_free, bucket_priority(table))
    return Fitted(tokenizer, trie, generator, tuple(log), dense, second)


def bucket_priority(table: ItemTable) -> np.ndarray:
    """Order inside a bucket: training popularity, then item id (docs/protocol.md)."""
    return popularity_ranks(table.counts, table.items)


@dataclass(frozen=True, eq=False)
class _FirstFit:
    recipe: Recipe
    table: ItemTable
    seed: int
    progress: Progress

    def __call__(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        parts = self.recipe.item_tokenizer()
        return parts.fit(self.table, seed=self.seed, progress=self.progress, checkpoint=checkpoint)


@dataclass(frozen=True, eq=False)
class _Given:
    """Takes a tokenizer that was fitted elsewhere, after checking that its parts and items match."""

    source: TokenizerFrom
    recipe: Recipe
    table: ItemTable
    seed: int
    progress: Progress

    def __call__(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        given, wanted = self.source(self.table, self.seed, self.progress), self.recipe.item_tokenizer()
        if canonical_json(given) != canonical_json(wanted):
            apart = difference(given, wanted)
            told = ", ".join(f"{path} {theirs}, not {ours}" for path, (theirs, ours) in list(apart.items())[:3])
            raise ConfigError(
                f"the given tokenizer was fitted with other parts than this recipe's: {told}",
                hint="fit it with the same recipe and settings",
            )
        if list(given.ids.items) != list(self.table.items):
            raise ConfigError("the given tokenizer was fitted on other items", hint="fit it on the same data")
        return given


@dataclass(frozen=True, eq=False)
class _Revision:
    """New ids from the mean embedding of each item's tokens; reports how many items got a new id."""

    tokenizer: ItemTokenizer
    generator: Trainable
    table: ItemTable
    progress: Progress

    def __call__(self, checkpoint: CheckpointFile | None) -> ItemTokenizer:
        old = self.tokenizer.ids
        weights = self.generator.network.token.vectors().enter_VD.detach().numpy()
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
            raise ConfigError("the term of phase.adapt returned no codes", hint="name it among the terms instead")
        return settled


@dataclass(frozen=True, eq=False)
class _Stretch:
    """A stretch of training with everything it needs."""

    stretch: Stretch
    generator: Trainable
    ids: SemanticIds
    table: ItemTable
    objective: Objective
    validate: Callable[[], float] | None
    seed: int
    team: Team

    def fit(self, checkpoint: CheckpointFile | None, progress: Progress) -> dict[str, Any]:
        """Train and return a log entry."""
        phase = self.stretch.phase
        result = fit_generator(
            self.generator,
            self.ids,
            self.table.sequences,
            self.objective,
            phase.training,
            seed=self.seed,
            learns=phase.learns,
            augment=phase.augment,
            validate=self.validate,
            steps=self.stretch.steps,
            checkpoint=checkpoint,
            progress=progress,
            name=phase.name,
            team=self.team,
        )
        progress.line(
            f"{phase.name}: best at step {result.best_step:,} of {result.steps:,}, {duration(result.seconds)}"
        )
        return {
            "phase": phase.name,
            **{f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "curve"},
            # Without validation the metric is minus infinity, which JSON cannot hold.
            "best_metric": result.best_metric if result.curve else None,
            "tokens_per_second": result.tokens_per_second,
            "curve": [dataclasses.asdict(p) for p in result.curve],
        }


@dataclass(frozen=True, eq=False)
class _Now:
    """The search with the current weights: item vectors are recomputed on every call."""

    retriever: Retriever
    objective: Objective

    def __call__(self) -> Retriever:
        reader = dataclasses.replace(self.retriever.reader, dense=self.objective.dense())
        return dataclasses.replace(self.retriever, reader=reader)


def _tell_ids(ids: SemanticIds, progress: Progress, name: str = "ids") -> None:
    if ids.second is not None:
        _tell_ids(ids.second, progress, "second ids")
    about = ids.statistics()
    merges = len(ids.layout.merges)
    merged = f" ({merges:,} merged, {about.mean_tokens:.2f} tokens per item)" if merges else ""
    progress.line(
        f"{name}: {about.items:,} items, {about.mean_length:.2f} codes each, "
        f"{100 * about.collision_rate:.1f} % collide, "
        f"use of codebooks {', '.join(f'{100 * u:.0f} %' for u in about.utilization)}, "
        f"{ids.layout.end - ids.layout.first + FIRST:,} tokens{merged}"
    )


@dataclass(frozen=True, eq=False)
class _Stages:
    """Finished stages in the working folder; without a folder nothing is saved.

    Process 0 of a team makes the ids and writes all stages. The others wait for the ids and read them, and train with
    process 0. Without a folder every process makes the ids itself.
    """

    work: Path | None
    kinds: Kinds
    run: RunOptions

    def tokenizer(self, name: str, make: Callable[[CheckpointFile | None], ItemTokenizer]) -> ItemTokenizer:
        if self.work is None:
            return make(None)
        folder = self.work / name
        if self.run.team.rank:
            _wait_for(folder / MANIFEST)
        elif not (folder / MANIFEST).exists():
            made = make(self.run.checkpoint(folder.with_suffix(".checkpoint")))
            with new_folder(folder, kind="stage") as new:
                made.save(new)
            return made
        return ItemTokenizer.load(_open_stage(folder), self.kinds)

    def train(self, number: int, job: _Stretch, progress: Progress) -> dict[str, Any]:
        """Train a stretch, or load it if an earlier run has finished it."""
        if self.work is None:
            return job.fit(None, progress)
        folder = self.work / f"phase-{number}"
        if (folder / MANIFEST).exists():
            _open_stage(folder)
            job.generator.load_state(job.ids, load_file(folder / "generator.safetensors"))
            if job.objective.learns:
                job.objective.load_state_dict(load_file(folder / "objective.safetensors"))
            log: dict[str, Any] = read_json(folder / "log.json")
            return log
        log = job.fit(self.run.checkpoint(folder.with_suffix(".checkpoint")), progress)
        if self.run.team.rank:
            return log
        with new_folder(folder, kind="stage") as new:
            (new / "generator.safetensors").write_bytes(tensor_bytes(job.generator.state()))
            if job.objective.learns:
                (new / "objective.safetensors").write_bytes(tensor_bytes(job.objective.state_dict()))
            write_json(new / "log.json", log)
        return log


def _wait_for(file: Path) -> None:
    """Wait until process 0 has written a file. That may take hours, so no connection waits, which would time out."""
    while not file.exists():
        time.sleep(POLL_SECONDS)


def _open_stage(folder: Path) -> Path:
    return open_folder(folder, kind="stage", hint=f"delete {folder} and run again; only that stage is refitted")


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
