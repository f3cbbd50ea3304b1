"""Published methods turned back into simpler ones: without what is new in them they equal an existing recipe."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from small_recipes import small, world
from test_retokenise import same

from capsid.base.config import difference
from capsid.data.split import cold_item_split
from capsid.errors import ConfigError, DataError
from capsid.ids.reading import ItemByItem
from capsid.ragged import Ragged
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.recommender import Recommender

PUBLISHED = (
    *("tiger", "lc-rec", "letter", "sa2crq", "unirec-coa", "resid", "ada-sid"),
    *("cobra", "tiger-dense", "capsid-dense", "diger", "etegrec", "actionpiece"),
)
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
        ("tiger-dense", "tiger", {"collisions", "objective.1", "decoder"}),
        ("cobra", "tiger-dense", {"tokenizer.codebooks"}),
        ("capsid-dense", "capsid", {"objective.1", "decoder"}),
        ("diger", "tiger", {"tokenizer.assign", "collisions.capacity", "schedule.0.adapt"}),
        (
            "etegrec",
            "tiger",
            {"encoder", "tokenizer.hidden", "tokenizer.latent", "collisions.capacity", "schedule.0.adapt"},
        ),
        (
            "actionpiece",
            "tiger",
            {
                *("tokenizer", "collisions", "merges", "reading", "generator.reads", "over", "decoder"),
                *(f"schedule.0.training.{name}" for name in ("steps", "batch_size", "validate_every")),
            },
        ),
    ],
)
def test_neighbours_differ_in_what_the_papers_say(first: str, second: str, wanted: set[str]) -> None:
    found = settings_that_differ(RECIPES[first], RECIPES[second])
    assert {path for path in found if not any(path.startswith(f"{part}.") for part in wanted)} <= wanted
    assert all(any(path == part or path.startswith(f"{part}.") for path in found) for part in wanted)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_names_its_paper_and_its_deviations(name: str) -> None:
    recipe = RECIPES[name]
    assert re.search(r"\(.*arXiv \d{4}\.\d{5}", recipe.paper)
    assert len(recipe.deviations) >= 3
    assert len(set(recipe.deviations)) == len(recipe.deviations)


def assert_same_bits(ours: Recommender, theirs: Recommender) -> None:
    """Ids, tokenizer, generator and curve; ours may have more state than theirs."""
    assert same(ours.fitted, theirs.fitted)
    found = ours.fitted.tokenizer.tokenizer_.state()
    for name, array in theirs.fitted.tokenizer.tokenizer_.state().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_lc_rec_without_balancing_has_the_bits_of_tiger() -> None:
    plain = small("lc-rec", steps=2).with_settings(["tokenizer.assign=none", "collisions=suffix"])
    assert_same_bits(*(Recommender(recipe, seed=3).fit(world()) for recipe in (plain, small("tiger", steps=2))))


def test_sa2crq_of_one_stage_without_crowds_has_the_bits_of_tiger_with_buckets() -> None:
    plain = small("sa2crq", steps=2).with_settings(["tokenizer.head=1", "tokenizer.extra=0", "tokenizer.crowd=0"])
    tiger = small("tiger", steps=2).with_settings(["collisions=bucket"])
    assert_same_bits(*(Recommender(recipe, seed=3).fit(world()) for recipe in (plain, tiger)))


def test_letter_without_its_terms_has_the_bits_of_lc_rec() -> None:
    idle = small("letter", steps=2).with_settings(DEGENERATE["letter"][1])
    assert_same_bits(*(Recommender(recipe, seed=3).fit(world()) for recipe in (idle, small("lc-rec", steps=2))))


def test_unirec_coa_without_attributes_and_capacity_has_the_bits_of_rq_kmeans() -> None:
    recipe = small("unirec-coa", steps=2).with_settings(["tokenizer.inner.capacity=none"])
    plain = dataclasses.replace(recipe, tokenizer=dataclasses.replace(recipe.tokenizer, fields=()))
    ours, theirs = (Recommender(r, seed=3).fit(world()) for r in (plain, small("rq-kmeans", steps=2)))
    assert same(ours.fitted, theirs.fitted)
    for mine, other in zip(
        ours.fitted.tokenizer.tokenizer_.centres(), theirs.fitted.tokenizer.tokenizer_.centres(), strict=True
    ):
        np.testing.assert_array_equal(mine, other)


def test_diger_whose_codebooks_rest_has_the_bits_of_tiger_on_its_ids() -> None:
    """Without noise and at rate 0, whatever refreshes and paths of gradients do."""
    # One validation, at the end: in tiger it may choose among the weights of the whole phase.
    once = ["schedule.0.training.validate_every=18", "generator.dropout=0.1", "collisions.capacity=32"]
    idle = small("diger", steps=18).with_settings(
        [*once, "schedule.0.adapt.rate=0", "schedule.0.adapt.noise=0", "schedule.0.adapt.refreshes=3"]
    )
    tiger = dataclasses.replace(small("tiger", steps=18), tokenizer=idle.tokenizer).with_settings(once)
    ours, theirs = (Recommender(recipe, seed=3).fit(world()).fitted for recipe in (idle, tiger))
    assert ours.tokenizer.ids == theirs.tokenizer.ids
    assert ours.trie.rows() == theirs.trie.rows()
    left, right = ours.generator.state(), theirs.generator.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in right)
    # The loss of a log holds the codebooks' own.
    assert ours.log[-1]["curve"][-1]["metric"] == theirs.log[-1]["curve"][-1]["metric"]
    moving = idle.with_settings(["schedule.0.adapt.rate=1"])
    other = Recommender(moving, seed=3).fit(world()).fitted.generator.state()
    assert not all(torch.equal(left[name], other[name]) for name in right), "or the comparison says nothing"


def test_actionpiece_without_merges_and_permutation_reads_plain_ids_of_five_slots() -> None:
    recipe = dataclasses.replace(small("actionpiece", steps=2), merges=None).with_settings(
        ["tokenizer.codebooks=8,8,8,8", "reading.permute=false"]
    )
    ids = Recommender(recipe).fit(world()).fitted.tokenizer.ids
    assert set(ids.tokens.lengths) == {5}
    assert ids.tokens == ids.unmerged
    assert ids.statistics().items_sharing_an_id == 0
    histories = Ragged.from_rows([[3, 1, 40], [7]], np.int64)
    read, plain = ids.read(histories, last=8), ids.with_reading(ItemByItem()).read(histories, last=8)
    np.testing.assert_array_equal(read.tokens_BL, plain.tokens_BL)
    assert read.items == plain.items
    assert read.own == plain.own


COLD = ["letter", "ada-sid", "etegrec", "resid", "unirec-coa", "sa2crq", "diger", "actionpiece", "cobra"]


@pytest.mark.parametrize("name", COLD)
def test_items_without_behaviour_get_ids_all_the_same(name: str) -> None:
    """In no training sequence: what docs/recipes.md says of each method."""
    split = cold_item_split(world(), share=0.1, seed=0)
    found = Recommender(small(name, steps=2)).fit(world(), split=split)
    ids, cold = found.fitted.tokenizer.ids, split.cold
    assert len(cold) == 7
    assert (found.catalogue_.counts[cold] == 0).all()
    codes = [tuple(ids.codes[int(item)].tolist()) for item in cold]
    every = found.recommend([world().items[0]], 72, filter_history=False)
    assert set(world().items.ids(cold)) <= set(every.items)
    if name == "ada-sid":
        assert all(set(own[4:]) <= {-1} and min(own[:4]) >= 0 for own in codes), "text and shared codes alone"
    if name == "etegrec":
        assert len(set(codes)) == 1, "all have the mean vector"
        assert len({ids[item] for item in world().items.ids(cold)}) == 7, "and differ in their suffixes"
    if name == "resid":
        vectors = found.fitted.tokenizer.vectors_
        assert not vectors[cold][:, :8].any(), "no embedding of their own"
        assert vectors[cold][:, 8:].any(1).all(), "but those of their fields"


def test_a_new_item_of_etegrec_has_the_codes_of_items_without_behaviour() -> None:
    tokenizer = Recommender(small("etegrec", steps=4)).fit(world()).fitted.tokenizer
    attributes = {"title": ["amber thing", "birch thing"], "categories": [["amber"], ["birch"]]}
    grown = tokenizer.with_items({"item_id": ["one", "other"], **attributes})
    codes = [tuple(codes.tolist()) for codes in grown.ids.codes]
    assert codes[-1] == codes[-2]
    assert grown.ids["one"] != grown.ids["other"]
    assert grown.ids.tokens.take(np.arange(72)) == tokenizer.ids.tokens


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
