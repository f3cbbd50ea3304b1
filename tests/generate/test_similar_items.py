"""Methods without a network: lists against slow twins by hand, and rankings against dense formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import world

from capsid.encode.text import HashingEncoder
from capsid.errors import ConfigError
from capsid.generate.generator import PopularityGenerator
from capsid.generate.similar_items import ItemKnnGenerator, co_taken, ease_weights
from capsid.ragged import Ragged
from capsid.recipes import RECIPES
from capsid.recommender import Recommender

ITEMS = 9
rows = st.lists(st.lists(st.integers(0, ITEMS - 1), max_size=6), min_size=2, max_size=14).filter(any)


def dense(lists: Ragged, weights: np.ndarray, items: int = ITEMS) -> np.ndarray:
    out = np.zeros((items, items))
    out[lists.row_numbers, lists.values] = weights
    return out


def taken(users: list[list[int]]) -> np.ndarray:
    out = np.zeros((len(users), ITEMS))
    for user, row in enumerate(users):
        out[user, row] = 1
    return out


@settings(deadline=None, max_examples=40)
@given(users=rows, shrink=st.sampled_from([0.0, 1.0, 10.0]))
def test_co_taken_is_the_shrunk_cosine(users: list[list[int]], shrink: float) -> None:
    found = dense(*co_taken(Ragged.from_rows(users), ITEMS, neighbours=ITEMS, shrink=shrink))
    x = taken(users)
    both = x.T @ x
    own = np.diag(both)
    wanted = both / np.maximum(np.sqrt(np.outer(own, own)) + shrink, 1e-9)
    np.fill_diagonal(wanted, 0)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(users=rows, regularisation=st.sampled_from([0.5, 10.0]))
def test_ease_is_the_ridge_regression_of_every_item_on_all_others(
    users: list[list[int]], regularisation: float
) -> None:
    x = taken(users)
    wanted = np.zeros((ITEMS, ITEMS))
    for item in range(ITEMS):
        others = np.delete(np.arange(ITEMS), item)
        a = x[:, others]
        wanted[others, item] = np.linalg.solve(a.T @ a + regularisation * np.eye(len(others)), a.T @ x[:, item])
    sequences = Ragged.from_rows(users)
    exact = dense(*ease_weights(sequences, ITEMS, regularisation=regularisation, neighbours=ITEMS))
    np.testing.assert_allclose(exact, wanted, atol=2e-5)


def test_sparse_ease_is_exact_where_all_items_are_candidates() -> None:
    rng = np.random.default_rng(0)
    users = [rng.choice(ITEMS, size=5, replace=False).tolist() for _ in range(40)]
    sequences = Ragged.from_rows(users)
    exact = dense(*ease_weights(sequences, ITEMS, regularisation=3.0, neighbours=ITEMS))
    sparse = dense(*ease_weights(sequences, ITEMS, regularisation=3.0, neighbours=ITEMS, exact_up_to=0))
    np.testing.assert_allclose(sparse, exact, atol=1e-5)
    few = dense(*ease_weights(sequences, ITEMS, regularisation=3.0, neighbours=2))
    assert ((few != 0).sum(1) == 2).all()
    kept = few != 0
    np.testing.assert_allclose(few[kept], exact[kept], atol=1e-6)


@pytest.mark.parametrize("name", ["item-knn", "ease", "vector-knn"])
def test_lists_are_ranked_as_the_formula_says(name: str) -> None:
    recipe = RECIPES[name].with_settings(["generator.decay=0.5", "generator.neighbours=72", "decoder=exact"])
    if recipe.encoder is not None:
        recipe = dataclasses.replace(recipe, encoder=HashingEncoder(dim=16))
    data = world()
    fitted = Recommender(recipe).fit(data)
    generator = fitted.fitted.generator
    lists = dense(generator.lists_, generator.weights_.numpy(), len(data.items) + 99)
    token = fitted.fitted.tokenizer.ids.prefix_free.values
    history = data.sequences[0][:4]
    scores = sum(0.5**late * lists[item][token] for late, item in enumerate(history[::-1]))
    shown = fitted.recommend(data.items.ids(history), 10, filter_history=False).items
    numbers = data.items.numbers(list(shown))
    np.testing.assert_allclose(np.sort(scores)[::-1][:10], scores[numbers], atol=2e-4)


def test_other_items_come_in_order_of_popularity() -> None:
    data = world()
    recipe = RECIPES["item-knn"].with_settings(["generator.neighbours=1", "generator.history=1"])
    fitted = Recommender(recipe).fit(data)
    found = fitted.recommend(data.items.ids(data.sequences[0][:1]), 20).items
    counts = fitted.catalogue_.counts[data.items.numbers(list(found))]
    assert (np.diff(counts[1:]) <= 0).all()
    popular = Recommender(RECIPES["popularity"]).fit(data).recommend(data.items.ids(data.sequences[0][:1]), 20).items
    assert [i for i in popular if i != found[0]][:18] == [i for i in found if i != found[0]][:18]


def test_broken_lists_are_refused() -> None:
    fitted = Recommender(RECIPES["item-knn"]).fit(world())
    ids, state = fitted.fitted.tokenizer.ids, fitted.fitted.generator.state()
    ItemKnnGenerator().load_state(ids, state)
    for name, broken in (
        ("tokens", state["tokens"] + ids.layout.vocabulary),
        ("offsets", state["offsets"].flip(0)),
        ("weights", state["weights"][:-1]),
        ("offsets", state["offsets"][:-1]),
    ):
        with pytest.raises(ConfigError, match="are broken"):
            ItemKnnGenerator().load_state(ids, {**state, name: broken})
    with pytest.raises(ConfigError, match="needs item vectors"):
        Recommender(RECIPES["vector-knn"].with_settings(["encoder=null"])).fit(world())
    assert isinstance(fitted.fitted.generator, PopularityGenerator)
