"""The demo on the small shop: the story, the page and the stored numbers agree; a second demo takes what is there."""

from __future__ import annotations

import contextlib
import html
import io
import json
from pathlib import Path

import pytest
from cli_world import TINY, capsid

from capsid.cli.demo import MAIN, QUICK, SETTINGS, tell_demo
from capsid.progress import silent
from capsid.recipes import get_recipe

MERGES = ("tokenizer.training.steps=10", "merges.min_count=2", "merges.theta=0,-1")
SMALL = {"capsid-bpe": (*TINY, *MERGES), "rq-kmeans": TINY, "sasrec": TINY[1:], "popularity": ()}


def told(shop: Path, out: Path, *, force: bool = False) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        tell_demo(str(shop), out, SMALL, force=force, progress=silent)
    return text.getvalue()


@pytest.fixture(scope="module")
def demo(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "runs" / "demo"
    return out, told(shop, out)


def test_the_story_shows_measured_numbers(demo: tuple[Path, str]) -> None:
    out, story = demo
    results = json.loads((out / "results.json").read_text())["methods"]
    assert list(results) == ["capsid-bpe", "rq-kmeans", "sasrec", "popularity"]
    assert "frequent pairs of codes became one token each" in story
    for name, result in results.items():
        for kind in ("test", "test-filtered"):
            kept = json.loads((out / name / "evaluations" / f"{kind}.json").read_text())
            assert kept["metrics"] == result[kind]["metrics"]
            assert f"{result[kind]['metrics']['recall@10']:.4f}" in story
    again = capsid("evaluate", out / MAIN, "--no-filter-history", "--json").json
    assert again["metrics"] == results[MAIN]["test"]["metrics"]
    assert story.count("recommended  1. ") == 5


def test_rows_that_do_not_differ_are_called_so(demo: tuple[Path, str]) -> None:
    """The same numbers as `capsid compare` gives for the runs, on the terminal, on the page and in the file."""
    out, story = demo
    told = json.loads((out / "results.json").read_text())["differences"]
    assert [(d["method"], d["against"]) for d in told] == [(MAIN, n) for n in ("rq-kmeans", "sasrec", "popularity")]
    page = (out / "report.html").read_text()
    for found in told:
        name = found["against"]
        compared = capsid("compare", out / MAIN, out / name, "--filter-history", "--json").json
        assert {k: found[k] for k in ("difference", "low", "high", "p")} == {
            k: compared[k] for k in ("difference", "low", "high", "p")
        }
        line = next(line for line in story.splitlines() if line.startswith(f"{MAIN} - {name}"))
        interval = f"{found['low']:+.4f} to {found['high']:+.4f}"
        assert interval in line
        assert f"<td>{interval}</td>" in page
        assert ("no clear difference" in line) == (found["low"] <= 0 <= found["high"])


def test_the_page_stands_alone(demo: tuple[Path, str]) -> None:
    out, _ = demo
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "src=" not in page
    assert "<script" not in page
    assert "<link" not in page
    results = json.loads((out / "results.json").read_text())["methods"]
    for result in results.values():
        assert f"<td>{result['test']['metrics']['recall@10']:.4f}</td>" in page
    assert page.count("actual next item") == 5
    assert "amber" in html.unescape(page)
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_demo_takes_the_finished_runs(demo: tuple[Path, str], shop: Path) -> None:
    out, story = demo
    weights = (out / MAIN / "generator.safetensors").stat()
    second = told(shop, out)
    assert second.count("fitted by an earlier demo") == 4
    assert (out / MAIN / "generator.safetensors").stat().st_ino == weights.st_ino
    table = [line for line in story.splitlines() if line.startswith(tuple(SMALL))]
    assert len(table) == 4 + 3
    assert all(line in second for line in table)


def test_the_settings_of_the_demo_exist() -> None:
    for name, settings in SETTINGS.items():
        recipe = get_recipe(name).with_settings(settings)
        assert recipe.name == name
        if settings:
            assert recipe.with_settings(QUICK).schedule[0].training.steps < recipe.schedule[0].training.steps
