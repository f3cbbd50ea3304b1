"""Edits of the catalogue on disk: one JSON line each, synced before anybody is told that the edit is done.

Several processes may write; a lock on the file puts them in order, and each reads what the others wrote. A line that a
crash cut short was never acknowledged and is dropped. Knows lines, not what they mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capsid.artifacts import sync_folder
from capsid.errors import ArtifactError

NAME = "journal.jsonl"


class Journal:
    """`read` gives each line once; `append` writes one. Both want `locked`, unless one process alone uses the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            sync_folder(folder)
        except OSError as error:
            raise ArtifactError(
                f"edits cannot be kept in {folder}: {error.strerror}", hint="give another folder with --state"
            ) from None
        self._read = 0
        self._thread = threading.RLock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile, in this process or another."""
        with self._thread:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def behind(self) -> bool:
        """Whether there are bytes that were not read yet; one system call."""
        return os.fstat(self._file).st_size > self._read

    def read(self) -> list[dict[str, Any]]:
        """Whole lines since the last call, in order."""
        data = self._bytes(self._read)
        end = data.rfind(b"\n") + 1
        lines = []
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                lines.append(json.loads(line))
            except ValueError:
                raise ArtifactError(
                    f"{self.path} is damaged: line {number} after byte {self._read} is not JSON",
                    hint="restore the file from a backup, or move it away to start without its edits",
                ) from None
        self._read += end
        return lines

    def append(self, value: dict[str, Any]) -> None:
        """One more line behind those that were read, on disk when this returns; nothing is left of it if it fails."""
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            # Half a line of a process that was killed may stand there.
            if self.behind:
                os.ftruncate(self._file, self._read)
            written = 0
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._read + written)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._read)
            raise ArtifactError(f"the edit cannot be written to {self.path}: {error.strerror}") from None
        self._read += len(line)

    def repair(self) -> None:
        """Drop an unfinished last line. Only before anybody else uses the file."""
        data = self._bytes(0)
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.ftruncate(self._file, end)
            os.fsync(self._file)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def _bytes(self, start: int) -> bytes:
        parts, size = [], os.fstat(self._file).st_size
        while start < size:
            part = os.pread(self._file, size - start, start)
            if not part:
                break
            parts.append(part)
            start += len(part)
        return b"".join(parts)
