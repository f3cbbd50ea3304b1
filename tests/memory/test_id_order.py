"""The probe: one more weight for items whose ids sort after the last item's, which wins only where files are sorted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from worlds import make_ids

from capsid import Recommender
from capsid.data.dataset import Dataset
from capsid.memory.memory import FittedMemory, Transitions
from capsid.ragged import Ragged

IDS = make_ids([[n] for n in range(4)], (4,))


def remembered() -> Transitions:
    """Item 0 is followed by 1, 2 and 3; the order of ids is 2, 0, 3, 1."""
    counted = Transitions.count(Ragged.from_rows([[0, 1], [0, 2], [0, 3]]), 4, 1)
    return replace(counted, ranks_N=np.array([1, 3, 0, 2]))


def test_followers_that_rank_after_the_last_item_are_marked(tmp_path: Path) -> None:
    memory = FittedMemory(remembered(), (0.5, 2.0))
    memory.save(tmp_path)
    for again in (memory, *(FittedMemory.load(tmp_path, 4, checked=checked) for checked in (False, True))):
        found = again.transitions.following(Ragged.from_rows([[3, 0], [1]]), IDS.prefix_free)
        assert found.items.values.tolist() == [1, 2, 3]
        assert found.counts_EJ.tolist() == [[1, 1], [1, 0], [1, 1]]
    assert remembered().grown(5).ranks_N is not None
    assert remembered().grown(5).columns == 2


@pytest.mark.parametrize("ordered", [True, False])
def test_the_probe_wins_only_where_histories_follow_ids(ordered: bool) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.choice(40, 9, replace=False) for _ in range(300)]
    if ordered:
        # Three items of each of three days, in ascending id within a day.
        rows = [np.sort(row.reshape(3, 3), axis=1).ravel() for row in rows]
    taken = [(f"u{u}", f"i{n:02d}", t) for u, row in enumerate(rows) for t, n in enumerate(row)]
    data = Dataset.from_frames(pl.DataFrame(taken, schema=["user", "item", "timestamp"], orient="row"))
    settings = ["encoder=null", "memory.neighbours=0"]
    recall = {
        name: Recommender.from_recipe(name, settings=settings).fit(data).evaluate("test").metrics["recall@10"]
        for name in ("memory", "id-order")
    }
    assert (recall["id-order"] > 1.25 * recall["memory"]) is ordered
