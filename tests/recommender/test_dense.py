"""Item vectors beside ids through the front door: buckets that only vectors tell apart, new items, files, kills."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import small, world
from test_retokenise import same
from worlds import EVERY_STEP, Killed, Killer

from capsid.data.dataset import Dataset
from capsid.data.planted import planted_dataset
from capsid.decode.beam import BeamSearch
from capsid.decode.fusion import BeamFusion
from capsid.encode.joined import Views
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.dense_items import DenseItems
from capsid.generate.dense_match import DenseMatch
from capsid.generate.next_token import NextToken
from capsid.ids.collisions import Bucket
from capsid.recipe import Phase, Recipe
from capsid.recipes import RECIPES
from capsid.recommender import Recommender

LEAVES = 12


def pairs() -> Dataset:
    """Two items per leaf of a tree, taken in turn: which of the two comes next shows in which came before."""
    return planted_dataset(branching=(3, 4), items_per_leaf=2, users=150, length=8, noise=0.05)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vector per leaf for the ids, and one that tells its two items apart; one more item for later, like item 5."""
    folder = tmp_path_factory.mktemp("vectors")
    number = np.append(np.arange(2 * LEAVES), 5)
    leaf_NI = np.eye(LEAVES)[number // 2]
    views = {"leaf": leaf_NI, "item": np.concatenate([leaf_NI, np.where(number % 2, 1.0, -1.0)[:, None]], axis=1)}
    for name, x_NI in views.items():
        ids = np.array([*pairs().items, "new"])
        np.savez(folder / f"{name}.npz", vectors=x_NI.astype(np.float32), ids=ids)
    return folder


def recipe(vectors: Path, *terms: object, decoder: object | None = None) -> Recipe:
    """Buckets of two items each, through a generator that learns them in a second or two."""

    def file(name: str) -> PrecomputedEncoder:
        return PrecomputedEncoder(path=str(vectors / f"{name}.npz"))

    plain = small("rq-kmeans", steps=120)
    return dataclasses.replace(
        plain.with_settings(["tokenizer.codebooks=24", "tokenizer.block=leaf", "generator.repeats=false"]),
        encoder=Views(item=file("item"), others=(("leaf", file("leaf")),)),
        collisions=Bucket(),
        objective=(NextToken(), *terms),
        decoder=decoder or BeamSearch(width=20),
    )


TERM = DenseMatch(hidden=24, dim=16)


@pytest.fixture(scope="module")
def recommender(vectors: Path) -> Recommender:
    return Recommender(recipe(vectors, TERM, decoder=BeamFusion(width=20))).fit(pairs())


def test_vectors_tell_apart_what_ids_do_not(recommender: Recommender, vectors: Path) -> None:
    ids = recommender.fitted.tokenizer.ids
    assert [len(ids.lookup(ids[item])) for item in ids.items] == [2] * len(ids)
    plain = Recommender(recipe(vectors)).fit(pairs()).evaluate(ks=(1, 2), filter_history=False)
    dense = recommender.evaluate(ks=(1, 2), filter_history=False)
    assert plain.metrics["recall@1"] < 0.6, "ids alone have to guess between the two"
    assert dense.metrics["recall@1"] > 0.85
    assert dense.metrics["recall@1"] > plain.metrics["recall@1"] + 0.25


def test_a_new_item_is_found_by_its_vector(recommender: Recommender, tmp_path: Path) -> None:
    recommender.save_pretrained(tmp_path / "run")
    grown = Recommender.from_pretrained(tmp_path / "run")
    items = list(pairs().items)
    old = grown.recommend(items[1:5], 3)
    assert old.items[0] == items[5]
    assert grown.add_items({"item_id": ["new"], "title": ["new"], "categories": [["new"]]}) == ["new"]
    assert len(grown.fitted.dense.vectors_NC) == 2 * LEAVES + 1
    found = grown.recommend(items[1:5], 3)
    # In the same bucket and nobody has taken it: by its id alone it would come last of three.
    assert set(found.items[:2]) == {items[5], "new"}
    assert grown.recommend([*items[1:5], "new"], 1).items[0] == items[6], "and is read by its vector"
    grown.save_pretrained(tmp_path / "grown")
    assert Recommender.from_pretrained(tmp_path / "grown").recommend(items[1:5], 3) == found


def test_vectors_are_those_of_the_weights_that_were_kept(recommender: Recommender, tmp_path: Path) -> None:
    fitted = recommender.fitted
    x_NI = fitted.tokenizer.blocks_["item"]
    torch.testing.assert_close(fitted.dense.vectors_NC, DenseItems.of(fitted.dense.network, x_NI).vectors_NC)
    recommender.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    torch.testing.assert_close(loaded.fitted.dense.vectors_NC, fitted.dense.vectors_NC, rtol=0, atol=0)
    assert loaded.evaluate(ks=(1,)).metrics == recommender.evaluate(ks=(1,)).metrics
    best = max(point["metric"] for point in fitted.log[0]["curve"])
    again = recommender.evaluate("valid", ks=(10,)).metrics["recall@10"]
    assert again == pytest.approx(best), "validation has searched with the vectors of the moment"


def test_a_run_killed_in_training_ends_the_same(vectors: Path, tmp_path: Path) -> None:
    short = recipe(vectors, TERM, decoder=BeamFusion(width=20)).with_settings(
        ["schedule.0.training.steps=12", "schedule.0.training.validate_every=6"]
    )
    # Two phases: the second goes on with the vectors of the first.
    short = dataclasses.replace(short, schedule=(short.schedule[0], dataclasses.replace(short.schedule[0], name="two")))
    whole = Recommender(short).fit(pairs()).fitted
    for words in ("generator: step 7", "two: step 5"):
        with pytest.raises(Killed):
            Recommender(short).fit(pairs(), work=tmp_path, run=EVERY_STEP, progress=Killer(words))
    resumed = Recommender(short).fit(pairs(), work=tmp_path, run=EVERY_STEP).fitted
    assert same(resumed, whole)
    for name, tensor in whole.dense.state().items():
        torch.testing.assert_close(resumed.dense.state()[name], tensor, rtol=0, atol=0)
    one = Recommender(dataclasses.replace(short, schedule=short.schedule[:1])).fit(pairs()).fitted
    assert (one.dense.vectors_NC - whole.dense.vectors_NC).abs().max() < 1.0


def test_a_term_that_is_off_trains_the_same_generator(vectors: Path) -> None:
    few = ["schedule.0.training.steps=10", "schedule.0.training.validate_every=5", "generator.dropout=0.1"]
    plain = Recommender(recipe(vectors).with_settings(few)).fit(pairs()).fitted
    off = Recommender(recipe(vectors, DenseMatch(weight=0.0, reads=False)).with_settings(few)).fit(pairs()).fitted
    assert same(off, plain)


def test_recipes_that_cannot_be(vectors: Path) -> None:
    with pytest.raises(ConfigError, match="decoder=fusion needs a term 'dense'"):
        recipe(vectors).with_settings(["decoder=fusion"])
    with pytest.raises(ConfigError, match="does not work with generator=transformer"):
        RECIPES["cobra"].with_settings(["generator=transformer"])
    phased = dataclasses.replace(recipe(vectors), schedule=(Phase(terms=(NextToken(), TERM)),))
    assert phased.dense == TERM


def test_vectors_of_another_catalogue_are_refused(recommender: Recommender, tmp_path: Path) -> None:
    fitted = recommender.fitted
    recommender.save_pretrained(tmp_path / "run")
    odd = dataclasses.replace(fitted, dense=DenseItems(fitted.dense.network, fitted.dense.vectors_NC[:-1]))
    recommender.fitted_ = odd
    try:
        recommender.save_pretrained(tmp_path / "odd")
    finally:
        recommender.fitted_ = fitted
    with pytest.raises(ArtifactError, match="a vector for each of 24 items"):
        Recommender.from_pretrained(tmp_path / "odd")


@pytest.mark.parametrize("name", ["cobra", "tiger-dense", "capsid-dense"])
def test_the_recipes_learn_a_planted_world(name: str) -> None:
    found = Recommender(small(name)).fit(world()).evaluate()
    assert found.metrics["recall@10"] > 0.5
