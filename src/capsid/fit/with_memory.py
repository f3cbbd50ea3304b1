"""Gives a fitted method the memory of its recipe; nothing else changes, so such methods share their training."""

from __future__ import annotations

import dataclasses

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split
from capsid.decode.ranked import Retriever, validating
from capsid.evaluate.evaluator import metric_values
from capsid.generate.terms import TermContext
from capsid.memory.fit import CASES, MemoryFit, fit_weights
from capsid.progress import Progress
from capsid.recipe import Recipe
from capsid.stored import Fitted


def with_memory(
    fitted: Fitted, recipe: Recipe, table: ItemTable, split: Split, *, seed: int, progress: Progress
) -> Fitted:
    """The fit with the memory of the recipe, whatever memory it had; items are alike by the vectors of their ids."""
    fitted = dataclasses.replace(fitted, memory=None)
    if recipe.memory is None:
        return fitted
    tokenizer = fitted.tokenizer
    transitions = recipe.memory.count(table.sequences, len(tokenizer.ids), tokenizer.vectors_)
    context = TermContext(tokenizer.ids, fitted.tries, fitted.over, seed=seed)
    fits = fit_weights(fitted.generator, transitions, context, split.valid, table.sequences, fitted.dense)
    best, ranking = _best_ranking(fitted, recipe, fits, split.valid, seed, progress)
    progress.line(f"{best}{ranking}")
    return dataclasses.replace(fitted, memory=best.memory)


def _best_ranking(
    fitted: Fitted, recipe: Recipe, fits: tuple[MemoryFit, ...], cases: Cases, seed: int, progress: Progress
) -> tuple[MemoryFit, str]:
    """The fit that ranks the validation cases best, and how well; without cases or training, the most likely one."""
    if not len(cases) or not recipe.schedule:
        return fits[0], ""
    training = recipe.schedule[-1].training
    chosen = numpy_rng(seed, "memory ranking").permutation(len(cases))[: min(training.validation_users, CASES)]
    sample, found = cases.take(np.sort(chosen)), []
    for one in fits:
        progress.update(f"memory: {training.select} with the weights for temperature {one.memory.temperature}")
        retriever = Retriever(dataclasses.replace(fitted, memory=one.memory).model, validating(recipe.decoder))
        values = metric_values(retriever, sample, training.select, filter_history=training.select_filtered, part=(0, 1))
        found.append(float(values.mean()))
    # Equal values: the most likely of them, because it comes first.
    best = int(np.argmax(found))
    return fits[best], f"; valid {training.select} {found[best]:.4f}"
