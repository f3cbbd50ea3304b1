"""The decode-cost benchmark on tiny runs: the first is the measure, and steps are those of the search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_costs_are_relative_to_the_first_run(load, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    cost = load("decode_cost")
    out = tmp_path / "cost.json"
    result = cost.main(["--quick", "--users", "20", "--repeat", "1", "--out", str(out)])
    first, second, two, alone = result["runs"]
    assert first["cost"] == 1.0
    assert second["cost"] == pytest.approx(second["cpu_seconds"] / first["cpu_seconds"], rel=0.02)
    assert second["tokens_an_item"] < first["tokens_an_item"], "merged ids are shorter"
    assert second["vocabulary"] > first["vocabulary"]
    assert 1 <= second["steps_a_user"] <= first["steps_a_user"] <= 4
    assert json.loads(out.read_text())["runs"] == result["runs"]
    assert capsys.readouterr().out.count("users/s") == 4
    assert (two["run"], alone["run"]) == ("capsid-two", "capsid-two, first id")
    assert two["steps_a_user"] is None
    assert two["vocabulary"] == alone["vocabulary"] > second["vocabulary"]


def test_runs_of_other_data_are_refused(load) -> None:  # type: ignore[no-untyped-def]
    cost = load("decode_cost")
    from capsid.data.planted import planted_dataset
    from capsid.recommender import Recommender

    runs = {
        str(users): Recommender.from_recipe("popularity").fit(planted_dataset(branching=(3, 2), users=users, length=5))
        for users in (10, 12)
    }
    with pytest.raises(SystemExit, match="different data"):
        cost.measure(runs, 4, 1)
