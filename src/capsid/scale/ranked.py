"""Ranked lists of all held-out users of a run, in shards of users: a pure map over a fitted run.

A shard holds a whole number of batches, so that a user is always searched together with the same other users, whoever
makes the shard, and scores are bit-identical. Shards hold numbers of users and items, so that workers need no names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import polars as pl
from safetensors.torch import load_file

from capsid.answering import BATCH
from capsid.base.storage.arrays import map_arrays
from capsid.base.storage.artifacts import MANIFEST, file_hash, open_folder, read_json
from capsid.base.storage.parquet import array, lists, numbers, ragged
from capsid.base.vocabulary import Vocabulary
from capsid.decode.ranked import Retriever
from capsid.encode.base import fresh
from capsid.errors import ArtifactError
from capsid.ids.stored_ids import MappedIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.recipe import Recipe
from capsid.scale.shards import Shards, shard_file
from capsid.stored import KIND, load_dense, load_memory, load_users, searchable, trie_folder
from capsid.tokenize.item_tokenizer import ids_folder

if TYPE_CHECKING:
    import pyarrow as pa


USERS_PER_SHARD = 16 * BATCH


@dataclass(frozen=True, eq=False)
class RankShards(Shards):
    """Columns user, items and scores, best first; users and items are numbers. `run_key` is the manifest's hash."""

    name: ClassVar[str] = "lists"
    run: Path
    run_key: str
    split: str
    k: int
    filter_history: bool
    users: int
    folder: Path

    def size(self) -> tuple[int, int]:
        return self.users, USERS_PER_SHARD

    @cached_property
    def opened(self) -> MappedRun:
        """The run, which was checked when the job was prepared."""
        from capsid.scale.ranked import MappedRun

        return MappedRun.open(self.run, self.run_key, self.split)

    def common(self) -> dict[str, Any]:
        asked = {"split": self.split, "k": self.k, "filter_history": self.filter_history}
        return {"run": self.run_key, **asked, "users": self.users}

    def about(self, number: int) -> dict[str, Any]:
        return {**self.common(), "rows": str(number)}

    def table(self, number: int) -> pa.Table:
        import pyarrow as pa

        rows, run = range(*self.bounds(number)), self.opened
        found = run.retriever.rank_batches(run.histories, rows, self.k, filter_history=self.filter_history, batch=BATCH)
        every = [ranked for _, ranked in found]
        items_UK, scores_UK = (np.concatenate([getattr(r, n) for r in every]) for n in ("items_UK", "scores_UK"))
        there_UK = items_UK >= 0
        items, scores = (Ragged.from_lengths(a[there_UK], there_UK.sum(1)) for a in (items_UK, scores_UK))
        columns = {
            "user": numbers(run.users[rows.start : rows.stop]),
            "items": lists(items, np.int64),
            "scores": lists(scores, np.float32),
        }
        return pa.table(columns)

    def summary(self) -> dict[str, Any]:
        return {**self.common(), "shards": self.count}


def read_lists(shards: RankShards) -> Iterator[tuple[str, list[str], list[float]]]:
    """User, items and scores of every user, shard after shard."""
    import pyarrow.parquet as pq

    from capsid.scale.ranked import RunNames

    names = RunNames.open(shards.run, shards.run_key)
    for number in range(shards.count):
        found = pq.read_table(shard_file(shards, number), use_threads=False)
        rows, scores = ragged(found["items"]), ragged(found["scores"])
        items = names.items.ids(rows.values)
        for row, user in enumerate(names.users.ids(array(found["user"]))):
            here = slice(rows.offsets[row], rows.offsets[row + 1])
            yield user, items[here], scores.values[here].tolist()


def checked_folder(path: Path, manifest: str) -> Path:
    """The folder of a run that another process has checked; an error if it is another run by now."""
    folder = open_folder(path, kind=KIND, only=())
    if file_hash(folder / MANIFEST) != manifest:
        raise ArtifactError(f"{folder} is not the run that was checked", hint="start the job again")
    return folder


@dataclass(frozen=True, eq=False)
class MappedRun:
    """A search over the run's items, and the held-out cases of a split: users and their histories.

    Everything that grows with the data is mapped. The process that starts the job has checked the whole run; workers
    get the hash of its manifest.
    """

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
