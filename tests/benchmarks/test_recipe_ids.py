"""The benchmark of ids: fitted, or read from kept runs, which are what a generator was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsid.data.sources import load_dataset
from capsid.progress import silent
from capsid.recommender import Recommender

TINY = (
    "encoder=hashing",
    "tokenizer.codebooks=4,4",
    "generator.width=8",
    "generator.heads=2",
    "generator.feedforward=8",
)


def test_rows_are_fitted_or_read_from_kept_runs(load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = load("recipe_ids")
    data = load_dataset("planted")
    ids.measure("planted", ["frequency"], 0, tmp_path, silent)
    stored = tmp_path / f"recipes-{data.name}.json"
    fitted = json.loads(stored.read_text())["rows"]["frequency"]
    assert fitted["fit_cpu_seconds"] is not None

    kept = tmp_path / "kept"
    settings = (*TINY, "schedule.0.training.steps=1")
    Recommender.from_recipe("rq-kmeans", settings=settings).fit(data).save_pretrained(kept / "rq-kmeans")
    ids.measure("planted", ["frequency", "rq-kmeans"], 0, tmp_path, silent, kept)
    rows = json.loads(stored.read_text())["rows"]
    assert rows["frequency"] == fitted, "no kept run: the row stays"
    row = rows["rq-kmeans"]
    assert row["settings"]["tokenizer"]["codebooks"] == [4, 4], "the run's own settings, not the recipe's"
    assert row["fit_cpu_seconds"] is None
    assert row["report"]["items"] == len(data.items)
    assert row["report"]["mean_length"] == 2

    ids.show(tmp_path, "planted")
    assert "| `rq-kmeans` | - |" in capsys.readouterr().out
