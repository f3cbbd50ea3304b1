"""`capsid bench`: what a user sees. The runner itself is tested in tests/bench."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from cli_world import capsid, lines

from capsid.bench.plans import plan_names
from capsid.cli.bench import BenchConsole

PLAN = """
datasets = ["shop"]
evaluations = ["test"]

[[cells]]
method = "popularity"

[[cells]]
method = "popularity"
label = "wrong"
settings = ["decoder.wdth=3"]

[[cells]]
method = "no-such-method"
priority = 2
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(PLAN)
    return path


def test_run_then_status(plan: Path, shop: Path, tmp_path: Path) -> None:
    common = ("--store", tmp_path / "store", "--data", f"shop={shop}")
    before = capsid("bench", "run", plan, *common, "--dry-run", "--json").json
    assert [(r["cell"], r["state"]) for r in before] == [
        ("popularity/shop/0", "to run"),
        ("wrong/shop/0", "not available"),
        ("no-such-method/shop/0", "not available"),
    ]
    assert before[0]["note"] == "table of rough speeds"
    assert "allowed: " in before[2]["hint"]
    assert not (tmp_path / "store").exists(), "a dry run writes nothing"

    answer = capsid("bench", "run", plan, *common, "--resume")
    assert answer.code == 1
    assert "mine: 1 done, 2 not available" in answer.out
    assert "wrong/shop/0: not available: BeamSearch has no field 'wdth'" in answer.out
    assert "popularity/shop/0: about " in answer.err
    assert "1 of 3 cells to run" in answer.err
    assert "did you mean 'width'" in answer.err
    (line,) = lines(tmp_path / "store" / "mine" / "cells.jsonl")
    assert (line["label"], line["dataset"]) == ("popularity", "shop")

    only = ("--only", "popularity")
    again = capsid("bench", "run", plan, *common, *only, "--json").json
    assert [o["state"] for o in again["outcomes"]] == ["finished"]
    assert again["results"].endswith("cells.jsonl")

    status = capsid("bench", "status", plan, *common)
    assert status.code == 0
    assert f"{line['evaluations']['test']['metrics']['recall@10']:.4f}" in status.out
    rows = capsid("bench", "status", plan, *common, *only, "--json").json
    assert [(r["state"], r["note"]) for r in rows] == [("finished", None)]
    (tmp_path / "store" / "mine" / "cells.jsonl").write_text(json.dumps(line)[:-5])
    status = capsid("bench", "status", plan, *common, *only)
    assert "was cut off" in status.err
    assert "to run" in status.out


def test_a_budget_that_is_too_small(plan: Path, shop: Path, tmp_path: Path) -> None:
    common = ("--store", tmp_path / "store", "--data", f"shop={shop}", "--only", "popularity")
    answer = capsid("bench", "run", plan, *common, "--budget", "0.01")
    assert answer.code == 0
    assert "popularity/shop/0: not started: it would not fit into the budget" in answer.out
    assert "run the same command again to resume" in answer.out
    assert "would not fit into the budget" in answer.err
    dry = capsid("bench", "run", plan, *common, "--budget", "0.01", "--dry-run")
    assert "would not fit into the budget" in dry.out


def test_benchmarks_are_not_downloaded_by_a_look(tmp_path: Path) -> None:
    rows = capsid("bench", "run", "main", "--dry-run", "--json", "--only", "sasrec", "--store", tmp_path).json
    assert {r["state"] for r in rows} == {"not available"}
    assert "amazon-beauty is not in the cache" in rows[0]["note"]
    assert "--data amazon-beauty=PATH" in rows[0]["hint"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["mian"], "no plan and no file called 'mian'", "did you mean 'main'"),
        (["smoke", "--workers", "0"], "--workers must be at least 1, got 0", "cores"),
        (["smoke", "--budget", "-1"], "--budget must be above 0, got -1", "minutes"),
        (["smoke", "--only", "tiger"], "no cell of the plan 'smoke' matches", "labels:"),
        (["smoke", "--data", "plantd=x"], "has no dataset 'plantd'", "did you mean 'planted'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, hint: str) -> None:
    answer = capsid("bench", "run", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert hint in answer.err


def test_a_line_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    console = BenchConsole()
    console._told -= 100
    console.workers(["first", "second"])
    console.workers(["too soon"])
    console.line("stays")
    assert screen.getvalue() == "first\nsecond\n\x1b[2F\x1b[Jstays\n"


def test_help_names_every_plan() -> None:
    told = capsid("bench", "run", "--help").out
    named = {word.strip(",.") for word in told[told.index("Arguments:") :].split()}
    assert named >= set(plan_names())
