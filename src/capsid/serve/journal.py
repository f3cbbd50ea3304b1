"""Edits of the catalogue on disk: one JSON line each, synced before an edit is acknowledged.

Several processes may write; a file lock orders their writes, and each process reads the lines of the others. A line
that a crash cut off was never acknowledged and is dropped. A process may replace the file by a shorter one; the others
notice and read the new file from its beginning. Knows nothing about the meaning of the lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import sync_folder, write_bytes
from capsid.errors import ArtifactError

NAME = "journal.jsonl"


class Journal:
    """`read` gives each line once; `append` writes some. Both need `locked` where others use the file."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open(os.O_CREAT)
            sync_folder(folder)
        except OSError as error:
            raise ArtifactError(
                f"edits cannot be kept in {folder}: {error.strerror}", hint="give another folder with --state"
            ) from None
        self._thread = threading.RLock()

    def _open(self, flags: int = 0) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        self._inode = os.fstat(self._file).st_ino
        self._read = 0

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock: no other thread or process writes meanwhile."""
        with self._thread:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                self._open_replaced()
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _open_replaced(self) -> None:
        """Open and lock the file that another process may have put in the place of the one that is open."""
        try:
            while os.stat(self.path).st_ino != self._inode:
                old = self._file
                self._open()
                os.close(old)  # which unlocks it
                fcntl.flock(self._file, fcntl.LOCK_EX)
        except FileNotFoundError:
            raise ArtifactError(f"the journal {self.path} is gone", hint="restart the service") from None

    @property
    def behind(self) -> bool:
        """Whether there are unread bytes; one system call."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        return now.st_size > self._read or now.st_ino != self._inode

    @property
    def size(self) -> int:
        """Bytes of all lines read or written so far."""
        return self._read

    @property
    def pending(self) -> bool:
        """Whether there are whole lines that were not read; exact under `locked`."""
        return b"\n" in self._bytes(self._read)

    def read(self) -> Iterator[dict[str, Any]]:
        """Whole lines that were not read yet, in order.

        A line counts as read when the one after it is asked for. If the caller fails at a line, the next call begins
        with it.
        """
        data = self._bytes(self._read)
        lines = []
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            try:
                lines.append((json.loads(line), len(line) + 1))
            except ValueError:
                raise ArtifactError(
                    f"{self.path} is damaged: line {number} after byte {self._read} is not JSON",
                    hint="restore the file from a backup, or move it away to start without its edits",
                ) from None
        return self._passed(lines)

    def _passed(self, lines: Iterable[tuple[dict[str, Any], int]]) -> Iterator[dict[str, Any]]:
        for line, size in lines:
            yield line
            self._read += size

    def append(self, *values: dict[str, Any]) -> None:
        """Append lines, after all were read. They are on disk when this returns; if it fails, none is written."""
        if self.pending:
            raise ArtifactError(f"lines of {self.path} must be read before others are written, from byte {self._read}")
        data = _encoded(values)
        try:
            # A killed process may have left half a line.
            if os.fstat(self._file).st_size > self._read:
                os.ftruncate(self._file, self._read)
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._read + written)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._read)
            raise ArtifactError(f"the edit cannot be written to {self.path}: {error.strerror}") from None
        self._read += len(data)

    def replace(self, *values: dict[str, Any]) -> None:
        """Put these lines in the place of all lines, at once: a crash leaves the old file or the new one.

        Needs `locked`, and must be the last call under it: the new file is not locked.
        """
        data = _encoded(values)
        write_bytes(self.path, data)
        os.close(self._file)
        self._open()
        self._read = len(data)

    def repair(self) -> None:
        """Drop an unfinished last line. Takes the lock: another process may be about to finish its line."""
        with self.locked():
            data = self._bytes(0)
            end = data.rfind(b"\n") + 1
            if end < len(data):
                os.ftruncate(self._file, end)
                os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
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


def _encoded(values: Iterable[dict[str, Any]]) -> bytes:
    texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
    return "".join(f"{text}\n" for text in texts).encode()
