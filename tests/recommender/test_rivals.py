"""Published methods turned back into simpler ones: without what is new in them they equal an existing recipe."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_recipes import small, world

from capsid.config import difference
from capsid.errors import ConfigError, DataError
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.recommender import Recommender

TEXTS = {"name", "about", "paper", "deviations"}
# What has to be taken away from a method, and what it is then.
DEGENERATE: dict[str, tuple[str, tuple[str, ...]]] = {
    "letter": (
        "lc-rec",
        ("tokenizer.terms.0.weight=0", "tokenizer.terms.1.weight=0", "tokenizer.start=k-means"),
    ),
    "lc-rec": (
        "tiger",
        (
            "tokenizer.assign=none",
            "tokenizer.codebooks=256,256,256",
            "tokenizer.training.batch_size=256",
            "collisions=suffix",
        ),
    ),
    "sa2crq": (
        "tiger",
        (
            "tokenizer.head=1",
            "tokenizer.extra=0",
            "tokenizer.crowd=0",
            "tokenizer.codebooks=256,256,256",
            "collisions=suffix",
        ),
    ),
}


def settings_that_differ(first: Recipe, second: Recipe) -> set[str]:
    return set(difference(first, second)) - TEXTS


@pytest.mark.parametrize("name", DEGENERATE)
def test_without_what_is_new_a_method_is_another(name: str) -> None:
    """Idle terms and views that nobody reads are all that may be left."""
    other, taken_away = DEGENERATE[name]
    left = settings_that_differ(RECIPES[name].with_settings(taken_away), RECIPES[other])
    assert all(path.startswith(("tokenizer.terms", "encoder")) for path in left)


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("letter", "lc-rec", {"encoder.kind", "encoder.others", "tokenizer.terms", "tokenizer.start"}),
        ("unirec-coa", "rq-kmeans", {"tokenizer.kind", "tokenizer.fields", "tokenizer.inner.capacity"}),
        (
            "lc-rec",
            "tiger",
            {"tokenizer.codebooks", "tokenizer.assign", "tokenizer.training.batch_size", "collisions"},
        ),
        (
            "sa2crq",
            "tiger",
            {"tokenizer.codebooks", "tokenizer.head", "tokenizer.extra", "tokenizer.crowd", "collisions"},
        ),
    ],
)
def test_neighbours_differ_in_what_the_papers_say(first: str, second: str, wanted: set[str]) -> None:
    found = settings_that_differ(RECIPES[first], RECIPES[second])
    assert {path for path in found if not any(path.startswith(f"{part}.") for part in wanted)} <= wanted
    assert all(any(path == part or path.startswith(f"{part}.") for path in found) for part in wanted)


def test_lc_rec_without_balancing_has_the_bits_of_tiger() -> None:
    plain = small("lc-rec", steps=2).with_settings(["tokenizer.assign=none", "collisions=suffix"])
    ours, theirs = (Recommender(recipe, seed=3).fit(world()) for recipe in (plain, small("tiger", steps=2)))
    assert ours.fitted.tokenizer.ids == theirs.fitted.tokenizer.ids
    for name, array in theirs.fitted.tokenizer.tokenizer_.state().items():
        np.testing.assert_array_equal(ours.fitted.tokenizer.tokenizer_.state()[name], array)


def test_sa2crq_of_one_stage_without_crowds_has_the_bits_of_tiger_with_buckets() -> None:
    plain = small("sa2crq", steps=2).with_settings(["tokenizer.head=1", "tokenizer.extra=0", "tokenizer.crowd=0"])
    tiger = small("tiger", steps=2).with_settings(["collisions=bucket"])
    ours, theirs = (Recommender(recipe, seed=3).fit(world()) for recipe in (plain, tiger))
    assert ours.fitted.tokenizer.ids == theirs.fitted.tokenizer.ids
    wanted = theirs.fitted.generator.state()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.fitted.generator.state().items())


def test_letter_without_its_terms_has_the_bits_of_lc_rec() -> None:
    idle = small("letter", steps=2).with_settings(DEGENERATE["letter"][1])
    ours, theirs = (Recommender(recipe, seed=3).fit(world()) for recipe in (idle, small("lc-rec", steps=2)))
    assert ours.fitted.tokenizer.ids == theirs.fitted.tokenizer.ids
    for name, array in theirs.fitted.tokenizer.tokenizer_.state().items():
        np.testing.assert_array_equal(ours.fitted.tokenizer.tokenizer_.state()[name], array)


def test_unirec_coa_without_attributes_and_capacity_has_the_bits_of_rq_kmeans() -> None:
    recipe = small("unirec-coa", steps=2).with_settings(["tokenizer.inner.capacity=none"])
    plain = dataclasses.replace(recipe, tokenizer=dataclasses.replace(recipe.tokenizer, fields=()))
    ours, theirs = (Recommender(r, seed=3).fit(world()) for r in (plain, small("rq-kmeans", steps=2)))
    assert ours.fitted.tokenizer.ids == theirs.fitted.tokenizer.ids
    wanted = theirs.fitted.generator.state()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.fitted.generator.state().items())


@pytest.mark.parametrize("name", ["unirec-coa", "resid"])
def test_methods_with_fields_need_metadata(name: str) -> None:
    data = dataclasses.replace(world(), attributes=world().attributes.drop("categories"), text_fields=("title",))
    with pytest.raises(ConfigError, match="the items have no column 'categories'"):
        Recommender(small(name, steps=2)).fit(data)


def test_ada_sid_needs_behaviour_and_gives_new_items_text_codes() -> None:
    tokenizer = Recommender(small("ada-sid", steps=2)).fit(world()).fitted.tokenizer
    late = tokenizer.encode({"item_id": ["late"], "title": ["amber thing"]})["late"]
    assert all(code >= 0 for code in late[:4])
    assert set(late[4:]) <= {-1}
    grown = tokenizer.with_items({"item_id": ["late"], "title": ["amber thing"]})
    assert len(grown.ids["late"]) == 4
    lonely = dataclasses.replace(world(), sequences=world().sequences.first(3), times=None)
    with pytest.raises(DataError, match="no training history has two items"):
        Recommender(small("ada-sid", steps=2)).fit(lonely)


def test_resid_has_unique_ids_and_places_new_items_by_their_fields() -> None:
    ids = Recommender(small("resid", steps=2)).fit(world()).fitted.tokenizer
    assert ids.ids.statistics().items_sharing_an_id == 0
    known = dict(zip(ids.ids.items, (tuple(c.tolist()) for c in ids.ids.codes)))
    paths = world().attributes["categories"].to_list()
    alike = {known[item][0] for item, path in zip(world().items, paths) if path[0] == paths[0][0]}
    late = ids.encode({"item_id": ["late"], "categories": [paths[0]]})["late"]
    assert late[0] in alike
    with pytest.raises(DataError, match="all zeros: 'bare'"):
        ids.with_items({"item_id": ["bare"], "categories": [["never heard of"]]})
