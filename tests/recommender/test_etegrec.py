"""Tokenizer and generator in turns, through the front door: frozen sides, new ids, kills, files; and back to tiger."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_recipes import small, world
from test_retokenise import same, untimed, whole_and_resumed
from worlds import EVERY_STEP, Killed, Killer, Watcher

from capsid.errors import ConfigError, DataError
from capsid.fit.folder import steps_until_best
from capsid.ids.trie import Trie
from capsid.recipe import Recipe
from capsid.recommender import Recommender
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer

STEPS = 20
# Two turns of the tokenizer: stages 0, 1, 3 and 5 train the generator, 2 and 4 the tokenizer.
GENERATOR, TOKENIZER = (0, 1, 3, 5), (2, 4)


def recipe(*more: str) -> Recipe:
    """Two turns, at a rate at which a few steps move an item over a border."""
    turns = ["cycles=2", "training.steps=6", "training.learning_rate=0.02"]
    settings = [*(f"schedule.0.adapt.{text}" for text in turns), "collisions.capacity=72", "generator.dropout=0.1"]
    return small("etegrec", STEPS).with_settings([*settings, *more])


@cache
def fitted() -> tuple[Fitted, tuple[str, ...]]:
    watcher = Watcher()
    found = Recommender(recipe()).fit(world(), progress=watcher).fitted
    return found, tuple(watcher.lines)


def test_ids_change_in_every_turn_and_all_follow() -> None:
    found, lines = fitted()
    changed = [int(m[1]) for line in lines if (m := re.match(r"new codes for (\d+) of 72 items, use of", line))]
    assert len(changed) == 2
    assert min(changed) > 0
    ids = found.tokenizer.ids
    assert Trie.build(ids.prefix_free).rows() == found.trie.rows() == ids.prefix_free
    assert ids.statistics().items_sharing_an_id == 0
    assert ids.layout.suffix == 72


def test_the_log_has_one_entry_for_each_side_and_one_for_the_rest() -> None:
    log = fitted()[0].log
    assert [(e["phase"], e["trains"], e["parts"], e["from_step"], e["steps"]) for e in log] == [
        ("generator with alternating", "generator", 3, 0, 14),
        ("tokenizer with alternating", "tokenizer", 2, 0, 6),
        ("generator", "generator", 1, 14, 6),
    ]
    assert len(log[0]["new_codes"]) == 2
    assert log[1]["curve"] == [], "validation has no place in a turn whose ids are about to change"
    steps = [point["step"] for entry in log for point in entry["curve"]]
    assert steps == [4, 9, 10, 14, 20], "every part ends with a validation; others come when they are due in the phase"
    assert log[2]["best_step"] == 20


def test_validation_is_of_the_new_ids() -> None:
    found = Recommender(recipe()).fit(world())
    best = found.fitted.log[-1]["best_metric"]
    assert found.evaluate("valid", ks=(10,), filter_history=False).metrics["recall@10"] == pytest.approx(best)


def test_the_frozen_side_keeps_its_bits_in_every_part(tmp_path: Path) -> None:
    Recommender(recipe()).fit(world(), work=tmp_path)
    (run,) = tmp_path.iterdir()
    generators = [load_file(run / f"phase-{n}" / "generator.safetensors") for n in range(6)]
    sides = [load_file(run / f"phase-{n}" / "objective.safetensors") for n in range(5)]

    def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], part: str = "") -> bool:
        names = [name for name in before if part in name]
        assert names
        return any(not torch.equal(before[name], after[name]) for name in names)

    for n in range(1, 6):
        assert changed(generators[n - 1], generators[n]) == (n in GENERATOR)
    for n in range(1, 5):
        assert changed(sides[n - 1], sides[n], ".tokenizer.") == (n in TOKENIZER)
        assert changed(sides[n - 1], sides[n], ".heads.") == (n in GENERATOR)
    for n in TOKENIZER:
        settled = ItemTokenizer.load(run / f"tokenizer-{n}-adapted").tokenizer_.state()
        for name, array in settled.items():
            np.testing.assert_array_equal(sides[n][f"terms.alternating.tokenizer.{name}"].numpy(), array)


NO_ALIGNMENT = ("schedule.0.adapt.sequence_weight=0", "schedule.0.adapt.preference_weight=0")


@pytest.mark.parametrize(
    "turns",
    [
        ("schedule.0.adapt.cycles=0",),
        # Turns in which no weight moves: seams between parts leave no trace.
        ("schedule.0.adapt.training.learning_rate=1e-30", "schedule.0.adapt.training.weight_decay=0"),
    ],
)
def test_without_alignment_and_turns_it_is_tiger_on_these_vectors(turns: tuple[str, ...]) -> None:
    # One validation, at the end: in tiger it may choose among the weights of the whole phase.
    settings = (f"schedule.0.training.validate_every={STEPS}",)
    ours = Recommender(recipe(*NO_ALIGNMENT, *turns, *settings)).fit(world()).fitted
    like = recipe(*settings)
    tiger = dataclasses.replace(
        small("tiger", STEPS), encoder=like.encoder, tokenizer=like.tokenizer, collisions=like.collisions
    )
    tiger = tiger.with_settings(["generator.dropout=0.1", *settings])
    plain = Recommender(tiger).fit(world()).fitted
    assert ours.tokenizer.ids == plain.tokenizer.ids
    left, right = ours.generator.state(), plain.generator.state()
    assert all(torch.equal(left[name], right[name]) for name in right)
    last = [untimed(found.log)[-1]["curve"][-1] for found in (ours, plain)]
    assert last[0] == last[1]


def test_alignment_reaches_the_generator_and_turns_the_ids() -> None:
    aligned, plain = (
        Recommender(recipe("schedule.0.adapt.cycles=0", *more)).fit(world()).fitted for more in ((), NO_ALIGNMENT)
    )
    assert aligned.tokenizer.ids == plain.tokenizer.ids
    assert not same(aligned, plain)


def test_a_run_killed_in_any_part_or_between_two_ends_the_same(tmp_path: Path) -> None:
    moments = (
        "generator with alternating: step 3",
        "generator with alternating: step 7",
        "tokenizer with alternating: step 2",
        "new codes for",
        "generator with alternating: step 12",
        "tokenizer with alternating: step 5",
        "generator: step 17",
    )
    whole, resumed = whole_and_resumed(recipe(), tmp_path, moments)
    for name, array in whole.tokenizer.tokenizer_.state().items():
        np.testing.assert_array_equal(resumed.tokenizer.tokenizer_.state()[name], array)
    assert resumed.trie.rows() == resumed.tokenizer.ids.prefix_free


def test_ids_that_were_settled_before_a_kill_are_read_and_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        Recommender(recipe()).fit(world(), work=tmp_path, run=EVERY_STEP, progress=Killer("alternating: step 11"))
    (run,) = tmp_path.iterdir()
    settled = ItemTokenizer.load(run / "tokenizer-2-adapted").ids
    with pytest.raises(Killed):
        Recommender(recipe()).fit(world(), work=tmp_path, run=EVERY_STEP, progress=Killer("tokenizer with alternating"))
    assert ItemTokenizer.load(run / "tokenizer-2-adapted").ids == settled


def test_more_collisions_than_room_is_said() -> None:
    with pytest.raises(DataError, match=r"items share one code.*capacity"):
        Recommender(recipe("collisions.capacity=2")).fit(world())


def test_what_was_learnt_is_saved(tmp_path: Path) -> None:
    run = Recommender(recipe()).fit(world())
    run.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert same(loaded.fitted, run.fitted)
    history = list(world().items)[:4]
    assert loaded.recommend(history, 5) == run.recommend(history, 5)
    assert steps_until_best(tmp_path / "run")[1] == "schedule.0.training.steps=20"


@pytest.mark.parametrize("generator", ["encoder-decoder", "masked"])
def test_a_generator_without_rows_of_histories_is_refused_before_the_warm_up(generator: str) -> None:
    with pytest.raises(ConfigError, match=f"alternating does not work with generator={generator}"):
        recipe(f"generator={generator}")
    apart = [f"schedule.0.adapt.{name}_weight=0" for name in ("sequence", "preference")]
    recipe("generator=encoder-decoder", *apart)
