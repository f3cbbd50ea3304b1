"""Runs `team_fits.py` in a process of its own: it forks, and a fork of a process whose libraries have threads waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_whole_recipes_fitted_by_two_processes() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        Path(__file__).with_name("team_fits.py"),
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert "....." in done.stdout, "all five tests ran"
