"""Kill -9 at random moments, in short: output is whole or absent, and the same bits when resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "faults"


def test_killed_commands_end_with_the_same_bits(tmp_path: Path) -> None:
    # In a process of its own: it forks, which a process that has used polars must not do.
    command = [sys.executable, FOLDER / "kills.py", "--quick", "--seed", "3", "--out", tmp_path / "kills.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"bad": 0' in done.stdout


def test_other_bits_and_remains_are_noticed(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    kills = load("kills")
    verb = kills.Verb("out", lambda folder: [], lambda folder: (folder / "out").read_text())

    def verdict(whole: str, *written: str) -> str:
        folder = tmp_path / "-".join((whole, *written))

        def pretend(command: list[str], log: Path, *, kill_after: float | None = None) -> int:
            for name in written:
                (folder / name).write_text("two")
            return -9 if kill_after is not None else 0

        monkeypatch.setattr(kills, "execute", pretend)
        return str(kills.round_of(verb, folder, whole, 0.0, kills.np.random.default_rng(0), 2)["wrong"])

    assert verdict("two", "out") == ""
    assert verdict("one", "out") == "other bits than without a kill"
    assert verdict("two", "out", ".out.partial") == "left ['.out.partial']"
