"""The benchmarks of large catalogues on tiny ones: every command runs, and what must be equal is."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from capsid.cli.main import run

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@pytest.fixture
def here(load, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Commands run in this process, because each start of Python and torch takes seconds."""
    commands = load("_commands")

    def capsid(arguments: Sequence[object], folder: Path) -> object:
        printed = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            assert (
                run([str(a).replace("--engine=processes", "--engine=here") for a in arguments if a != "--workers=2"])
                == 0
            )
        return commands.Command(" ".join(map(str, arguments)), 2.0, 1.0, 20, 10, printed.getvalue())

    monkeypatch.setattr(commands, "capsid", capsid)
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path / "home"))


def test_from_vectors_to_lists(here: None, load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = load("end_to_end").main(["--quick", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "e.json")])
    (row,) = result["rows"]
    assert row["same_bytes_from_two_processes"]
    assert row["settled"]["items"] == row["quality"]["items"] == 2_000
    assert row["listed"] == {"one": 10, "users": 1_000, "rows": 10_000}
    assert set(row["commands"]) == {"tokenizer", "encode", "ids", "report", "train", "recommend", "lists"}
    assert row["seconds"] == 14
    text = (tmp_path / "e.json").read_text()
    assert json.loads(text)["rows"] == result["rows"]
    assert str(tmp_path) not in text, "results name no path"
    assert sorted(p.name for p in (tmp_path / "work").iterdir() if p.is_dir()) == ["large", "mapped"]


def test_the_size_of_the_paper(here: None, load, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    size, commands = load("paper_size"), load("_commands")

    def searched(command: Sequence[str], folder: Path, shown: str) -> object:
        with contextlib.chdir(folder):
            found = size.main(command[2:])
        return commands.Command(shown, 1.0, 1.0, 1, 1, json.dumps(found))

    monkeypatch.setattr(size, "measured", searched)
    result = size.main(["--quick", "--out", str(tmp_path / "p.json")])
    assert result["settled"]["items"] == 5_000
    assert result["search"]["nodes"] == result["settled"]["trie_nodes"]
    assert result["search"]["seconds_median"] > 0
    memory = result["worker_memory"]
    assert memory["fixed_length"]["written"]
    assert memory["with_prefixes"]["written"]
    assert memory["with_prefixes"]["prefixes"] > 0
    assert str(tmp_path) not in (tmp_path / "p.json").read_text()


def test_a_command_is_measured_with_what_it_starts(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    commands = load("_commands")
    child = "import time; held = bytearray(60_000_000); time.sleep(1.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('done')"
    found = commands.measured([sys.executable, "-c", code], tmp_path, "a child")
    assert found.printed == "done\n"
    assert 60_000_000 < found.held_bytes <= found.peak_bytes
    assert found.seconds > 1.5
    with pytest.raises(RuntimeError, match="fails ended with 3"):
        commands.measured([sys.executable, "-c", "import sys; sys.exit(3)"], tmp_path, "fails")


def test_finished_steps_are_not_repeated(here: None, load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    commands = load("_commands")
    calls: list[str] = []

    def capsid(arguments: Sequence[object], folder: Path) -> object:
        calls.append(str(arguments[0]))
        return commands.Command("capsid", 2.0, 1.0, 20, 10, "printed")

    commands.capsid = capsid
    for _ in range(2):
        steps = commands.Steps(tmp_path, "long")
        assert steps.run("first", "doctor") == "printed"
    assert calls == ["doctor"]
    assert steps.costs()["seconds"] == 2.0
