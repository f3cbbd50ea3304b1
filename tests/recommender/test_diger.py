"""Codebooks that learn with the generator, through the front door: new ids now and then, kills, files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from small_recipes import small, world
from test_retokenise import same, whole_and_resumed
from worlds import Watcher

from capsid.ids.trie import Trie
from capsid.recipe import Recipe
from capsid.recommender import Recommender


def recipe(*more: str) -> Recipe:
    """Few refreshes, and a rate at which a few steps move an item over a border."""
    few = ["schedule.0.adapt.refreshes=2", "schedule.0.adapt.rate=1.0", "collisions.capacity=32"]
    return small("diger", steps=18).with_settings([*few, "schedule.0.training.learning_rate=0.1", *more])


def test_ids_are_refreshed_and_then_stay() -> None:
    watcher = Watcher()
    fitted = Recommender(recipe()).fit(world(), progress=watcher).fitted
    changed = [int(m[1]) for line in watcher.lines if (m := re.match(r"new codes for (\d+) of", line))]
    assert len(changed) == 2
    assert max(changed) > 0
    assert [(entry["phase"], entry["parts"]) for entry in fitted.log] == [
        ("generator with gumbel-codes", 2),
        ("generator", 1),
    ]
    assert fitted.log[0]["new_codes"] == changed
    ids = fitted.tokenizer.ids
    assert Trie.build(ids.prefix_free).rows() == fitted.model.trie.rows() == ids.prefix_free
    assert ids.statistics().items_sharing_an_id == 0


def test_codebooks_that_do_not_move_leave_ids_and_generator_alone() -> None:
    """Noise and soft codes are nothing to the generator while its ids stay."""
    still = [
        Recommender(recipe("schedule.0.adapt.rate=0.0", f"schedule.0.adapt.noise={n}")).fit(world()) for n in (0, 5)
    ]
    assert same(still[0].fitted, still[1].fitted)
    first = small("diger", steps=18).with_settings(["collisions.capacity=32"])
    plain = Recommender(first.with_settings(["schedule.0.adapt=none"])).fit(world()).fitted
    assert plain.tokenizer.ids == still[0].fitted.tokenizer.ids


def test_a_run_killed_anywhere_ends_the_same(tmp_path: Path) -> None:
    moments = ("generator with gumbel-codes: step 3", "new codes for", "generator: step 14")
    whole, resumed = whole_and_resumed(recipe(), tmp_path, moments)
    for name, array in whole.tokenizer.tokenizer_.state().items():
        np.testing.assert_array_equal(resumed.tokenizer.tokenizer_.state()[name], array)


def test_what_was_learnt_is_saved(tmp_path: Path) -> None:
    run = Recommender(recipe()).fit(world())
    run.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert same(loaded.fitted, run.fitted)
    history = list(world().items)[:4]
    assert loaded.recommend(history, 5) == run.recommend(history, 5)
    old = run.fitted.tokenizer.ids
    row = world().attributes.row(5, named=True)
    loaded.add_items({"item_id": ["twin"], **{name: [value] for name, value in row.items()}})
    assert loaded.fitted.tokenizer.ids.tokens.take(np.arange(len(old))) == old.tokens, "known items keep their ids"
