"""Gives a fitted method its memory: counts of transitions and neighbours beside the ids, and weights where they are
fitted after training.

A memory that is fitted after training changes nothing else, so methods that differ only in it can share their weights.
"""

from __future__ import annotations

import dataclasses

from capsid.data.item_table import ItemTable
from capsid.data.split import Split
from capsid.encode.base import fresh
from capsid.generate.generator import Generator, Remembers, Trainable
from capsid.generate.settled_memory import WEIGHT, memory_of, settle_memory
from capsid.generate.terms import TermContext
from capsid.ids.transitions import Transitions
from capsid.progress import Progress
from capsid.recipe import Recipe
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
    if not remembers_later(recipe.generator):
        return recipe
    without = dataclasses.replace(recipe.generator, memory=0, memory_after=False, neighbours=0)  # type: ignore[type-var]
    return dataclasses.replace(recipe, generator=without)


def with_memory(
    fitted: Fitted, recipe: Recipe, table: ItemTable, split: Split, *, seed: int, progress: Progress
) -> Fitted:
    """A fit of `trained_recipe(recipe)`, whatever memory it was given after training, with that of `recipe`."""
    generator = fresh(recipe.generator)
    tokenizer = remembering(fitted.tokenizer, generator, table)
    state = {name: tensor for name, tensor in fitted.generator.state().items() if name != WEIGHT}
    if remembers_later(generator):
        generator.build(tokenizer.ids, table.counts, seed=seed)
        assert isinstance(generator, Trainable)
        state[WEIGHT] = memory_of(generator).weight.detach().clone()
    generator.load_state(tokenizer.ids, state)
    if isinstance(generator, Trainable) and remembers_later(generator):
        context = TermContext(tokenizer.ids, fitted.trie, recipe.over, seed=seed, second=fitted.second)
        progress.line(str(settle_memory(generator, context, split.valid, table.sequences)))
    return dataclasses.replace(fitted, tokenizer=tokenizer, generator=generator)
