from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from data_files import write
from typer.testing import CliRunner

from capsid.cli.data import app
from capsid.data.sources import load_dataset
from capsid.errors import DataError

runner = CliRunner()


def test_list() -> None:
    result = runner.invoke(app, ["list"])
    assert result.exit_code == 0
    assert "movies" in result.stdout
    names = [row["name"] for row in json.loads(runner.invoke(app, ["list", "--json"]).stdout)]
    assert "amazon-sports" in names


def test_describe(shop: Path) -> None:
    facts = json.loads(runner.invoke(app, ["describe", str(shop), "--json"]).stdout)
    assert (facts["users"], facts["items"], facts["interactions"]) == (3, 4, 9)
    assert facts["text_fields"] == ["title", "brand", "categories"]
    assert "interactions           9" in runner.invoke(app, ["describe", str(shop)]).stdout


def test_check_exit_codes(shop: Path) -> None:
    assert runner.invoke(app, ["check", str(shop)]).exit_code == 0
    write(shop / "sequences.txt.gz", [f"u{i} a b nope" for i in range(9)])
    result = runner.invoke(app, ["check", str(shop)])
    assert result.exit_code == 1
    assert "error: sequences.txt.gz:1: item 'nope' is not in the items file [unknown-id]" in result.stdout
    assert "... 9 of this kind in total [unknown-id]" in result.stdout
    result = runner.invoke(app, ["check", str(shop), "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["totals"]["unknown-id"] == 9


def test_import_any_source(tmp_path: Path) -> None:
    write(
        tmp_path / "t" / "interactions.csv",
        ["user,item,time,rating", "u,a,1,5", "u,b,2,5", "v,a,1,5", "v,b,2,4", "w,c,1,5", "w,a,2,1"],
    )
    out = tmp_path / "out"
    result = runner.invoke(
        app, ["import", str(tmp_path / "t"), "--out", str(out), "--k-core", "2", "--min-rating", "4"]
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    data = load_dataset(out)
    assert (list(data.users), list(data.items)) == (["u", "v"], ["a", "b"])
    assert data.times is not None
    assert data.provenance["k_core"] == "2"


def test_errors_are_raised_for_the_main_entry_and_old_output_stays(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert runner.invoke(app, ["import", str(shop), "--out", str(out)]).exit_code == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    write(shop / "items.jsonl.gz", ["{"])
    result = runner.invoke(app, ["import", str(shop), "--out", str(out), "--force"])
    assert isinstance(result.exception, DataError)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.parametrize("command", ["list", "describe", "check", "import"])
def test_help_has_examples(command: str) -> None:
    assert f"capsid data {command}" in runner.invoke(app, [command, "--help"]).stdout


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, capsid.cli.data; print([m for m in ('polars', 'numpy', 'torch', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
