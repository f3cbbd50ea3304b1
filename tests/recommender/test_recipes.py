"""Recipes are values: they go to files and come back, take settings, and say what is wrong with one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import capsid
from capsid.base.config import difference, fingerprint
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.fit.schedule import bucket_priority
from capsid.ragged import Ragged
from capsid.recipe import KINDS, Recipe
from capsid.recipes import RECIPES, get_recipe
from capsid.recipes.guide import GROUPS, GUIDE, advice_on


@pytest.mark.parametrize("name", RECIPES)
def test_round_trip(name: str) -> None:
    recipe = RECIPES[name]
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert fingerprint(again) == fingerprint(recipe)
    assert difference(again, recipe) == {}
    assert recipe.name == name
    assert recipe.about


@pytest.mark.parametrize("name", RECIPES)
def test_descriptions_name_no_sizes(name: str) -> None:
    """Sizes follow the data, and the description of a run is that of its recipe."""
    assert not re.search(r"\d\d", RECIPES[name].about)


def test_names() -> None:
    assert {"rq-kmeans", "sasrec", "popularity"} <= set(RECIPES)
    assert get_recipe("sasrec") is RECIPES["sasrec"]
    with pytest.raises(ConfigError, match="no recipe 'sasrek'") as caught:
        get_recipe("sasrek")
    assert "'sasrec'" in (caught.value.hint or "")


def test_every_kind_of_part_is_listed_under_a_name_of_its_own() -> None:
    """One table holds all kinds, so a second part of the same name would hide the first."""
    assert all(getattr(cls, "kind", None) == kind for kind, cls in KINDS.items())
    # Engines and jobs are chosen by options of commands, not by recipes.
    sources = [p for p in Path(capsid.__file__).parent.rglob("*.py") if p.parent.name != "scale"]
    written = [
        kind for source in sources for kind in re.findall(r'kind: ClassVar\[str\] = "(.+)"', source.read_text("utf-8"))
    ]
    assert sorted(written) == sorted(KINDS)


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        ("kmeans-flat", "rq-kmeans", {"tokenizer"}),
        ("tiger", "rq-kmeans", {"tokenizer"}),
        ("tiger", "tiger-text", {"encoder"}),
        ("bert4rec", "sasrec", {"generator", "schedule"}),
        ("frequency", "tiger", {"encoder", "tokenizer", "collisions"}),
    ],
)
def test_rivals_differ_in_nothing_else(first: str, second: str, parts: set[str]) -> None:
    found = {path.partition(".")[0] for path in difference(RECIPES[first], RECIPES[second])}
    assert found - {"name", "about", "paper", "deviations"} == parts


def test_settings_change_a_copy() -> None:
    base = RECIPES["rq-kmeans"]
    changed = base.with_settings(["tokenizer.codebooks=4,4", " schedule.0.training.steps = 7 ", "decoder.width=3"])
    assert changed.tokenizer.codebooks == (4, 4)
    assert changed.schedule[0].training.steps == 7
    assert set(difference(base, changed)) == {"tokenizer.codebooks", "schedule.0.training.steps", "decoder.width"}
    assert base.with_settings([]) == base


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tokenizer.codebooks", "is not a setting"),
        ("=3", "is not a setting"),
        ("tokeniser.codebooks=3", "no field 'tokeniser'"),
        ("tokenizer.codebook=3", "no field 'codebook'"),
        ("generator.layers=many", "generator.layers must be a whole number from 1 to 1000, got 'many'"),
        ("generator.dropout=2", "generator.dropout must be from 0 to 0.99, got 2.0"),
        ("schedule.0.training.steps=0", "schedule.0.training.steps must be at least 1, got 0"),
        ("schedule.1.training.steps=5", "does not select one of 1"),
        ("tokenizer=bucket", "tokenizer cannot be 'bucket'"),
        ("generator=atomic", "generator cannot be 'atomic'"),
    ],
)
def test_wrong_settings(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RECIPES["rq-kmeans"].with_settings([setting])


def test_a_recipe_of_unknown_parts() -> None:
    data = RECIPES["sasrec"].to_dict()
    with pytest.raises(ConfigError, match="unknown kind of part 'atomicc'"):
        Recipe.from_dict({**data, "tokenizer": {"kind": "atomicc"}})
    with pytest.raises(ConfigError, match="Recipe has no field 'tokeniser'"):
        Recipe.from_dict({**data, "tokeniser": None})


def test_buckets_go_by_training_popularity_then_item_id() -> None:
    items = Vocabulary(["b", "c", "a10", "a9", "d"])
    table = ItemTable(items, pl.DataFrame(), np.array([2, 5, 2, 2, 0]), Ragged.from_rows([]))
    order = np.argsort(bucket_priority(table))
    assert items.ids(order) == ["c", "a10", "a9", "b", "d"]


def test_every_recipe_has_advice_and_every_advice_a_recipe() -> None:
    assert set(GUIDE) == set(RECIPES)
    assert {advice.group for advice in GUIDE.values()} == set(GROUPS)
    assert advice_on("of another package").group not in GROUPS
