"""Items that come after training: they get ids, can be found, and change nothing that was there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_recipes import small, world

from capsid.data.dataset import item_title
from capsid.errors import DataError
from capsid.ids.trie import Trie
from capsid.recommender import Recommender


@pytest.fixture(params=["capsid", "capsid-bpe", "rq-kmeans"])
def recommender(request: pytest.FixtureRequest) -> Recommender:
    return Recommender(small(request.param)).fit(world())


def new_items() -> pl.DataFrame:
    """One like an old item in all but its id, and two of other words."""
    old = world().attributes
    rows = {
        "item_id": ["n0", "n1", "n2"],
        "title": [old["title"][5], "a thing of its own", "amber 1 birch 2"],
        "categories": [old["categories"][5].to_list(), ["nowhere"], ["amber 1"]],
    }
    return pl.DataFrame(rows)


def test_new_items_can_be_recommended(recommender: Recommender) -> None:
    history = world().items.ids(world().sequences[0][:4])
    before = recommender.recommend(history, 72, filter_history=False)
    tokens = recommender.fitted.tokenizer.ids.tokens
    assert recommender.add_items(new_items()) == ["n0", "n1", "n2"]
    ids = recommender.fitted.tokenizer.ids
    assert ids.tokens.take(np.arange(72)) == tokens, "old ids stay"
    after = recommender.recommend(history, 75, filter_history=False)
    assert {"n0", "n1", "n2"} <= set(after.items)
    assert after.titles[after.items.index("n1")] == "a thing of its own"
    catalogue = recommender.catalogue_
    assert catalogue.titles == [item_title(catalogue.items, catalogue.attributes, n) for n in range(75)]
    kept = [(i, s) for i, s in zip(after.items, after.scores) if not i.startswith("n")]
    assert dict(kept) == pytest.approx(dict(zip(before.items, before.scores)), abs=1e-4)
    assert recommender.recommend(["n0", *history], 5).personal


def test_the_extended_trie_is_the_one_built_anew(recommender: Recommender) -> None:
    recommender.add_items(new_items())
    ids, trie = recommender.fitted.tokenizer.ids, recommender.fitted.model.trie
    assert Trie.build(ids.prefix_free).rows() == trie.rows() == ids.prefix_free


def test_added_together_or_one_by_one(recommender: Recommender) -> None:
    other = Recommender(recommender.recipe).fit(world())
    recommender.add_items(new_items())
    for row in range(3):
        other.add_items(new_items()[row : row + 1])
    assert other.fitted.tokenizer.ids == recommender.fitted.tokenizer.ids


def test_saved_and_loaded(recommender: Recommender, tmp_path: Path) -> None:
    recommender.add_items(new_items())
    recommender.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    history = ["n0", *world().items.ids(world().sequences[0][:4])]
    assert loaded.recommend(history, 9) == recommender.recommend(history, 9)
    assert loaded.evaluate().metrics == recommender.evaluate().metrics
    assert isinstance(loaded.fitted.model.trie.token.base, np.memmap)
    loaded.save_pretrained(tmp_path / "run")
    assert loaded.recommend(history, 9) == recommender.recommend(history, 9), "its mapped folder was replaced"


def test_what_cannot_be_added(recommender: Recommender) -> None:
    before = recommender.fitted.tokenizer.ids
    taken = new_items().with_columns(item_id=pl.Series(["n0", world().items[3], "n2"]))
    with pytest.raises(DataError, match=world().items[3]):
        recommender.add_items(taken)
    with pytest.raises(DataError, match="item_id"):
        recommender.add_items(new_items().drop("item_id"))
    assert recommender.fitted.tokenizer.ids is before


def test_added_whole_or_not_at_all(recommender: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the last part, the catalogue, leaves tokenizer and trie as they were."""
    fitted, catalogue = recommender.fitted, recommender.catalogue_

    def broken(*_: object) -> None:
        raise DataError("no room")

    monkeypatch.setattr(type(catalogue), "with_items", broken)
    with pytest.raises(DataError, match="no room"):
        recommender.add_items(new_items())
    assert recommender.fitted is fitted
    assert len(fitted.tokenizer.ids) == len(fitted.model.trie) == len(catalogue.items) == 72
