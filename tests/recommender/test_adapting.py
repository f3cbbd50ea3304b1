"""Both stages through `Recommender`: the routing adapts with the generator, and ids change within bounds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from small_recipes import small, world
from test_retokenise import same, whole_and_resumed
from worlds import Watcher

from capsid.data.item_table import ItemTable
from capsid.data.split import leave_one_out
from capsid.errors import ConfigError
from capsid.ids.layout import END
from capsid.ids.reading import ItemByItem
from capsid.recipe import Recipe
from capsid.recommender import Recommender
from capsid.tokenize.item_tokenizer import ItemTokenizer

CHURN = 0.2


def recipe(*more: str) -> Recipe:
    adapting = ["schedule.0.adapt=routing-adapters", f"schedule.0.adapt.churn={CHURN}", "schedule.0.adapt.refreshes=2"]
    # A large step, so that ten steps are enough to move some item over a border.
    return small("capsid-bpe", steps=18).with_settings(
        [*adapting, "schedule.0.training.learning_rate=0.3", "schedule.0.training.ema=0.0", *more]
    )


def changed(lines: list[str]) -> list[int]:
    return [int(m[1]) for line in lines if (m := re.match(r"new codes for (\d+) of", line))]


def test_ids_change_within_bounds_and_then_stay(tmp_path: Path) -> None:
    watcher = Watcher()
    fitted = Recommender(recipe()).fit(world(), work=tmp_path, progress=watcher).fitted
    churn = changed(watcher.lines)
    assert len(churn) == 2
    assert 0 < max(churn) <= CHURN * 72
    assert [(entry["phase"], entry["parts"]) for entry in fitted.log] == [
        ("generator with routing-adapters", 2),
        ("generator", 1),
    ]
    assert fitted.log[0]["new_codes"] == churn
    assert sum(entry["steps"] for entry in fitted.log) == 18
    first = ItemTokenizer.load(next(tmp_path.glob("*/tokenizer")))
    assert first.ids.codes != fitted.tokenizer.ids.codes
    assert first.ids.layout.sizes == fitted.tokenizer.ids.layout.sizes
    table = ItemTable.from_training(world(), leave_one_out(world()).train)
    table = table.with_block("item", np.array(fitted.tokenizer.vectors_))
    assert fitted.tokenizer.tokenizer_.encode(table) == fitted.tokenizer.ids.codes, "ids are what routing gives"


def test_a_run_killed_anywhere_ends_the_same(tmp_path: Path) -> None:
    moments = ("generator with routing-adapters: step 3", "new codes for", "generator: step 12")
    whole, resumed = whole_and_resumed(recipe(), tmp_path, moments)
    assert resumed.tokenizer.merges_.learnt_bias_ == whole.tokenizer.merges_.learnt_bias_


def test_what_was_adapted_is_saved(tmp_path: Path) -> None:
    run = Recommender(recipe()).fit(world())
    run.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert same(loaded.fitted, run.fitted)
    history = list(world().items)[:4]
    assert loaded.recommend(history, 5) == run.recommend(history, 5)


def test_settings() -> None:
    assert recipe("schedule.0.adapt.gate_bias=false").schedule[0].adapt.gate_bias is False  # type: ignore[union-attr]
    assert recipe("schedule.0.adapt=null").schedule[0].adapt is None
    with pytest.raises(ConfigError, match="no routing to adapt"):
        Recommender(small("rq-kmeans", steps=4).with_settings(["schedule.0.adapt=routing-adapters"])).fit(world())


def test_new_codes_keep_how_histories_are_read() -> None:
    """A reading of its own belongs to the ids, whichever codes they have."""

    class Own(ItemByItem):
        pass

    tokenizer = Recommender(recipe()).fit(world()).fitted.tokenizer
    tokenizer.ids_ = dataclasses.replace(tokenizer.ids, reading=Own())
    table = ItemTable.from_training(world(), leave_one_out(world()).train)
    tokenizer.tokenizer_.begin_adapting(2)
    assert isinstance(tokenizer.adapt(table, most=1.0, gate_bias=0.0).ids.reading, Own)


def paper(*more: str) -> Recipe:
    """The paper's system with small parts and a large step."""
    quick = ["tokenizer.dim=8", "tokenizer.training.unit=steps", "schedule.0.training.unit=steps", "merges.min_count=2"]
    steps = ["schedule.0.training.steps=12", "schedule.0.training.validate_every=4", "merges.theta=0.5,-1.0"]
    return small("capsid-paper", steps=12).with_settings(
        [*quick, *steps, "schedule.0.training.learning_rate=0.1", "schedule.0.adapt.churn=1.0", *more]
    )


def test_the_papers_system_trains_both_stages_and_says_what_changed(tmp_path: Path) -> None:
    watcher = Watcher()
    recommender = Recommender(paper()).fit(world(), work=tmp_path, progress=watcher)
    fitted = recommender.fitted
    assert [entry["phase"] for entry in fitted.log] == ["generator with routing-adapters"]
    first = ItemTokenizer.load(next(tmp_path.glob("*/tokenizer")))
    assert first.ids.codes != fitted.tokenizer.ids.codes, "the adapters changed some ids"
    assert all((row[-1] == END) for row in fitted.tokenizer.ids.prefix_free), "every id ends with the end token"
    text = "\n".join(watcher.lines)
    assert re.search(r"new codes for [1-9]\d* of", text)
    assert re.search(r"routing adapters: norm of A B by depth \d+\.\d+ \d+\.\d+ \d+\.\d+", text)
    assert re.search(r"merge gate: bias [+-]\d", text)
    items = list(world().items)[:4]
    assert len(recommender.recommend(items, 5).items) == 5


@pytest.mark.parametrize("more", [(), ("merges=null",), ("schedule.0.adapt.rank=0",)])
def test_the_papers_system_killed_in_any_stage_ends_the_same(more: tuple[str, ...], tmp_path: Path) -> None:
    moments = ("capsules: step 5", "generator with routing-adapters: step 5", "new codes for")
    whole_and_resumed(paper(*more), tmp_path, moments)
