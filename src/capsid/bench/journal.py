"""What an unfinished cell remembers of itself between its attempts: times, memory, which code had a part in it.

A small JSON file in the cell's working folder. Written at the ends of stages and now and then, so a kill costs seconds.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capsid.artifacts import read_json, write_json
from capsid.errors import ArtifactError

FILE = "journal.json"
EVERY_SECONDS = 20.0


class Journal:
    """Opened by the process that works on the cell; every opening is an attempt."""

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
        """Keep what is known now."""
        self.kept["wall"] = self.before + time.monotonic() - self.began
        self.kept["peak_memory_mb"] = max(self.kept["peak_memory_mb"], peak_memory_mb())
        write_json(self.path, self.kept)
        self.written = time.monotonic()

    def tick(self) -> None:
        """Write if it is time to."""
        if time.monotonic() - self.written > EVERY_SECONDS:
            self.write()

    def stage(self, name: str, seconds: float) -> None:
        """How long a stage took."""
        self.kept["seconds"][name] = seconds
        self.write()


def read_journal(folder: Path) -> dict[str, Any]:
    """What the last attempt left, nothing if there was none."""
    try:
        found = read_json(folder / FILE)
    except ArtifactError:
        return {}
    return found if isinstance(found, dict) else {}


def now() -> str:
    """The time of day, for people."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory_mb() -> float:
    """The most memory that this process has had at once."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes on Linux, bytes on a Mac.
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)
