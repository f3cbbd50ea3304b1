"""A recipe whose items have two views, text and behaviour, and whose ids are made from the second."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_recipes import small, world

from capsid.encode.joined import Views
from capsid.encode.sequence import SequenceEncoder
from capsid.encode.text import HashingEncoder
from capsid.errors import DataError
from capsid.evaluate.tokenizer_quality import tokenizer_quality
from capsid.ids.collisions import Reassign
from capsid.recipe import Recipe
from capsid.recommender import Recommender
from capsid.train.options import Training

BEHAVIOUR = SequenceEncoder(dim=16, training=Training(steps=60, batch_size=32, learning_rate=1e-2))
TWO_VIEWS = dataclasses.replace(
    small("rq-kmeans", steps=20).with_settings(["tokenizer.block=behaviour", "tokenizer.codebooks=6,16"]),
    name="two-views",
    encoder=Views(item=HashingEncoder(dim=24), others=(("behaviour", BEHAVIOUR),)),
    collisions=Reassign(),
)


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender(TWO_VIEWS).fit(world())


def test_ids_come_from_behaviour(recommender: Recommender) -> None:
    assert Recipe.from_dict(TWO_VIEWS.to_dict()) == TWO_VIEWS
    tokenizer = recommender.fitted.tokenizer
    assert {name: block.shape for name, block in tokenizer.blocks_.items()} == {"item": (72, 24), "behaviour": (72, 16)}
    assert tokenizer.vectors_ is tokenizer.blocks_["behaviour"]
    centres = tokenizer.tokenizer_.centres()
    assert [c.shape for c in centres] == [(6, 16), (16, 16)]
    nearest = ((tokenizer.vectors_[:, None] - centres[0]) ** 2).sum(2).argmin(1)
    np.testing.assert_array_equal(nearest, tokenizer.ids.codes.dense()[:, 0])
    about = tokenizer_quality(tokenizer.ids, tokenizer.vectors_, tokenizer.tokenizer_.decode)
    assert about.collision_rate > about.collision_rate_final
    assert about.reconstruction.hard is not None, "told in the space of the vectors that the ids are made from"


def test_saved_and_loaded_with_all_views(recommender: Recommender, tmp_path: Path) -> None:
    recommender.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    for name, block in recommender.fitted.tokenizer.blocks_.items():
        np.testing.assert_array_equal(loaded.fitted.tokenizer.blocks_[name], block)
    history = world().items.ids(world().sequences[0][:4])
    assert loaded.recommend(history, 5) == recommender.recommend(history, 5)
    assert loaded.fitted.tokenizer.ids.encoded == recommender.fitted.tokenizer.ids.encoded


def new_item() -> pl.DataFrame:
    old = world().attributes
    return pl.DataFrame({"item_id": ["n0"], "title": [old["title"][5]], "categories": [old["categories"][5].to_list()]})


def test_new_items_get_both_views_and_need_the_one_that_ids_are_made_from(recommender: Recommender) -> None:
    with pytest.raises(DataError, match="the vectors of 1 items are all zeros: 'n0'"):
        recommender.add_items(new_item())
    by_text = Recommender(TWO_VIEWS.with_settings(["tokenizer.block=item"])).fit(world())
    assert by_text.add_items(new_item()) == ["n0"]
    blocks = by_text.fitted.tokenizer.blocks_
    assert {name: len(block) for name, block in blocks.items()} == {"item": 73, "behaviour": 73}
    assert blocks["item"][72].any()
    assert not blocks["behaviour"][72].any()
