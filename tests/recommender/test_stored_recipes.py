"""What earlier versions wrote can still be read: recipes of kept runs and of benchmark cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsid.base.config import flatten
from capsid.base.release_0_1 import RETIRED, recipe_today
from capsid.base.run_options import RunOptions
from capsid.errors import ConfigError
from capsid.recipe import Recipe
from capsid.recipes import get_recipe
from capsid.tokenize.capsules.settings import CapsuleSettings

RESULTS = Path(__file__).parents[2] / "results"
# How a phase's training was written when run options were still part of it.
OLD = {"steps": 7, "batch_size": 64, "checkpoint_seconds": 60.0, "begun": 0, "whole": 0}


def stored() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(RESULTS.glob("**/recipe.json")):
        yield str(file.relative_to(RESULTS)), json.loads(file.read_text())
    for file in sorted(RESULTS.glob("bench/*/cells.jsonl")):
        for line in file.read_text().splitlines():
            cell = json.loads(line)
            yield f"{cell['plan']}/{cell['label']}", cell["recipe"]


def test_kept_recipes_load() -> None:
    found = list(stored())
    assert len(found) > 10
    for name, data in found:
        recipe = Recipe.from_dict(data)
        same = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        assert same == recipe, name
        old, new = flatten(recipe_today(data)), flatten(recipe)
        gone = {p.rpartition(".")[2] for p in old if p not in new}
        # `crowd` is read as `max_sharing`, and `capsid.base.release_0_1` has the others.
        moved = {"memory", "memory_after", "neighbours", "second"}
        unused = {"score_length", "token_bias", "own_dropout"}
        # Stored capsules are of the closed form, which `routing` and `poses` name today; see `CapsuleSettings.dropped`.
        capsules = {"hard_weight", *CapsuleSettings.dropped}
        dropped = {"checkpoint_seconds", "begun", "whole", "crowd"}
        retired = {field for fields in RETIRED.values() for field in fields}
        assert gone <= {*dropped, *moved, *unused, *capsules, *retired}, f"{name} lost {gone}"
        assert all(new[p] == value for p, value in old.items() if p in new), name


def test_run_options_are_no_part_of_a_recipe() -> None:
    recipe = get_recipe("tiger")
    data = recipe.to_dict()
    data["schedule"][0]["training"].update(OLD)
    assert Recipe.from_dict(data) == recipe.with_settings(["schedule.0.training.steps=7"])
    assert not {p for p in flatten(recipe) if "checkpoint" in p or "begun" in p}
    with pytest.raises(ConfigError, match="Training has no field 'checkpoint_seconds'") as caught:
        recipe.with_settings(["schedule.0.training.checkpoint_seconds=0"])
    assert "--checkpoint-every" in (caught.value.hint or "")


def test_a_retired_setting_has_one_value() -> None:
    recipe = get_recipe("rq-kmeans")
    data = recipe.to_dict()
    data["tokenizer"]["iterations"] = 25
    assert Recipe.from_dict(data) == recipe
    data["tokenizer"]["iterations"] = 26
    with pytest.raises(ConfigError, match=r"ResidualKMeans.iterations must be 25, got 26"):
        Recipe.from_dict(data)
    with pytest.raises(ConfigError, match="ResidualKMeans has no field 'iterations'") as caught:
        recipe.with_settings(["tokenizer.iterations=26"])
    assert "it is always 25" in (caught.value.hint or "")


def test_run_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="checkpoint_every must be at least 0, got -1"):
        RunOptions(checkpoint_every=-1)
    assert RunOptions().checkpoint(Path("a")).beside("b").path == Path("a.b")
