"""Fits a recipe on a dataset: ids first, then the phases of the schedule. Each stage is saved when it is finished.

With a working folder, a killed run can be resumed: finished stages are read back, and an unfinished phase continues
from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capsid.config import canonical_json, difference, kinds_of
from capsid.data.item_table import ItemTable
from capsid.data.split import Split
from capsid.encode.base import fresh
from capsid.errors import ConfigError
from capsid.fitting.course import Course
from capsid.fitting.remembering import with_memory
from capsid.fitting.stages import Stages
from capsid.generate.generator import Generator, ReadsSoftly, Trainable
from capsid.ids.layout import FIRST
from capsid.ids.reading import Reading
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress
from capsid.recipe import Recipe
from capsid.running import CheckpointFile, RunOptions
from capsid.settings import check_together
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.lanes import check_lanes

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
    stages = Stages(work, kinds_of(recipe), run)
    first: Callable[[CheckpointFile | None], ItemTokenizer] = _FirstFit(recipe, table, seed, progress)
    if tokenizer_from is not None:
        first = _Given(tokenizer_from, recipe, table, seed, progress)
    tokenizer = stages.tokenizer("tokenizer", first)
    _tell_ids(tokenizer.ids, progress)
    generator = fresh(recipe.generator)
    tokenizer = _as_read(tokenizer, recipe.reading, generator, table)
    generator.build(tokenizer.ids, table.counts, seed=seed, vectors=tokenizer.token_vectors())
    if start is not None and isinstance(generator, Trainable):
        generator.load_state(tokenizer.ids, start.generator.state())
    course = Course(recipe, table, split, seed, progress, stages, tokenizer, generator)
    if start is not None:
        course.dense_before = start.dense
    for phase in recipe.schedule:
        course.take(phase)
    return with_memory(course.fitted(), recipe, table, split, seed=seed, progress=progress)


def _as_read(tokenizer: ItemTokenizer, reading: Reading, generator: Generator, table: ItemTable) -> ItemTokenizer:
    """Ids with what the generator reads beside them."""
    tokenizer = tokenizer.with_reading(reading)
    if isinstance(generator, ReadsSoftly) and generator.soft_input:
        tokenizer = tokenizer.softened(table, generator.soft_input, generator.soft_sharpness)
    return tokenizer


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
                f"the given tokenizer does not match the recipe: {told}",
                hint="fit it with the same recipe and settings",
            )
        if given.ids.items != self.table.items:
            raise ConfigError("the given tokenizer was fitted on other items", hint="fit it on the same data")
        return given


def _tell_ids(ids: SemanticIds, progress: Progress, name: str = "ids") -> None:
    for number, other in enumerate(ids.others, start=2):
        _tell_ids(other, progress, f"ids {number}")
    about = ids.statistics()
    merges = len(ids.layout.merges)
    merged = f" ({merges:,} merged, {about.mean_tokens:.2f} tokens per item)" if merges else ""
    progress.line(
        f"{name}: {about.items:,} items, {about.mean_length:.2f} codes each, "
        f"{100 * about.collision_rate:.1f} % collide, "
        f"use of codebooks {', '.join(f'{100 * u:.0f} %' for u in about.utilization)}, "
        f"{ids.layout.end - ids.layout.first + FIRST:,} tokens{merged}"
    )
