"""What the ids of every recipe promise: resumed, stored, reported, inspected, exported, and given new items."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_recipes import small, tiny_world, world
from worlds import EVERY_STEP, Killed, Killer

from capsid.fit.tokenizers import add_items, fit_tokenizer, open_tokenizer
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.tokenize.rivals.lookup import Atomic

WITH_IDS = [name for name, recipe in RECIPES.items() if not isinstance(recipe.tokenizer, Atomic)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture(params=WITH_IDS)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe's tokenizer, killed in the middle if it trains, and fitted again."""
    name = str(request.param)
    if name not in folders:
        out = tmp_path_factory.mktemp(name) / "ids"
        try:
            fit_tokenizer(small(name), world(), out, seed=3, progress=Killer("step 7/12"), run=EVERY_STEP)
        except Killed:
            fit_tokenizer(small(name), world(), out, seed=3, run=EVERY_STEP)
        assert [p.name for p in out.parent.iterdir()] == ["ids"], "no checkpoint is left"
        fit_tokenizer(small(name), world(), out.with_name("unbroken"), seed=3)
        folders[name] = out
    return folders[name]


def test_a_killed_fit_ends_with_the_same_ids(folder: Path) -> None:
    ours, theirs = open_tokenizer(folder).tokenizer, open_tokenizer(folder.with_name("unbroken")).tokenizer
    assert ours.ids == theirs.ids
    wanted = theirs.tokenizer_.state()
    found = ours.tokenizer_.state()
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_every_id_is_reported_inspected_and_exported(folder: Path) -> None:
    opened = open_tokenizer(folder)
    report = opened.quality().to_dict()
    assert report["items"] == len(opened.items) == 72
    assert 0 <= report["collision_rate_final"] <= 1
    assert sum(report["length_histogram"].values()) == 72
    lines = opened.lines(opened.items)
    assert [line.item for line in lines] == list(world().items)
    for line in (lines[0], lines[40]):
        about = opened.inspect(line.item)
        assert about.codes == line.codes
        assert about.tokens == line.tokens
        assert line.item in opened.tokenizer.decode(line.tokens)
        assert about.prefixes[-1].items >= 1


def late() -> pl.DataFrame:
    """An item like an old one, and one of a category that nobody knows."""
    path = world().attributes["categories"][5].to_list()
    return pl.DataFrame(
        {
            "item_id": ["late", "strange"],
            "title": [world().title(5), "something else entirely"],
            "categories": [path, [path[0], "not known"]],
        }
    )


def test_a_new_item_gets_an_id_and_old_ids_stay(folder: Path, tmp_path: Path) -> None:
    before = open_tokenizer(folder)
    add_items(folder, late(), tmp_path / "grown")
    after = open_tokenizer(tmp_path / "grown")
    assert list(after.items) == [*before.items, "late", "strange"]
    assert after.tokenizer.ids.tokens.take(np.arange(72)) == before.tokenizer.ids.tokens
    for name in ("late", "strange"):
        assert name in after.tokenizer.decode(after.tokenizer.ids[name])


def as_written(name: str) -> Recipe:
    """The small recipe with the codebooks of the real one."""
    written, recipe = RECIPES[name].tokenizer, small(name)
    sizes = {f: getattr(written, f) for f in ("codebooks", "codebook", "branching") if hasattr(written, f)}
    if hasattr(written, "inner"):
        sizes["inner"] = dataclasses.replace(recipe.tokenizer.inner, codebooks=written.inner.codebooks)
    return dataclasses.replace(recipe, tokenizer=dataclasses.replace(recipe.tokenizer, **sizes))


@pytest.mark.parametrize("name", WITH_IDS)
def test_a_catalogue_smaller_than_the_codebooks(name: str, tmp_path: Path) -> None:
    """Twelve items and codebooks of 24 to 4,096: every item has an id, and so has one that comes later."""
    ids = fit_tokenizer(as_written(name), tiny_world(), tmp_path / "ids").ids
    assert len(ids) == 12
    assert ids.codes.lengths.min() >= 1
    grown = open_tokenizer(tmp_path / "ids").tokenizer.with_items(late())
    assert grown.ids.tokens.take(np.arange(12)) == ids.tokens
    assert "late" in grown.decode(grown.ids["late"])
