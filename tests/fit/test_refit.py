"""Refitting on newer data: ids stay, weights start from the old ones, what is gone is retired, nothing leaks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from small_recipes import small, tiny_world

from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.data.split import Holdout
from capsid.errors import ConfigError, DataError
from capsid.fit.folder import fit_or_reuse
from capsid.fit.refit import continued, known_first, refit
from capsid.generate.dense_items import DenseItems
from capsid.ragged import Ragged
from capsid.recipes import RECIPES
from capsid.recommender import Recommender

NEW = ("i3", "i9")
# A step that moves nothing, so that the weights are those that training started from.
STILL = ("schedule.0.training.steps=1", "schedule.0.training.learning_rate=1e-12", "schedule.0.training.weight_decay=0")


def earlier(world: Dataset, without: tuple[str, ...] = NEW) -> Dataset:
    """The same shop before it had some of its items, its items in another order, everybody's last purchase to come."""
    kept = [item for item in reversed(world.items) if item not in without]
    items = Vocabulary(kept)
    rows = [items.numbers(world.items.ids(row[:-1]), missing="drop") for row in world.sequences]
    rows_of_items = world.items.numbers(kept)
    return Dataset(
        name="before",
        users=world.users,
        items=items,
        sequences=Ragged.from_rows(rows, np.int64),
        attributes=world.attributes[rows_of_items.tolist()],
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "before"
    fit_or_reuse(Recommender(small("rq-kmeans", 20)), earlier(tiny_world()), out)
    return out


def test_known_items_keep_their_ids_and_new_ones_get_those_of_add(run: Path, tmp_path: Path) -> None:
    found = refit(run, tiny_world(), tmp_path / "now", settings=["schedule.0.training.steps=5"])
    assert [p.name for p in tmp_path.iterdir()] == ["now"], "the working folder is gone"
    old, new = Recommender.from_pretrained(run), Recommender.from_pretrained(tmp_path / "now")
    assert (found.churn.changed_ids, found.churn.new_items, found.churn.retired_items) == (0, 2, 0)
    assert found.summary.steps == 5
    titles = {tiny_world().items[n]: tiny_world().attributes[n] for n in range(len(tiny_world().items))}
    frame = pl.concat([titles[item].with_columns(item_id=pl.lit(item)) for item in NEW])
    old.add_items(frame)
    assert list(new.catalogue_.items) == list(old.catalogue_.items)
    for item in new.catalogue_.items:
        assert new.fitted.tokenizer.ids[item] == old.fitted.tokenizer.ids[item]
        assert new.catalogue_.title(new.catalogue_.items.number(item)) == titles[item]["title"][0]
    held = new.catalogue_.split
    assert held.kind == "leave-one-out"
    assert len(held.train.values) == tiny_world().interactions - 2 * len(held.test)


@pytest.mark.parametrize("name", ["rq-kmeans", "tiger-dense"])
def test_training_starts_from_the_old_weights(name: str, tmp_path: Path) -> None:
    world = earlier(tiny_world(), ())
    fit_or_reuse(Recommender(small(name, 20)), world, tmp_path / "before")
    churn = refit(tmp_path / "before", world, tmp_path / "now", settings=STILL).churn
    assert (churn.overlap, churn.same_first, churn.users) == (1.0, 1.0, 20)
    old, new = (Recommender.from_pretrained(tmp_path / part).fitted for part in ("before", "now"))
    for mine, theirs in ((new.generator, old.generator), (new.dense, old.dense)):
        assert (mine is None) == (theirs is None)
        for key, tensor in mine.state().items() if mine is not None else ():
            torch.testing.assert_close(tensor, theirs.state()[key], rtol=1e-4, atol=1e-5)
    other = Recommender(small(name, 20), seed=1).fit(world)
    assert not torch.allclose(
        other.fitted.generator.network.token.weight, old.generator.network.token.weight, atol=1e-3
    ), "or the comparison says nothing"


def test_dense_vectors_follow_the_weights(tmp_path: Path) -> None:
    """The stored vectors are those of the refitted network, for old items and new ones."""
    world = tiny_world()
    fit_or_reuse(Recommender(small("tiger-dense", 20)), earlier(world), tmp_path / "before")
    refit(tmp_path / "before", world, tmp_path / "now", settings=["schedule.0.training.steps=8"])
    old, new = (Recommender.from_pretrained(tmp_path / part).fitted for part in ("before", "now"))
    assert len(new.dense.vectors_NC) == len(world.items) == len(old.dense.vectors_NC) + len(NEW)
    made = DenseItems.of(new.dense.network, new.tokenizer.blocks_["item"]).vectors_NC
    torch.testing.assert_close(new.dense.vectors_NC, made)
    assert (new.dense.vectors_NC[: len(old.dense.vectors_NC)] - old.dense.vectors_NC).abs().max() > 1e-2


def test_items_that_are_gone_are_retired(tmp_path: Path) -> None:
    fit_or_reuse(Recommender(small("rq-kmeans", 4)), tiny_world(), tmp_path / "before")
    churn = refit(tmp_path / "before", earlier(tiny_world()), tmp_path / "now", settings=STILL).churn
    assert (churn.retired_items, churn.new_items) == (2, 0)
    new = Recommender.from_pretrained(tmp_path / "now")
    assert new.catalogue_.retired == set(NEW)
    assert len(new.recommend(["i1"], k=50)) == len(tiny_world().items) - len(NEW) - 1


def test_attributes_are_the_newer_ones_and_else_the_old() -> None:
    world = tiny_world()
    old = Recommender(small("popularity")).fit(world).catalogue_
    renamed = world.attributes.with_columns(
        title=pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("renamed")).otherwise(None)
    )
    joined, gone = known_first(dataclasses.replace(world, attributes=renamed), old)
    assert joined.attributes["title"].to_list() == ["renamed", *world.attributes["title"].to_list()[1:]]
    assert not gone
    other = dataclasses.replace(world, items=Vocabulary(f"x{n}" for n in range(len(world.items))))
    with pytest.raises(DataError, match="none of the 12 items"):
        known_first(other, old)


@pytest.mark.parametrize("name", ["diger", "capsid"])
def test_no_phase_of_a_refit_gives_new_ids(name: str) -> None:
    written = RECIPES[name]
    recipe = continued(dataclasses.replace(written, schedule=written.schedule * 2))
    assert all(phase.adapt is None and not phase.retokenize for phase in recipe.schedule)
    ours, theirs = recipe.schedule[0].training, written.schedule[0].training
    assert (ours.steps, ours.learning_rate) == (theirs.steps / 4, pytest.approx(0.3 * theirs.learning_rate))
    named = continued(written, ["schedule.0.training.learning_rate=0.5", "schedule.0.training.steps=7"])
    assert (named.schedule[0].training.steps, named.schedule[0].training.learning_rate) == (7, 0.5)


def test_settings_that_would_change_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"so tokenizer\.codebooks cannot change"):
        continued(RECIPES["capsid"], ["tokenizer.codebooks=8,8"])


@pytest.mark.parametrize(("before", "now"), [("none", "last"), ("last", "time"), ("last", "cold"), ("cold", "cold")])
def test_weights_are_not_measured_on_what_they_have_seen(before: str, now: str, tmp_path: Path) -> None:
    world = tiny_world()
    fit_or_reuse(Recommender(small("popularity")), world, tmp_path / "before", holdout=Holdout(before, 0.2))
    with pytest.raises(ConfigError, match="may have seen what --holdout"):
        refit(tmp_path / "before", world, tmp_path / "now", holdout=Holdout(now, 0.2))
    refit(tmp_path / "before", world, tmp_path / "now", holdout=Holdout("none"))


def test_a_method_without_training_is_fitted_again_and_names_new_items(tmp_path: Path) -> None:
    recipe = RECIPES["ease-memory"].with_settings(["encoder=hashing", "encoder.dim=8"])
    fit_or_reuse(Recommender(recipe), earlier(tiny_world()), tmp_path / "before")
    found = refit(tmp_path / "before", tiny_world(), tmp_path / "now")
    assert (found.churn.changed_ids, found.churn.new_items) == (0, 2)
    new = Recommender.from_pretrained(tmp_path / "now")
    joined, _ = known_first(tiny_world(), Recommender.from_pretrained(tmp_path / "before").catalogue_)
    again = Recommender(recipe).fit(joined)
    assert set(NEW) <= set(new.recommend(["i1", "i2"], k=len(joined.items), filter_history=False).items)
    assert new.recommend(["i1", "i2"], k=10) == again.recommend(["i1", "i2"], k=10)
