"""A benchmark of one's own: what a run prints works as it stands, and the store remembers plan and data."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from cli_world import Answer, capsid

PLAN = """
datasets = ["shop"]
seeds = [0, 1]

[[cells]]
method = "popularity"

[[cells]]
method = "popularity"
label = "short"
settings = ["decoder.width=1"]
"""


@pytest.fixture(scope="module")
def ran(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.toml").write_text(PLAN)
    store = folder / "store"
    answer = capsid("bench", "run", folder / "mine.toml", "--store", store, "--data", f"shop={shop}")
    assert answer.code == 0, answer.err
    (folder / "mine.toml").unlink()
    return store, answer


def test_the_commands_that_a_run_prints_work(ran: tuple[Path, Answer]) -> None:
    _, answer = ran
    commands = [line.strip() for line in answer.out.splitlines() if line.startswith("  capsid ")]
    assert [shlex.split(c)[2] for c in commands] == ["status", "table"]
    for command in commands:
        again = capsid(*shlex.split(command)[1:])
        assert again.code == 0, again.err
        assert "popularity" in again.out
        assert "not available" not in again.out


def test_the_store_remembers_where_the_data_was(ran: tuple[Path, Answer], shop: Path, tmp_path: Path) -> None:
    store, _ = ran
    rows = capsid("bench", "status", "mine", "--store", store, "--json").json
    assert {row["state"] for row in rows} == {"finished"}
    again = capsid("bench", "run", "mine", "--store", store, "--json").json
    assert {outcome["state"] for outcome in again["outcomes"]} == {"finished"}
    published = b"".join(p.read_bytes() for p in (store / "mine").iterdir() if p.is_file())
    assert str(shop).encode() not in published, "paths stay in the working folder"
    assert "no dataset" in capsid("bench", "status", "mine", "--store", store, "--data", f"other={shop}").err


def test_tables_of_any_plan_and_dataset(ran: tuple[Path, Answer]) -> None:
    store, _ = ran
    (line, *_) = [json.loads(text) for text in (store / "mine" / "cells.jsonl").read_text().splitlines()]
    table = capsid("bench", "table", "mine", "--store", store, "--format", "json").json
    rows = {row["row"]: row for row in table["rows"]}
    assert set(rows) == {"popularity", "short"}
    assert len(rows["popularity"]["R@10"]["values"]) == 2
    assert rows["popularity"]["R@10"]["values"][0] == line["evaluations"]["test"]["metrics"]["recall@10"]
    assert "paper" not in capsid("bench", "table", "mine", "--store", store).out
    for name in ("main", "significance", "tokenizer-quality", "tiers", "datasets"):
        answer = capsid("bench", "table", name, "--plan", "mine", "--dataset", "shop", "--store", store)
        assert answer.code == 0, answer.err
        assert "shop" in answer.out
    filtered = capsid("bench", "table", "mine", "--store", store, "--filter-history", "--format", "json").json
    assert filtered["rows"] != table["rows"]


def test_every_row_against_one(ran: tuple[Path, Answer]) -> None:
    store, _ = ran
    table = ("bench", "table", "significance", "--plan", "mine", "--store", store)
    for label, other in (("short", "popularity"), ("popularity", "short")):
        out = capsid(*table, "--against", label).out
        assert f"### Against {label}" in out
        assert f"shop: {other} minus {label}" in out


def test_cells_without_the_wanted_evaluation_are_left_out(ran: tuple[Path, Answer], tmp_path: Path) -> None:
    """A plan that got another evaluation later: its older cells have no such numbers, of the same row or another."""
    store, _ = ran
    shutil.copytree(store / "mine", tmp_path / "mine")
    first, *others = [json.loads(text) for text in (store / "mine" / "cells.jsonl").read_text().splitlines()]
    del first["evaluations"]["test-filtered"]
    (tmp_path / "mine" / "cells.jsonl").write_text("".join(f"{json.dumps(cell)}\n" for cell in (first, *others)))
    for name, column in (("main", "R@10"), ("tiers", "head"), ("significance", "R@10 difference")):
        table = ("bench", "table", name, "--plan", "mine", "--store", tmp_path, "--filter-history", "--format", "json")
        answer = capsid(*table)
        assert answer.code == 0, answer.err
        assert column in answer.json["rows"][0]


def test_a_report_of_ones_own(ran: tuple[Path, Answer], tmp_path: Path) -> None:
    store, _ = ran
    answer = capsid("bench", "report", "--plan", "mine", "--store", store, "--out", tmp_path / "report")
    assert answer.code == 0, answer.err
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Is the best row better?" in text
    assert (tmp_path / "report" / "main.tex").is_file()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["table", "mien"], "there is no table 'mien'", "did you mean 'mine'"),
        (["status", "mien"], "no plan and no file called 'mien'", "did you mean 'mine'"),
        (["table", "main", "--plan", "other"], "the plan 'other' has no results", "plans with results: mine"),
        (["table", "main", "--plan", "mine", "--dataset", "shp"], "no results on 'shp'", "shop"),
        (["table", "significance", "--plan", "mine", "--against", "shrt"], "no results of the row 'shrt'", "short"),
        (["table", "main", "--against", "short"], "--against needs the table significance, got 'main'", "leave"),
        (["table", "ablation", "--plan", "mine"], "no table 'ablation' for your own plans", "main"),
    ],
)
def test_mistakes(ran: tuple[Path, Answer], arguments: list[str], message: str, hint: str) -> None:
    answer = capsid("bench", *arguments, "--store", ran[0])
    assert answer.code == 2
    assert message in answer.err
    assert hint in answer.err
