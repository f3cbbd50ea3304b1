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


def test_the_first_run_over_the_vocabulary_is_the_measure(load) -> None:  # type: ignore[no-untyped-def]
    cost = load("decode_cost")
    from capsid.data.planted import planted_dataset
    from capsid.recommender import Recommender

    settings = [*cost.TINY, "over=children"]
    run = Recommender.from_recipe("capsid", settings=settings).fit(
        planted_dataset(branching=(3, 2), users=10, length=5)
    )
    rows = cost.searched({"capsid": run}, vocabulary=True)
    assert {name: row.retriever.model.over for name, row in rows.items()} == {
        "capsid, over the vocabulary": "vocabulary",
        "capsid": "children",
    }
    first, second = cost.measure(rows, 4, 1)
    assert (first["run"], first["cost"]) == ("capsid, over the vocabulary", 1.0)
    assert second["tokens_an_item"] == first["tokens_an_item"]


def test_runs_of_other_data_are_refused(load) -> None:  # type: ignore[no-untyped-def]
    cost = load("decode_cost")
    from capsid.data.planted import planted_dataset
    from capsid.recommender import Recommender

    runs = {
        str(users): Recommender.from_recipe("popularity").fit(planted_dataset(branching=(3, 2), users=users, length=5))
        for users in (10, 12)
    }
    with pytest.raises(SystemExit, match="different data"):
        cost.measure(cost.searched(runs), 4, 1)


PLAN = """
datasets = ["shop", "other"]

[[cells]]
method = "popularity"

[[cells]]
method = "popularity"
label = "wide"
settings = ["decoder.width=9"]

[[cells]]
method = "rq-kmeans"
label = "tiger"
settings = [SETTINGS]
seeds = [0, 1]

[[cells]]
method = "rq-kmeans"
label = "longer"
settings = [SETTINGS, "schedule.0.training.steps=9"]

[[cells]]
method = "frequency"
"""


def test_rows_of_a_plan_are_kept_runs_or_fitted_in_a_few_steps(  # type: ignore[no-untyped-def]
    load, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = load("decode_cost")
    from capsid.data.planted import planted_dataset
    from capsid.recommender import Recommender

    monkeypatch.setattr(cost, "FEW", 2)
    plan = tmp_path / "mine.toml"
    tiny = [setting for setting in cost.TINY if "training" not in setting]
    plan.write_text(PLAN.replace("SETTINGS", ", ".join(map(json.dumps, tiny))))
    rows = cost.rows_of(str(plan), "shop")
    assert [[cell.label for cell in group] for group in rows] == [["tiger"], ["popularity", "wide"], ["frequency"]]

    data = planted_dataset(branching=(3, 2), items_per_leaf=2, users=20, length=5)
    Recommender.from_recipe("popularity").fit(data).save_pretrained(tmp_path / "kept" / "popularity")
    found = cost.searched_rows(rows[1:2] + rows[:1], data, tmp_path / "kept", tmp_path / "short")
    assert list(found) == ["popularity", "wide", "tiger"]
    assert found["popularity"].run is found["wide"].run
    assert found["wide"].retriever.ranker.width == 9
    assert [p.name for p in (tmp_path / "short").iterdir()] == ["tiger"]
    lines = {line["run"]: line for line in cost.measure(found, 4, 1)}
    assert (lines["popularity"]["trained_steps"], lines["tiger"]["trained_steps"]) == (0, 2)

    again = cost.searched_rows(rows, data, tmp_path / "kept", None)
    assert list(again) == ["popularity", "wide"]
    assert "left out (--short fits them): tiger, frequency" in capsys.readouterr().err


def test_brief_training_reaches_every_part_but_learnt_lengths(load) -> None:  # type: ignore[no-untyped-def]
    cost = load("decode_cost")
    from capsid.recipes import get_recipe

    letter = cost.briefly(get_recipe("letter"))
    assert letter.schedule[0].training.steps == cost.FEW
    assert letter.tokenizer.training.steps == cost.FEW_OF_IDS
    assert dict(letter.encoder.others)["behaviour"].training.steps == cost.FEW_OF_IDS
    assert cost.briefly(get_recipe("capsid")).tokenizer == get_recipe("capsid").tokenizer
    adaptive = cost.briefly(get_recipe("sa2crq"))
    assert adaptive.tokenizer == get_recipe("sa2crq").tokenizer
    assert adaptive.schedule[0].training.steps == cost.FEW
