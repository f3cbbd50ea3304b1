"""Lines that were cut off, broken files, and the questions that tables will ask."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from bench_world import fakes, run, stored
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.storage.artifacts import read_json
from capsid.bench.cells import recipe_key, stored_recipe_key
from capsid.bench.results import Result, load, plans_in, read_lines
from capsid.bench.store import Finished, Place, append, repair
from capsid.errors import ArtifactError, ConfigError
from capsid.recipes import get_recipe


@pytest.fixture
def three(place: Place, shop: Path, fake: Path) -> Place:
    template = Result.from_dict(read_json(fake.with_name("result.json")))
    values = place.folder / "values"
    values.mkdir(parents=True)
    for label, dataset, seed in (("a", "x", 0), ("b", "x", 0), ("b", "y", 1)):
        key = f"{label}-{dataset}-{seed}"
        (values / f"{key}.npz").write_bytes(fake.with_name("values.npz").read_bytes())
        append(place, dataclasses.replace(template, plan="toy", label=label, dataset=dataset, seed=seed, key=key))
    return place


def test_selecting(three: Place) -> None:
    results = stored(three)
    assert [c.name for c in results] == ["a/x/0", "b/x/0", "b/y/1"]
    assert [c.name for c in results.select(label="b")] == ["b/x/0", "b/y/1"]
    assert [c.name for c in results.select(label="b", dataset="x")] == ["b/x/0"]
    assert len(results.select(dataset=("x", "y"), seed=0)) == 2
    assert len(results.select(method="tiger")) == 0
    with pytest.raises(ConfigError, match="did you mean 'dataset'"):
        results.select(datset="x")
    assert plans_in(three.store) == ["toy"]
    assert len(load(three.store, "never")) == 0


def test_the_latest_of_a_name_counts(three: Place) -> None:
    first = stored(three).cells[0]
    append(three, dataclasses.replace(first, code="newer"))
    assert [(c.name, c.code == "newer") for c in stored(three)] == [("b/x/0", False), ("b/y/1", False), ("a/x/0", True)]
    assert len(load(three.store, "toy", history=True)) == 4


@pytest.mark.parametrize("cut", [1, 40, -3])
def test_a_line_that_was_cut_off(cut: int, three: Place) -> None:
    whole = three.lines.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    broken = whole[: -len(last)] + (last[:cut] if cut > 0 else last[:-1])
    three.lines.write_bytes(broken)
    results = stored(three)
    assert [c.name for c in results] == ["a/x/0", "b/x/0"]
    assert "was cut off" in results.notes[0]
    told: list[str] = []
    repair(three.lines, told.append)
    assert len(told) == 1
    assert "repaired" in told[0]
    assert three.lines.read_bytes() == whole[: -len(last)]
    repair(three.lines, told.append)
    assert len(told) == 1, "what is whole is left alone"
    append(three, Result.from_dict(json.loads(last)))
    assert three.lines.read_bytes() == whole


@given(st.lists(st.text(max_size=5), max_size=4), st.integers(0, 200))
def test_any_cut_leaves_whole_lines(texts: list[str], cut: int) -> None:
    import tempfile

    rows = [{"text": t} for t in texts]
    data = b"".join(json.dumps(r).encode() + b"\n" for r in rows)[:cut]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.jsonl"
        path.write_bytes(data)
        lines, notes = read_lines(path)
        assert lines == rows[: data.count(b"\n")]
        assert bool(notes) == (len(data) > 0 and not data.endswith(b"\n"))


def test_the_runner_mends_it(place: Place, shop: Path, fake: Path) -> None:
    plan = fakes("ok-1", "ok-2")
    run(plan, place, shop, fake)
    whole = place.lines.read_bytes()
    place.lines.write_bytes(whole[:-30])
    (place.folder / "values" / ".left.npz.1234").write_bytes(b"half")
    summary, watch = run(plan, place, shop, fake)
    assert [o.state for o in summary.outcomes] == ["finished", "done"]
    assert "repaired" in watch.lines[0]
    assert place.lines.read_bytes() == whole
    assert not list((place.folder / "values").glob(".*"))


def test_damage_is_told(three: Place) -> None:
    lines = three.lines.read_bytes().splitlines(keepends=True)
    three.lines.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(ArtifactError, match=r"line 2 of .* is broken"):
        stored(three)
    three.lines.write_bytes(b'{"plan": "toy"}\n')
    with pytest.raises(ArtifactError, match="not a finished cell"):
        stored(three)
    three.lines.write_bytes(b"".join(lines))
    results = stored(three)
    (three.folder / "values" / "a-x-0.npz").write_bytes(b"no zip")
    with pytest.raises(ArtifactError, match="could not be read"):
        results.values(results.cells[0], "test", "recall@10")


def test_values_of_another_run_are_refused(three: Place) -> None:
    results = stored(three)
    other = dataclasses.replace(results.cells[0], values_hash="0")
    with pytest.raises(ArtifactError, match="were changed after they were stored"):
        results.values(other, "test", "recall@10")


def test_no_line_without_values(three: Place) -> None:
    with pytest.raises(ArtifactError, match="values of a/x/0 are missing"):
        append(three, dataclasses.replace(stored(three).cells[0], key="nowhere"))


def test_a_field_that_was_added_since_changes_nothing(place: Place, shop: Path, fake: Path) -> None:
    """A stored recipe that lacks a field which has its default today is still the same work."""
    plan = fakes("ok-1")
    run(plan, place, shop, fake)
    (line,) = [json.loads(text) for text in place.lines.read_text().splitlines()]
    old = {**line, "recipe": {**line["recipe"], "decoder": {"kind": "beam", "width": 5}}, "fingerprint": "of old"}
    assert stored_recipe_key(old["recipe"]) == stored_recipe_key(line["recipe"])
    place.lines.write_text(json.dumps(old) + "\n")
    assert [o.state for o in run(plan, place, shop, fake)[0].outcomes] == ["finished"]
    old["recipe"]["decoder"]["width"] = 50
    place.lines.write_text(json.dumps(old) + "\n")
    assert Finished.read(place).cells[0].label == "ok-1"
    assert [o.state for o in run(plan, place, shop, fake)[0].outcomes] == ["done"]
    old["recipe"]["tokenizer"] = {"kind": "forgotten"}
    assert stored_recipe_key(old["recipe"]) == stored_recipe_key({**old["recipe"], "about": "told otherwise"})
    assert stored_recipe_key(old["recipe"]) != stored_recipe_key(line["recipe"]), "a part that is gone is another part"


def test_run_options_that_were_once_in_a_recipe_change_nothing() -> None:
    recipe = get_recipe("tiger")
    old = recipe.to_dict()
    old["schedule"][0]["training"] |= {"checkpoint_seconds": 60.0, "begun": 0, "whole": 0}
    assert stored_recipe_key(old) == recipe_key(recipe)
