"""The fuzz campaign in short: crafted folders are refused with a hint or answer, and bad ones would be counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_crafted_folders_are_refused_or_answer(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fuzz = load("fuzz_artifacts")
    result = fuzz.main(["--quick", "--out", str(tmp_path / "fuzz.json")])
    assert result["cases"] == 140
    assert result["bad_cases"] == []
    verdicts = {v for group in result["groups"].values() for v in group}
    assert verdicts == {"refused", "accepted"}
    assert json.loads((tmp_path / "fuzz.json").read_text())["bad"] == 0


def test_every_damage_can_be_made_again(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fuzz, crafted = load("fuzz_artifacts"), load("_crafted")
    (run,) = fuzz.make_runs(tmp_path, ["popularity"])
    assert fuzz.ask(run) == ""
    fuzz.signal.signal(fuzz.signal.SIGALRM, fuzz._too_long)
    found = [fuzz.one(number, [run], tmp_path / "copy") for number in (3, 3)]
    assert found[0]["about"] == found[1]["about"]
    assert set(crafted.DAMAGES) >= set(crafted.SHARES)


def test_a_traceback_is_noticed(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    fuzz = load("fuzz_artifacts")
    (run,) = fuzz.make_runs(tmp_path, ["popularity"])
    monkeypatch.setattr(fuzz, "ask", lambda folder: 1 / 0)
    assert fuzz.one(0, [run], tmp_path / "copy")["verdict"] == "traceback"
