"""Ids in which a depth may be absent, all the way: merged, exported, trained on, searched, stored and loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from small_recipes import small, world

from capsid.data.item_table import ItemTable
from capsid.explain.items import OpenTokenizer
from capsid.ragged import Ragged
from capsid.recommender import Recommender
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.rivals.quantisers import ResidualKMeans


@dataclass(kw_only=True)
class Gaps(ResidualKMeans):
    """Residual k-means whose items lack the code of the depth that their first code names, as experts may be closed."""

    kind: ClassVar[str] = "gaps"

    def encode(self, table: ItemTable) -> Ragged:
        codes_ND = super().encode(table).dense()
        depth_N = codes_ND[:, 0] % codes_ND.shape[1]
        codes_ND[np.arange(len(codes_ND)), depth_N] = -1
        return Ragged.from_dense(codes_ND)


BPE = SemanticBPE(size=8, min_count=2, theta=(0.5, -1.0))


@pytest.mark.parametrize("merges", [None, BPE], ids=["plain", "merged"])
def test_the_whole_way(merges: SemanticBPE | None, tmp_path: Path) -> None:
    tokenizer = Gaps(codebooks=(6, 6, 6), restarts=1)
    recipe = dataclasses.replace(small("rq-kmeans", steps=4), tokenizer=tokenizer, merges=merges)
    fitted = Recommender(recipe).fit(world())
    ids = fitted.fitted.tokenizer.ids
    codes = [row.tolist() for row in ids.codes]
    assert {tuple(np.flatnonzero(np.array(row) < 0)) for row in codes} == {(), (0,), (1,)}, (
        "each depth is absent somewhere"
    )
    assert all(row[-1] >= 0 for row in codes)
    assert ids.layout.codes(ids.tokens) == ids.codes
    assert (ids.unmerged.lengths == 3).all(), "two codes and the suffix"
    if merges is not None:
        assert (ids.tokens.lengths < ids.unmerged.lengths).any()
        for left, right in zip(ids.layout.merges.left, ids.layout.merges.right):
            assert ids.layout.depth_of[right] == ids.layout.depth_of[left] + 1, "nothing is merged over a gap"
    lines = OpenTokenizer(fitted.fitted.tokenizer, []).lines(world().items)
    assert [list(line.codes) for line in lines] == codes
    history = world().items.ids(world().sequences[0][:3])
    everything = fitted.recommend(history, 72, filter_history=False)
    assert sorted(everything.items) == sorted(world().items), "every item can be reached"
    fitted.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run", kinds={"gaps": Gaps})
    assert loaded.fitted.tokenizer.ids == ids
    assert loaded.recommend(history, 5) == fitted.recommend(history, 5)
    evaluation = fitted.evaluate("test")
    assert 0 <= evaluation.metrics["recall@10"] <= 1
