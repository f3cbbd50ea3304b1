"""A stored run of any size that nobody trained: made ids and histories, to measure what processes hold of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split
from capsid.encode.base import fresh
from capsid.ids.mixtures import Mixtures
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.memory.memory import FittedMemory, Transitions
from capsid.ragged import Ragged
from capsid.recipes import RECIPES
from capsid.stored import Catalogue, Fitted, Stored, save_run
from capsid.tokenize.item_tokenizer import ItemTokenizer

SETTINGS = (
    "encoder=hashing",
    "generator.layers=1",
    "generator.width=32",
    "generator.heads=2",
    "generator.feedforward=64",
    "generator.history=10",
    "generator.soft_input=4",
    "memory=memory",
    "memory.last=2",
    "memory.neighbours=0",
    "decoder.width=10",
)
LENGTH, SAMPLE = 8, 2_000


def make_run(folder: Path, items: int, users: int, codebooks: tuple[int, ...]) -> None:
    """Random ids with soft input and a memory of transitions, random histories, weights as they start."""
    rng = np.random.default_rng(0)
    books = ",".join(map(str, codebooks))
    recipe = RECIPES["rq-kmeans"].with_settings((*SETTINGS, f"tokenizer.codebooks={books}", "tokenizer.restarts=1"))
    names = Vocabulary(f"item-{n:08d}" for n in range(items))
    sample = ItemTable.new_items(names.part(0, SAMPLE), pl.DataFrame(), ())
    vectors_ND = rng.standard_normal((len(sample), 16), dtype=np.float32)
    tokenizer = ItemTokenizer(tokenizer=recipe.tokenizer, collisions=recipe.collisions)
    tokenizer.fit(sample.with_block("item", vectors_ND))
    strongest_NLK = rng.integers(0, min(codebooks), (items, len(codebooks), 4), dtype=np.int32)
    weights_NLK = np.sort(rng.random(strongest_NLK.shape, dtype=np.float32))[:, :, ::-1] + np.float32(0.01)
    sequences = Ragged.from_dense(rng.integers(0, items, (users, LENGTH)))
    ids = SemanticIds.assign(
        names, Ragged.from_dense(strongest_NLK[:, :, 0]), tokenizer.tokenizer_.sizes, recipe.collisions
    )
    tokenizer.ids_ = ids.with_mixtures(Mixtures.of(strongest_NLK, weights_NLK))
    counts = np.bincount(sequences.values, minlength=items)
    generator = fresh(recipe.generator).build(tokenizer.ids, counts, seed=0)
    cases = Cases(np.arange(users), sequences, rng.integers(0, items, users))
    memory = FittedMemory(Transitions.count(sequences, items, 2), (0.5, 0.2))
    tries = (Trie.build(ids.prefix_free),)
    fitted = Fitted(tokenizer.without_vectors(), tries, generator, recipe.over, memory=memory)
    made = Catalogue(
        "made",
        "made",
        Vocabulary(f"user-{n:08d}" for n in range(users)),
        names,
        pl.DataFrame({"title": pl.Series([f"Title {n}" for n in range(items)])}),
        counts,
        Split("last", sequences, cases, cases),
    )
    save_run(folder, Stored(recipe, 0, fitted, made))
