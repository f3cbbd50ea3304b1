"""The verbs that read the store: tables in three forms, figures as files, a folder with everything, checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_check import store, with_metrics
from test_tables import cell
from typer.testing import CliRunner, Result

from capsid.base.storage.arrays import save_arrays
from capsid.bench.figures import FIGURES
from capsid.bench.paper_tables import TABLES
from capsid.bench.results import VALUES
from capsid.cli.bench import app
from capsid.errors import ConfigError


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    line, values = cell("tiger", 0, 0.2)
    store(tmp_path, with_metrics(line, 0.05, 0.08, 0.03, 0.0395))
    (tmp_path / "main" / VALUES).mkdir()
    save_arrays(tmp_path / "main" / VALUES / f"{line.key}.npz", values)
    return tmp_path


@pytest.mark.parametrize("name", TABLES)
def test_every_table_in_every_form(tmp_path: Path, name: str) -> None:
    texts = [
        call("table", name, "--store", tmp_path, "--format", form).stdout for form in ("markdown", "latex", "json")
    ]
    assert texts[0].startswith("### ")
    assert r"\begin{tabular}" in texts[1]
    assert json.loads(texts[2])["table"] == name


def test_a_table_shows_what_was_run_and_can_be_kept(results: Path, tmp_path: Path) -> None:
    shown = call("table", "main", "--store", results)
    assert "| tiger | 0.0500 [0.0454] | 0.0800 [0.0648] |" in shown.stdout
    out = tmp_path / "main.md"
    call("table", "main", "--store", results, "--out", out)
    assert out.read_text() == shown.stdout


def test_wrong_names_have_hints(tmp_path: Path) -> None:
    for words, hint in (
        (("table", "mian"), "main"),
        (("table", "main", "--format", "html"), "latex"),
        (("figure", "length", "--out", "x.svg"), "lengths"),
        (("figure", "lengths", "--out", "x.gif"), "tiers.svg"),
        (("figure", "lengths", "--out", tmp_path / "x.svg"), "bench run main"),
    ):
        error = call(*words, "--store", tmp_path).exception
        assert isinstance(error, ConfigError)
        assert hint in (error.hint or "")


def test_the_report_has_all_that_can_be_had(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "report"
    shown = call("report", "--store", results, "--out", out).stdout
    assert {p.stem for p in out.glob("*.tex")} == set(TABLES)
    drawn = {p.stem for p in out.glob("*.svg")}
    assert drawn == {p.stem for p in out.glob("*.png")}
    assert "tiers" in drawn
    missing = set(FIGURES) - drawn
    assert shown.count("not drawn") == len(missing)
    page = (out / "report.md").read_text()
    assert page.count("### ") == len(TABLES)
    assert page.count("![") == len(drawn)


def test_an_impossible_cell_fails_the_check(results: Path) -> None:
    fine = call("check", "--store", results, "--pages", results, "--json")
    assert fine.exit_code == 0, "that the paper's own table fails is a finding, not our failure"
    assert {c["passed"] for c in json.loads(fine.stdout)} == {True, False, None}
    store(results, with_metrics(cell("capsid", 0, 0.2)[0], 0.05, 0.08, 0.03, 0.05))
    broken = call("check", "--store", results, "--pages", results)
    assert broken.exit_code == 1
    assert "does not hold" in broken.stdout
