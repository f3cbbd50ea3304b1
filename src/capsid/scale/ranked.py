"""Ranked lists of all held-out users of a run, in shards of users: a pure map over a fitted run.

A shard holds a whole number of batches, so that a user is searched together with the same other users whoever makes
the shard, and scores are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from capsid.answering import BATCH
from capsid.scale.shards import Shards, shard_bounds, shard_count, shard_file

if TYPE_CHECKING:
    import pyarrow as pa

    from capsid.recommender import Recommender

USERS_PER_SHARD = 16 * BATCH


@dataclass(frozen=True, eq=False)
class RankShards:
    """Columns user, items and scores, best first. `run_key` is the hash of the run's manifest."""

    name: ClassVar[str] = "lists"
    beside: ClassVar[frozenset[str]] = frozenset()
    run: Path
    run_key: str
    split: str
    k: int
    filter_history: bool
    users: int
    folder: Path

    @property
    def count(self) -> int:
        """How many shards the users make."""
        return shard_count(self.users, USERS_PER_SHARD)

    @cached_property
    def recommender(self) -> Recommender:
        """The run, whose hashes were checked when the job was prepared."""
        from capsid.recommender import Recommender

        return Recommender.from_pretrained(self.run, manifest=self.run_key)

    def items(self, number: int) -> int:
        """Users of a shard."""
        start, stop = shard_bounds(number, USERS_PER_SHARD, self.users)
        return stop - start

    def common(self) -> dict[str, Any]:
        """Everything but the rows."""
        asked = {"split": self.split, "k": self.k, "filter_history": self.filter_history}
        return {"run": self.run_key, **asked, "users": self.users}

    def about(self, number: int) -> dict[str, Any]:
        """The run, the question, and which users."""
        return {**self.common(), "rows": str(number)}

    def table(self, number: int) -> pa.Table:
        """Lists of the users."""
        import pyarrow as pa

        rows = range(*shard_bounds(number, USERS_PER_SHARD, self.users))
        found = self.recommender.predict(self.split, self.k, filter_history=self.filter_history, rows=rows)
        users, items, scores = zip(*found)
        lengths = np.array([len(own) for own in items], dtype=np.int32)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        columns = {
            "user": pa.array(users, pa.string()),
            "items": pa.ListArray.from_arrays(offsets, pa.array([i for own in items for i in own], pa.string())),
            "scores": pa.ListArray.from_arrays(offsets, pa.array([s for own in scores for s in own], pa.float64())),
        }
        return pa.table(columns)

    def summary(self) -> dict[str, Any]:
        """The question."""
        return {**self.common(), "shards": self.count}


def read_lists(shards: Shards) -> Iterator[tuple[str, list[str], list[float]]]:
    """User, items and scores of every user, shard after shard."""
    import pyarrow.parquet as pq

    for number in range(shards.count):
        found = pq.read_table(shard_file(shards, number), use_threads=False)
        yield from zip(*(found[name].to_pylist() for name in ("user", "items", "scores")))
