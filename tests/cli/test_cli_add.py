"""`capsid tokenizer add`: more items in a tokenizer or a run, and a stopped fit that resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_world import capsid, contents

from capsid.train import loop

NEW = [
    {"item_id": "new-1", "title": "amber 1 birch 0", "categories": ["amber 1", "birch 0"]},
    {"item_id": "new-2", "title": "something else", "categories": ["elsewhere"]},
]
SMALL = [
    p for s in ("codebooks=8,8", "training.steps=20", "training.batch_size=32") for p in ("--set", f"tokenizer.{s}")
]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    file = tmp_path / "new.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in NEW), encoding="utf-8")
    return file


def test_a_run_recommends_new_items(run: Path, items: Path, tmp_path: Path) -> None:
    before = contents(run)
    answer = capsid("tokenizer", "add", run, "--items", items, "--out", tmp_path / "more")
    assert answer.code == 0, answer.err
    assert "2 items added" in answer.out
    assert contents(run) == before
    found = capsid("recommend", tmp_path / "more", "--history", "new-1", "-k", "64", "--json")
    assert found.code == 0, found.err
    assert "something else" in found.out
    again = capsid("tokenizer", "add", tmp_path / "more", "--items", items, "--out", tmp_path / "twice")
    assert again.code == 1
    assert "new-1" in again.err
    assert not (tmp_path / "twice").exists()


def test_a_tokenizer_has_new_items_and_says_how_far_they_drifted(shop: Path, items: Path, tmp_path: Path) -> None:
    assert capsid("tokenizer", "fit", "capsid", "--data", shop, "--out", tmp_path / "ids", *SMALL).code == 0
    answer = capsid("tokenizer", "add", tmp_path / "ids", "--items", items, "--out", tmp_path / "more")
    assert answer.code == 0, answer.err
    assert "drift" in answer.err
    inspected = capsid("tokenizer", "inspect", tmp_path / "more", "new-2", "--json").json
    assert inspected["title"] == "something else"
    assert capsid("tokenizer", "report", tmp_path / "more", "--json").json["items"] == 66


def test_a_stopped_fit_goes_on(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["tokenizer", "fit", "capsid", "--data", shop, *SMALL]
    assert capsid(*command, "--out", tmp_path / "whole").code == 0
    step = loop._Run.step

    def killed(self: Any) -> None:
        if self.done == 3:
            raise KeyboardInterrupt
        step(self)

    with monkeypatch.context() as patched:
        patched.setattr(loop._Run, "step", killed)
        assert capsid(*command, "--out", tmp_path / "ids", "--checkpoint-every", "0").code == 130
    assert list(tmp_path.glob(".ids.*.checkpoint"))
    # Run options are no part of what is fitted, so another choice resumes the same work.
    answer = capsid(*command, "--out", tmp_path / "ids", "--checkpoint-every", "1e9")
    assert "resuming from step 3" in answer.err
    assert not list(tmp_path.glob(".ids.*"))
    assert contents(tmp_path / "ids") == contents(tmp_path / "whole")


def test_a_file_that_is_not_there(run: Path, tmp_path: Path) -> None:
    answer = capsid("tokenizer", "add", run, "--items", tmp_path / "none.jsonl", "--out", tmp_path / "more")
    assert answer.code == 1
    assert "there is no file" in answer.err
