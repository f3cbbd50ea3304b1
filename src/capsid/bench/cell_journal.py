"""The record of an unfinished cell across its attempts: times, memory, and which versions of the code ran it.

A small JSON file in the cell's working folder. Written after each stage and at intervals, so a kill loses seconds.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import read_json, write_json
from capsid.errors import ArtifactError

FILE = "journal.json"
EVERY_SECONDS = 20.0


class Journal:
    """Opened by the process that runs the cell; each opening counts as an attempt."""

    def __init__(self, folder: Path, code: str) -> None:
        self.path = folder / FILE
        self.kept: dict[str, Any] = {
            "started": now(),
            "attempts": 0,
            "wall": 0.0,
            "peak_memory_mb": 0.0,
            "codes": [],
            "seconds": {},
            **read_journal(folder),
        }
        self.kept |= {"attempts": self.kept["attempts"] + 1, "pid": os.getpid()}
        if code not in self.kept["codes"]:
            self.kept["codes"].append(code)
        self.began, self.before = time.monotonic(), float(self.kept["wall"])
        self.write()

    def write(self) -> None:
        """Write the current values."""
        self.kept["wall"] = self.before + time.monotonic() - self.began
        self.kept["peak_memory_mb"] = max(self.kept["peak_memory_mb"], peak_memory_mb())
        write_json(self.path, self.kept)
        self.written = time.monotonic()

    def tick(self) -> None:
        """Write if the interval has passed."""
        if time.monotonic() - self.written > EVERY_SECONDS:
            self.write()

    def stage(self, name: str, seconds: float) -> None:
        """Measure the time of a stage."""
        self.kept["seconds"][name] = seconds
        self.write()


def read_journal(folder: Path) -> dict[str, Any]:
    """The values of the last attempt; empty if there was none."""
    try:
        found = read_json(folder / FILE)
    except ArtifactError:
        return {}
    return found if isinstance(found, dict) else {}


def now() -> str:
    """The time of day, for people."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory_mb() -> float:
    """Peak memory of this process."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes on Linux, bytes on a Mac.
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)
