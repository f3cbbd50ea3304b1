"""Runs `capsid` commands as a user would type them, and measures their time, processor time and memory."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from common import gigabytes

from capsid.base.storage.artifacts import write_json

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Command:
    """A finished command. Memory is that of its largest process: `peak_bytes` with mapped pages, `held_bytes` without.

    Processor time includes all processes that it started and waited for.
    """

    arguments: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    held_bytes: int
    printed: str

    def to_dict(self) -> dict[str, Any]:
        """Everything but what it printed."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "printed"}


class Steps:
    """Commands of a long benchmark in one folder. A stopped benchmark resumes: finished commands are not repeated."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.file = folder, folder / f"{name}-steps.json"
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.done = {step: Command(**fields) for step, fields in known.items()}

    def run(self, step: str, *arguments: object) -> str:
        """Run `capsid` unless this step is finished; returns what it printed."""
        if step not in self.done:
            self.done[step] = capsid(arguments, self.folder)
            write_json(self.file, {name: dataclasses.asdict(command) for name, command in self.done.items()})
        done = self.done[step]
        memory = f"peak {gigabytes(done.peak_bytes)}, without mapped pages {gigabytes(done.held_bytes)}"
        print(f"{step:14s} {done.cpu_seconds:8.1f} cpu s  {done.seconds:8.1f} s  {memory}", flush=True)
        return done.printed

    def costs(self) -> dict[str, Any]:
        """All commands, and their times together."""
        every = self.done.values()
        totals = {name: sum(getattr(command, name) for command in every) for name in ("seconds", "cpu_seconds")}
        return {"commands": {step: command.to_dict() for step, command in self.done.items()}, **totals}


def capsid(arguments: Sequence[object], folder: Path) -> Command:
    """Run `capsid` in a folder; a command that fails raises with the end of its messages."""
    given = [str(argument) for argument in arguments]
    return measured([sys.executable, "-m", "capsid", *given], folder, " ".join(["capsid", *given]))


def measured(command: Sequence[str], folder: Path, shown: str) -> Command:
    """Run any command in a folder; caches and temporary files are inside it."""
    (folder / "tmp").mkdir(exist_ok=True)
    env = {**os.environ, "CAPSID_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as messages:
        began = monotonic()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=messages)
        watch = _Watch(process.pid)
        watch.start()
        _, status, used = os.wait4(process.pid, 0)
        seconds = monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        watch.done.set()
        watch.join()
        out.seek(0)
        messages.seek(0)
        if process.returncode:
            raise RuntimeError(f"{shown} ended with {process.returncode}:\n{messages.read().decode()[-3000:]}")
        printed = out.read().decode()
    cpu = used.ru_utime + used.ru_stime
    return Command(shown, seconds, cpu, watch.peak_bytes, watch.held_bytes, printed)


class _Watch(threading.Thread):
    """Looks at a process and all below it until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.done = pid, threading.Event()
        self.peak_bytes = self.held_bytes = 0

    def run(self) -> None:
        while not self.done.wait(SECONDS_BETWEEN_LOOKS):
            for pid in (self.pid, *descendants(self.pid)):
                sizes = _sizes(pid)
                self.peak_bytes = max(self.peak_bytes, sizes.get("VmHWM", 0))
                self.held_bytes = max(self.held_bytes, sizes.get("RssAnon", 0))


def descendants(pid: int) -> list[int]:
    """All processes below a process that are alive."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _sizes(pid: int) -> dict[str, int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    return {name: 1024 * int(size) for name, size in re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB", text, re.MULTILINE)}
