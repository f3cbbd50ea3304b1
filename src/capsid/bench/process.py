"""A cell's process as the runner sees it: start it with one thread, receive its messages, ask it to stop.

Every failure of the process (an error, a kill, out of memory) becomes an `Outcome`; none reaches the runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsid.base.config import to_dict
from capsid.base.run_options import ONE_THREAD, RunOptions
from capsid.base.storage.artifacts import read_json, write_json
from capsid.bench.cells import Job
from capsid.bench.results import Result
from capsid.errors import ArtifactError

JOB, RESULT, ERROR, LOG = "job.json", "result.json", "error.json", "log.txt"
COMMAND = (sys.executable, "-m", "capsid.bench.worker")
DONE, FAILED, KILLED, INTERRUPTED = "done", "failed", "killed", "interrupted, resumable"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell in a run; `error` says why if it is not done."""

    cell: str
    state: str
    seconds: float = 0.0
    error: str | None = None
    hint: str | None = None


class CellProcess:
    """One started cell. Its messages go to a queue as (process, message); None when there are no more."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        messages: queue.Queue[tuple[CellProcess, Any]],
        run: RunOptions,
        command: Sequence[str] = COMMAND,
        keep: Path | None = None,
        share: bool = False,
    ) -> None:
        self.job, self.folder = job, folder
        self.began = time.monotonic()
        self.asked_at: float | None = None
        self.status = "starting"
        self.error: tuple[str, str | None] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).unlink(missing_ok=True)
        kept = None if keep is None else str((keep / job.run_name).resolve())
        # A cell is fitted by one process, whatever team this one is in.
        told = {name: value for name, value in to_dict(run).items() if name != "team"}
        write_json(folder / JOB, {**job.to_dict(), "run": told, "keep": kept, "share": share})
        with open(folder / LOG, "ab") as log:
            self.process = subprocess.Popen(
                [*command, str(folder)],
                # Open for as long as the runner lives: when it closes, the process knows that the runner has gone.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **ONE_THREAD},
                # Ctrl-C must reach only the runner, which then asks its cells to stop.
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(messages,), daemon=True).start()

    def _listen(self, messages: queue.Queue[tuple[CellProcess, Any]]) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                try:
                    messages.put((self, json.loads(line)))
                except ValueError:
                    messages.put((self, {"line": line.decode(errors="replace").rstrip()}))
        messages.put((self, None))

    def ask_to_stop(self) -> None:
        """Ask the process to stop; only work since the last checkpoint is lost."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process at once; checkpoints stay."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def heard(self, message: dict[str, Any]) -> str | None:
        """Handle a message; returns a line to show, if any."""
        if "error" in message:
            self.error = str(message["error"]), message.get("hint")
        if "update" in message:
            self.status = str(message["update"])
        return str(message["line"]) if "line" in message else None

    def ending(self) -> Outcome:
        """How it ended, after its last message."""
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        state, error, hint = self._ending(code)
        if state == FAILED:
            write_json(self.folder / ERROR, {"error": error, "hint": hint})
        return Outcome(self.job.cell.name, state, time.monotonic() - self.began, error, hint)

    def _ending(self, code: int) -> tuple[str, str | None, str | None]:
        if code == 0 and (self.folder / RESULT).exists():
            return DONE, None, None
        if self.error is not None:
            return FAILED, *self.error
        if self.asked_at is not None or code in (128 + signal.SIGTERM, -signal.SIGTERM):
            return INTERRUPTED, None, None
        if code < 0:
            memory = " (out of memory?)" if code == -signal.SIGKILL else ""
            name = signal.Signals(-code).name
            return KILLED, f"its process was killed by {name}{memory}", "run the plan again to resume it"
        lines = (self.folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        return FAILED, f"its process ended with code {code}: {last}", f"see {self.folder / LOG}"


def left_result(folder: Path, job: Job) -> Result | None:
    """A result that a cell left just before the runner was killed; None if it is not there or not of this job."""
    try:
        result = Result.from_dict(read_json(folder / RESULT))
    except (ArtifactError, TypeError, AttributeError):
        return None
    return result if result.fingerprint == job.fingerprint else None


def left_error(folder: Path) -> str | None:
    """The error of the cell's last attempt."""
    try:
        return str(read_json(folder / ERROR)["error"])
    except (ArtifactError, KeyError, TypeError):
        return None
