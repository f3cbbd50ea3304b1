"""What README and guides show is true: the Python runs, the commands parse, the numbers are a stored run's."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from capsid.base.vocabulary import Vocabulary
from capsid.cli.main import app
from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared
from capsid.recipes import RECIPES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDES = [README, *(ROOT / "docs" / f"{name}.md" for name in ("cli", "quickstart", "production", "adding-a-method"))]
RESULTS = ROOT / "docs" / "results" / "demo" / "results.json"
TINY = (
    "tokenizer.codebooks=8,8",
    "generator.layers=1",
    "generator.width=16",
    "generator.feedforward=32",
    "schedule.0.training.steps=20",
    "schedule.0.training.validate_every=10",
    "schedule.0.training.validation_users=20",
)


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def command_lines(text: str) -> list[str]:
    """Lines of code that begin with `capsid`, and commands quoted inside a sentence."""
    code = re.findall(r"^(?:    |\$ )?(capsid (?!demo:)[a-z-].*)$", text, re.M)
    quoted = re.findall(r"`(capsid [a-z][^`]*)`", text)
    return [line.split("#")[0].strip() for line in (*code, *quoted)]


def headings(page: Path) -> set[str]:
    """Names that a link can have behind `#`."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def parse(line: str) -> None:
    """Walk down the real commands and let the last one read its options, without running it."""
    arguments = [part for part in shlex.split(line.split("|")[0]) if part != "..."][1:]
    command = typer.main.get_command(app)
    context = None
    while hasattr(command, "list_commands"):
        name = arguments.pop(0)
        if name.startswith("-"):
            assert name in ("--help", "--version"), line
            return
        if name == "VERB":
            return
        assert name in command.list_commands(context), line
        command = command.get_command(context, name)
    if arguments and "--help" not in arguments:
        command.make_context(line, arguments)


@pytest.mark.parametrize("path", GUIDES, ids=lambda p: p.name)
def test_every_command_shown_exists(path: Path) -> None:
    lines = command_lines(path.read_text(encoding="utf-8"))
    assert len(lines) >= 4
    for line in lines:
        parse(line)


@pytest.mark.parametrize(
    "line", ["capsid fitt x", "capsid fit sasrec --data d", "capsid evaluate r --filter", "capsid data lst"]
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"fitt|out|--filter|lst"):
        parse(line)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = planted_dataset(branching=(4, 2, 2), items_per_leaf=4, users=60, length=8)
    names = ["tea-01", "cup-17", *small.items[2:]]
    write_prepared(replace(small, items=Vocabulary(names)), tmp_path / "my-shop")
    monkeypatch.chdir(tmp_path)
    quick = (*TINY, "tokenizer.training.steps=10")
    monkeypatch.setitem(RECIPES, "capsid", RECIPES["capsid"].with_settings(quick))
    blocks = python_blocks(README.read_text(encoding="utf-8"))
    assert blocks
    shared: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), shared)
    assert "amber" in printed.getvalue()


def test_the_readme_can_be_read_at_once() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 1_200


def test_the_numbers_of_the_quickstart_are_those_of_the_stored_run() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["methods"]
    for name, result in results.items():
        (row,) = re.findall(rf"^ *{re.escape(name)} +(0\..*)$", text, re.M)
        wanted = [result[kind]["metrics"][m] for kind in ("test", "test-filtered") for m in ("recall@10", "ndcg@10")]
        assert row.split()[:4] == [f"{value:.4f}" for value in wanted]
    best = {name: r["test"]["metrics"]["recall@10"] for name, r in results.items()}
    assert min(best["capsid-bpe"], best["rq-kmeans"]) > best["popularity"]


def test_links_and_pictures_are_there() -> None:
    for path in PAGES:
        for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                page = path.parent / target if target else path
                assert page.exists(), f"{path.name} -> {target}"
                assert not heading or heading in headings(page), f"{path.name} -> {target}#{heading}"
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert picture.stat().st_size < 200_000
