"""Gives a fitted method its memory: counts of transitions and neighbours beside the ids, and weights where they are
fitted after training.

A memory that is fitted after training changes nothing else, so methods that differ only in it can share their weights.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split
from capsid.decode.ranked import validating
from capsid.decode.retrieve import Retriever
from capsid.encode.base import fresh
from capsid.evaluate.evaluator import metric_values
from capsid.generate.generator import Generator, Remembers, Trainable
from capsid.generate.memory import NAMES
from capsid.generate.settled_memory import CASES, SettledMemory, memory_of, settle_memory
from capsid.generate.terms import TermContext
from capsid.ids.transitions import Transitions
from capsid.progress import Progress
from capsid.recipe import Recipe
from capsid.rng import numpy_rng
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.nearest import neighbours_of


def remembering(tokenizer: ItemTokenizer, generator: Generator, table: ItemTable) -> ItemTokenizer:
    """Ids with what the generator remembers: items are alike by the vectors that their ids were made from."""
    if not isinstance(generator, Remembers) or not generator.memory:
        return tokenizer if tokenizer.ids.transitions is None else tokenizer.remembering(None)
    counted = Transitions.count(table.sequences, len(tokenizer.ids), generator.memory)
    near = neighbours_of(tokenizer.vectors_, generator.neighbours) if generator.neighbours else None
    return tokenizer.remembering(dataclasses.replace(counted, near=near))


def remembers_later(generator: Generator) -> bool:
    """Whether the memory is fitted after training."""
    return isinstance(generator, Remembers) and generator.memory > 0 and generator.memory_after


def trained_recipe(recipe: Recipe) -> Recipe:
    """The recipe without a memory that is fitted after training: what is trained."""
    generator = recipe.generator
    if not isinstance(generator, Remembers) or (generator.memory and not generator.memory_after):
        return recipe
    without = dataclasses.replace(generator, memory=0, memory_after=False, neighbours=0)  # type: ignore[type-var]
    return dataclasses.replace(recipe, generator=without)


def with_memory(
    fitted: Fitted, recipe: Recipe, table: ItemTable, split: Split, *, seed: int, progress: Progress
) -> Fitted:
    """A fit of `trained_recipe(recipe)`, whatever memory it was given after training, with that of `recipe`."""
    generator = fresh(recipe.generator)
    tokenizer = remembering(fitted.tokenizer, generator, table)
    state = {name: tensor for name, tensor in fitted.generator.state().items() if name not in NAMES}
    if remembers_later(generator):
        generator.build(tokenizer.ids, table.counts, seed=seed)
        assert isinstance(generator, Trainable)
        state |= {name: tensor for name, tensor in generator.state().items() if name in NAMES}
    generator.load_state(tokenizer.ids, state)
    new = dataclasses.replace(fitted, tokenizer=tokenizer, generator=generator)
    if isinstance(generator, Trainable) and remembers_later(generator):
        context = TermContext(tokenizer.ids, fitted.tries, recipe.over, seed=seed)
        settled = settle_memory(generator, context, split.valid, table.sequences, fitted.dense)
        progress.line(_best_ranking(new, recipe, settled, split.valid, seed, progress))
    return new


def _best_ranking(
    fitted: Fitted, recipe: Recipe, settled: tuple[SettledMemory, ...], cases: Cases, seed: int, progress: Progress
) -> str:
    """Give the memory those weights that rank the validation cases best; without cases, those that are most likely."""
    generator, best = fitted.generator, settled[0]
    if not len(cases) or not recipe.schedule:
        return str(best)
    training = recipe.schedule[-1].training
    chosen = numpy_rng(seed, "memory ranking").permutation(len(cases))[: min(training.validation_users, CASES)]
    sample = cases.take(np.sort(chosen))
    retriever, found = Retriever(fitted.model, validating(recipe.decoder)), {}
    for one in settled:
        progress.update(f"memory: {training.select} with the weights for temperature {one.temperature}")
        one.give(memory_of(generator))
        values = metric_values(retriever, sample, training.select, filter_history=training.select_filtered, part=(0, 1))
        found[one] = float(values.mean())
    # Equal values: the most likely of them, because it comes first.
    best = max(settled, key=lambda one: found[one])
    best.give(memory_of(generator))
    return f"{best}; valid {training.select} {found[best]:.4f}"
