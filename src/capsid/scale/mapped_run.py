"""A stored run as a worker opens it to rank items: its network, and everything that grows with the data mapped.

The process that starts the job has read and checked the whole run; workers get the hash of its manifest. They know
numbers of users and items only; `RunNames` has their ids, for the process that writes the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from safetensors.torch import load_file

from capsid.base.storage.arrays import map_arrays
from capsid.base.storage.artifacts import MANIFEST, file_hash, open_folder, read_json
from capsid.base.vocabulary import Vocabulary
from capsid.decode.ranked import Retriever
from capsid.encode.base import fresh
from capsid.errors import ArtifactError
from capsid.ids.stored_ids import MappedIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.recipe import Recipe
from capsid.stored import KIND, load_dense, load_memory, load_users, searchable, trie_folder
from capsid.tokenize.item_tokenizer import ids_folder


def checked_folder(path: Path, manifest: str) -> Path:
    """The folder of a run that another process has checked; an error if it is another run by now."""
    folder = open_folder(path, kind=KIND, only=())
    if file_hash(folder / MANIFEST) != manifest:
        raise ArtifactError(f"{folder} is not the run that was checked", hint="start the job again")
    return folder


@dataclass(frozen=True, eq=False)
class MappedRun:
    """A search over the run's items, and the held-out cases of a split: users and their histories."""

    retriever: Retriever
    users: np.ndarray
    histories: Ragged

    @classmethod
    def open(cls, path: Path, manifest: str, split: str) -> MappedRun:
        """Map a run that was checked when it had this manifest."""
        folder = checked_folder(path, manifest)
        recipe = Recipe.from_dict(read_json(folder / "recipe.json"), {})
        tries = tuple(Trie.map(trie_folder(folder, number)) for number in range(1 + len(recipe.other_ids)))
        tokenizer = folder / "tokenizer"
        ids = MappedIds.open(tokenizer, tries[0])
        for number, trie in enumerate(tries[1:], start=1):
            ids = ids.with_other(MappedIds.open(tokenizer / ids_folder(tokenizer, number), trie))
        state = load_file(folder / "generator.safetensors")
        memory = load_memory(folder, recipe, state, len(tries[0]), checked=True)
        generator = fresh(recipe.generator).load_state(ids, state)
        dense = load_dense(folder, recipe, generator, len(tries[0]), checked=True)
        model = searchable(generator, ids, tries, recipe.over, dense, memory)
        cases = map_arrays(folder / "split.npz", lambda name: name.startswith(f"{split}_"))
        histories = Ragged(cases[f"{split}_values"], cases[f"{split}_offsets"])
        return cls(Retriever(model, recipe.decoder), cases[f"{split}_users"], histories)


@dataclass(frozen=True, eq=False)
class RunNames:
    """The ids of a run's users and items."""

    users: Vocabulary
    items: Vocabulary

    @classmethod
    def open(cls, path: Path, manifest: str) -> RunNames:
        """Read them from a run that was checked when it had this manifest."""
        folder = checked_folder(path, manifest)
        items = Vocabulary(pl.read_parquet(folder / "items.parquet", columns=["item_id"])["item_id"])
        return cls(load_users(folder), items)
