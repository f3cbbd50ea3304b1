"""What every recipe promises, asked of every recipe on a planted world."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import VARIANTS, small, tiny_world, world
from worlds import small_disk

from capsid.base.storage.artifacts import folder_kind
from capsid.data.split import cold_item_split, temporal_split
from capsid.errors import ArtifactError, ConfigError, DataError, NotFittedError
from capsid.recipes import RECIPES
from capsid.recommender import Recommendation, Recommender
from capsid.tokenize.item_tokenizer import ItemTokenizer


class Fitted(dict[str, Recommender]):
    """Small recipes, each fitted when a test first asks for it."""

    def __missing__(self, name: str) -> Recommender:
        self[name] = Recommender(small(name)).fit(world())
        return self[name]


@pytest.fixture(scope="module")
def fitted() -> dict[str, Recommender]:
    return Fitted()


@pytest.fixture(params=[*RECIPES, *VARIANTS])
def recommender(request: pytest.FixtureRequest, fitted: dict[str, Recommender]) -> Recommender:
    return fitted[request.param]


def histories() -> list[list[str]]:
    data = world()
    return [data.items.ids(data.sequences[u][:n]) for u, n in ((0, 1), (1, 3), (2, 7), (3, 5))]


def close(a: Recommendation, b: Recommendation) -> bool:
    return a.items == b.items and a.titles == b.titles and np.allclose(a.scores, b.scores, rtol=1e-4, atol=1e-4)


def test_what_recommending_promises(recommender: Recommender) -> None:
    for history in histories():
        found = recommender.recommend(history, 10)
        assert len(found) == len(set(found.items)) == len(found.scores) == len(found.titles) == 10
        assert found.personal
        assert not set(found.items) & set(history), "the history filter is on by default"
        assert set(found.items) <= set(world().items)
        assert list(found.scores) == sorted(found.scores, reverse=True)
        assert found.titles[0] == world().title(world().items.number(found.items[0]))


def test_a_batch_is_its_users_one_by_one(recommender: Recommender) -> None:
    many = recommender.recommend_many(histories(), 7)
    for history, found in zip(histories(), many):
        assert close(recommender.recommend(history, 7), found)


def test_save_and_load(recommender: Recommender, tmp_path: Path) -> None:
    recommender.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert folder_kind(tmp_path / "run") == "run"
    assert loaded.recipe == recommender.recipe
    for history in histories():
        assert loaded.recommend(history, 9) == recommender.recommend(history, 9)
    expected, found = recommender.evaluate(), loaded.evaluate()
    assert found.metrics == expected.metrics
    assert found.extras == expected.extras
    for name, value in expected.values.items():
        np.testing.assert_array_equal(found.values[name], value)
    assert list(loaded.predict("valid", 3)) == list(recommender.predict("valid", 3))
    assert loaded.fitted.log == tuple(json.loads(json.dumps(recommender.fitted.log)))


def test_unknown_ids_and_empty_histories(recommender: Recommender) -> None:
    known = histories()[1]
    with pytest.raises(DataError, match="unknown id 'zzz'"):
        recommender.recommend([*known, "zzz"])
    assert close(recommender.recommend([*known, "zzz"], unknown="drop"), recommender.recommend(known))
    counts = recommender.catalogue_.counts
    popular = [world().items[i] for i in np.lexsort([np.arange(len(counts)), -counts])[:5]]
    for nothing in ([], ["zzz"]):
        found = recommender.recommend(nothing, 5, unknown="drop")
        assert list(found.items) == popular
        assert not found.personal
    mixed = recommender.recommend_many([known, [], histories()[0]], 5)
    assert [m.personal for m in mixed] == [True, False, True]
    assert close(mixed[2], recommender.recommend(histories()[0], 5))
    denied = recommender.recommend([], 5, deny=popular[:2], allow=popular)
    assert list(denied.items) == popular[2:]


def test_filters(recommender: Recommender) -> None:
    history = histories()[2]
    everything = recommender.recommend(history, 72, filter_history=False)
    assert sorted(everything.items) == sorted(world().items)
    allowed, denied = list(everything.items[10:30]), list(everything.items[12:14])
    found = recommender.recommend(history, 50, filter_history=False, allow=allowed, deny=denied)
    assert set(found.items) == set(allowed) - set(denied)
    assert set(recommender.recommend(history, 72).items) == set(world().items) - set(history)
    with pytest.raises(DataError, match="leave no item"):
        recommender.recommend(history, allow=allowed[:1], deny=allowed[:1])
    with pytest.raises(DataError, match="unknown id 'zzz'"):
        recommender.recommend(history, allow=["zzz"])


def test_evaluating_and_predicting_agree(recommender: Recommender) -> None:
    """Anyone can score the predicted lists: the same hits come out."""
    ranks = recommender.evaluate("test", ks=(5,)).values["rank"]
    cases = world().sequences
    for row, (user, items, scores) in enumerate(recommender.predict("test", 5)):
        target = world().items[int(cases[world().users.number(user)][-1])]
        assert (items.index(target) + 1 if target in items else 0) == ranks[row]
        assert scores == sorted(scores, reverse=True)


def test_bad_requests(recommender: Recommender, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a history must be a list of item ids"):
        recommender.recommend("i1")
    for history in (histories()[0], []):
        for k in (0, -1):
            with pytest.raises(ConfigError, match="k must be a whole number from 1"):
                recommender.recommend(history, k)
    with pytest.raises(DataError, match="unknown must be raise or drop, got 'ignore'"):
        recommender.recommend([], unknown="ignore")
    with pytest.raises(DataError, match="no split 'train'"):
        recommender.evaluate("train")


def test_a_full_disk_leaves_the_earlier_run(recommender: Recommender, tmp_path: Path) -> None:
    recommender.save_pretrained(tmp_path / "run")
    for limit in (100, 3000):
        with small_disk(limit), pytest.raises(ArtifactError, match="could not write"):
            recommender.save_pretrained(tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    Recommender.from_pretrained(tmp_path / "run")


def test_a_changed_byte_is_noticed(fitted: dict[str, Recommender], tmp_path: Path) -> None:
    fitted["sasrec"].save_pretrained(tmp_path / "run")
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != "manifest.json"]
    assert len(files) > 10
    for file in files:
        data = file.read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        file.write_bytes(bytes(changed))
        with pytest.raises(ArtifactError, match="was changed"):
            Recommender.from_pretrained(tmp_path / "run")
        file.write_bytes(data)
    Recommender.from_pretrained(tmp_path / "run")
    with pytest.raises(ArtifactError, match="holds a run, not a tokenizer"):
        ItemTokenizer.from_pretrained(tmp_path / "run")


def test_the_planted_world_is_learnt(fitted: dict[str, Recommender]) -> None:
    names = ("popularity", "sasrec", "rq-kmeans", *VARIANTS)
    recall = {name: fitted[name].evaluate(filter_history=True).metrics["recall@5"] for name in names}
    assert recall["popularity"] < 0.15
    assert recall["sasrec"] > 0.8
    assert recall["rq-kmeans"] > 3 * recall["popularity"]
    assert recall["rq-kmeans"] > 0.3
    assert all(recall[name] > 2 * recall["popularity"] for name in VARIANTS)


def test_the_best_next_item_is_the_planted_one(fitted: dict[str, Recommender]) -> None:
    found = fitted["sasrec"].recommend(["i6", "i7"], 3)
    assert found.items[0] == "i8"


def weights(recommender: Recommender) -> dict[str, torch.Tensor]:
    return recommender.fitted.generator.state()


def same_weights(a: Recommender, b: Recommender) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize("name", [*RECIPES, "tiger with T5"])
def test_refit_equals_fresh_fit_and_the_recipe_stays(name: str) -> None:
    recipe = small(name, steps=3)
    fresh = Recommender(recipe, seed=4).fit(tiny_world())
    again = Recommender(recipe, seed=4).fit(world()).fit(tiny_world())
    assert again.fitted.tokenizer.ids == fresh.fitted.tokenizer.ids
    assert same_weights(again, fresh)
    history = list(tiny_world().items[:2])
    assert again.recommend(history, 4) == fresh.recommend(history, 4)
    assert recipe == small(name, steps=3), "fitting changed the recipe"
    if recipe.schedule:
        assert not same_weights(Recommender(recipe, seed=5).fit(tiny_world()), fresh)


@pytest.mark.parametrize("name", ["rq-kmeans", "popularity"])
def test_other_splits(name: str, tmp_path: Path) -> None:
    """A cold item is in no training sequence, but in the catalogue; another split never finds this one's stages."""
    data = world()
    cold = cold_item_split(data, share=0.1, seed=0)
    recipe = small(name, steps=3)
    recommender = Recommender(recipe).fit(data, split=cold, work=tmp_path)
    assert (recommender.catalogue_.counts[cold.cold] == 0).all()
    assert len(recommender.fitted.tokenizer.ids) == len(data.items)
    recommender.evaluate()
    whole = Recommender(recipe).fit(data, work=tmp_path)
    assert whole.catalogue_.counts.sum() > recommender.catalogue_.counts.sum()
    straight = Recommender(recipe).fit(data)
    assert same_weights(whole, straight)
    assert not same_weights(whole, recommender)
    recommender.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert loaded.catalogue_.split.kind == "cold-item"
    assert loaded.evaluate().metrics == recommender.evaluate().metrics
    temporal = Recommender(recipe).fit(data, split=temporal_split(data), work=tmp_path)
    assert not same_weights(temporal, whole)


def test_unfitted_says_so(tmp_path: Path) -> None:
    recommender = Recommender.from_recipe("popularity")
    for ask in (
        lambda: recommender.recommend(["i1"]),
        lambda: recommender.evaluate(),
        lambda: list(recommender.predict()),
        lambda: recommender.save_pretrained(tmp_path / "never"),
    ):
        with pytest.raises(NotFittedError, match="not fitted"):
            ask()
    assert not (tmp_path / "never").exists()
    with pytest.raises(DataError, match="no dataset and no folder"):
        recommender.fit("nowhere")
    with pytest.raises(ConfigError, match="no recipe"):
        Recommender.from_recipe("tigre")
    with pytest.raises(ArtifactError, match="there is no folder"):
        Recommender.from_pretrained(tmp_path / "never")
