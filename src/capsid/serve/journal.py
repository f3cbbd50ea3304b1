"""Edits of the catalogue on disk: one line each, synced before an edit is acknowledged.

Several processes may write; a file lock orders their writes, and each process reads the lines of the others. A process
may replace the file by a shorter one; the others notice and read the new file from its beginning. Lines have chained
checksums: a line is `["SUM", VALUE]` in JSON, and its sum covers the sum of the line before it and the bytes of the
value, so a changed, missing or moved line breaks the chain. A mark beside the file says how far it was acknowledged,
and so shows whether whole lines are cut off at its end. Nothing is added to a file that somebody else has cut, changed
or swapped. Only a line that a crash cut off, which was never acknowledged, is dropped. Knows nothing about the meaning
of the lines.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import sync_folder, write_bytes
from capsid.errors import ArtifactError

HINT = "restore it from a backup, or keep the edits before the damage with: capsid serve RUN --recover"
_OPENS, _DIGITS = b'["', 16
NAME = "journal.jsonl"


class JournalDamaged(ArtifactError):
    """The files of a journal are not what was written to them."""


@dataclass(frozen=True)
class Position:
    """A place between two lines: bytes (`end`) and lines before it, and the sum of the last of them."""

    end: int = 0
    lines: int = 0
    sum: str = ""

    def after(self, line: bytes) -> Position:
        """Behind a sealed line, which ends with its newline."""
        return Position(self.end + len(line), self.lines + 1, line[2 : 2 + _DIGITS].decode())


def seal(values: Iterable[Any], at: Position) -> tuple[bytes, Position]:
    """The lines of values that follow a position, and the position behind them."""
    lines = []
    for value in values:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        lines.append(_OPENS + _sum(at.sum, text).encode() + b'",' + text + b"]\n")
        at = at.after(lines[-1])
    return b"".join(lines), at


def unseal(line: bytes, at: Position, path: Path) -> Any:
    """The value of a line, without its newline, that stands at a position; raises if it is not what was written."""
    text = line[len(_OPENS) + _DIGITS + 2 : -1]
    if seal_of(line, text) != _sum(at.sum, text):
        raise JournalDamaged(f"{path} is damaged: line {at.lines + 1} does not have the checksum it needs", hint=HINT)
    return json.loads(text)


def seal_of(line: bytes, text: bytes) -> str | None:
    """The sum that a line carries, if it has the form of a sealed line around this text."""
    digits = line[len(_OPENS) : len(_OPENS) + _DIGITS]
    return digits.decode("latin-1") if line == _OPENS + digits + b'",' + text + b"]" else None


def _sum(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + text).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class Mark:
    """How far a journal was acknowledged; while it is being replaced, also how far the new one is."""

    at: Position = Position()
    coming: Position | None = None

    @property
    def places(self) -> list[Position]:
        """One of these is in the journal."""
        return [self.at] if self.coming is None else [self.at, self.coming]

    def write(self, path: Path) -> None:
        """Write the file; it is on disk when this returns."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        write_bytes(path, f"{zlib.crc32(text.encode()):08x} {text}\n".encode())

    @classmethod
    def read(cls, path: Path) -> Mark | None:
        """What was written last; None if there is no file."""
        try:
            line = path.read_bytes()
        except FileNotFoundError:
            return None
        text = line[9:-1]
        if line != f"{zlib.crc32(text):08x} ".encode() + text + b"\n":
            raise JournalDamaged(f"{path} is damaged: it does not have the checksum it needs", hint=HINT)
        told = json.loads(text)
        coming = told["coming"]
        return cls(Position(**told["at"]), None if coming is None else Position(**coming))


class DiskFull(ArtifactError):
    """There is no space left for an edit."""


class Journal:
    """`read` gives each line once; `append` writes some. Both need `locked` where others use the file.

    Without a mark (`marked=False`) a journal may lose its end unnoticed.
    """

    def __init__(self, folder: Path, name: str = NAME, *, marked: bool = True) -> None:
        self.path, self._marked = folder / name, marked
        self.mark_path = folder / f"{name}.mark"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open(os.O_CREAT)
            sync_folder(folder)
        except OSError as error:
            raise ArtifactError(
                f"edits cannot be kept in {folder}: {error.strerror}", hint="give another folder with --state"
            ) from None
        self._thread = threading.RLock()
        with self.locked():
            if not os.fstat(self._file).st_size and not self.mark_path.exists():
                self._write_mark(Mark())

    def _open(self, flags: int = 0) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        self._inode = os.fstat(self._file).st_ino
        self._at = Position()

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
            raise JournalDamaged(f"the journal {self.path} is gone", hint=f"stop the service; {HINT}") from None

    @property
    def behind(self) -> bool:
        """Whether there are unread bytes; one system call."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        return now.st_size > self._at.end or now.st_ino != self._inode

    @property
    def size(self) -> int:
        """Bytes of all lines read or written so far."""
        return self._at.end

    @property
    def pending(self) -> bool:
        """Whether there are whole lines that were not read; exact under `locked`."""
        return b"\n" in self._bytes(self._at.end)

    def read(self) -> Iterator[Any]:
        """Whole lines that were not read yet, in order; raises if they are not what was written.

        A line counts as read when the one after it is asked for. If the caller fails at a line, the next call begins
        with it.
        """
        lines, places = self._parsed(self._bytes(self._at.end), self._at)
        if self._marked:
            self._check_end([self._at, *places])
        return self._passed(lines, places)

    def _parsed(self, data: bytes, at: Position) -> tuple[list[Any], list[Position]]:
        """The values of whole lines from a position on, and the position behind each."""
        values, places = [], []
        for line in data.split(b"\n")[:-1]:
            values.append(unseal(line, at, self.path))
            at = at.after(line + b"\n")
            places.append(at)
        return values, places

    def _passed(self, values: list[Any], places: list[Position]) -> Iterator[Any]:
        for value, place in zip(values, places):
            yield value
            self._at = place

    def _check_end(self, places: list[Position]) -> None:
        """Refuse a journal in which the acknowledged end, or what was already read of it, is not found."""
        mark = Mark.read(self.mark_path)
        if mark is None:
            raise JournalDamaged(f"{self.mark_path} is missing, which says how far edits were acknowledged", hint=HINT)
        # A mark before the first of these places was read with that place already.
        if any(place in places or place.end < places[0].end for place in mark.places):
            return
        lost = mark.at.lines - places[-1].lines
        what = (
            f"its last {lost} acknowledged edits" if lost > 0 else "acknowledged edits, or others stand in their place"
        )
        raise JournalDamaged(f"{self.path} misses {what}", hint=HINT)

    def append(self, *values: Any) -> None:
        """Append lines, after all were read. They are on disk when this returns; if it fails, none is written."""
        self._check_untouched()
        if self.pending:
            raise ArtifactError(
                f"lines of {self.path} must be read before others are written, from byte {self._at.end}"
            )
        data, at = seal(values, self._at)
        try:
            # A killed process may have left half a line.
            if os.fstat(self._file).st_size > self._at.end:
                os.ftruncate(self._file, self._at.end)
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._at.end + written)
            os.fsync(self._file)
            self._write_mark(Mark(at))
        except (OSError, ArtifactError) as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._at.end)
            raise _unwritten(self.path, error) from None
        self._at = at

    def _check_untouched(self) -> None:
        """Refuse to write into a file that somebody else has cut, changed at its end, removed or given another mark."""
        now = os.fstat(self._file)
        if not now.st_nlink:
            raise JournalDamaged(f"the journal {self.path} is gone", hint=f"stop the service; {HINT}")
        if now.st_size < self._at.end:
            raise JournalDamaged(
                f"{self.path} was cut to {now.st_size} bytes while it was in use; {self._at.end} were acknowledged",
                hint=f"edits are refused until then: stop the service; {HINT}",
            )
        end = os.pread(self._file, 2, self._at.end - 2) if self._at.end else b""
        if self._at.end and end != b"]\n":
            raise JournalDamaged(f"{self.path} was changed while it was in use", hint=f"stop the service; {HINT}")
        if self._marked:
            mark = Mark.read(self.mark_path)
            # A process that was killed between its line and the mark leaves a mark that is behind.
            if mark is None or (mark.at.end >= self._at.end and mark.at != self._at and not self.pending):
                raise JournalDamaged(
                    f"{self.mark_path} does not say what was acknowledged last", hint=f"stop the service; {HINT}"
                )

    def replace(self, *values: Any) -> None:
        """Put these lines in the place of all lines, at once: a crash leaves the old file or the new one.

        Needs `locked`, and must be the last call under it: the new file is not locked.
        """
        data, at = seal(values, Position())
        self._write_mark(Mark(self._at, at))
        write_bytes(self.path, data)
        self._write_mark(Mark(at))
        os.close(self._file)
        self._open()
        self._at = at

    def _write_mark(self, mark: Mark) -> None:
        if self._marked:
            mark.write(self.mark_path)

    def repair(self, *, recover: bool = False) -> list[str]:
        """Check the whole file, and drop an unfinished last line after a copy; what was done, in sentences.

        With `recover`, everything from the first damage on is dropped, and the mark follows. A journal of release 0.1,
        whose lines have no checksums, gets them. Takes the lock: another process may be about to finish its line.
        """
        with self.locked():
            data = self._bytes(0)
            if data.startswith(b"{") and not self.mark_path.exists():
                self._at = Position()
                self.replace(*_unsealed(data, self.path))
                self._at = Position()
                return []
            end = data.rfind(b"\n") + 1
            if recover:
                return self._recovered(data)
            _, places = self._parsed(data[:end], Position())
            if self._marked:
                self._check_end([Position(), *places])
                self._write_mark(Mark([Position(), *places][-1]))
            if end == len(data):
                return []
            return [self._cut(end, f"the last edit in {self.path} was not finished, nor acknowledged, and was dropped")]

    def _recovered(self, data: bytes) -> list[str]:
        """Keep the lines before the first damage."""
        at = Position()
        for line in data.split(b"\n")[:-1]:
            try:
                unseal(line, at, self.path)
            except JournalDamaged:
                break
            at = at.after(line + b"\n")
        try:
            acknowledged = (Mark.read(self.mark_path) or Mark()).at.lines
        except JournalDamaged:
            acknowledged = 0
        lost = max(data.count(b"\n"), acknowledged) - at.lines
        told = []
        if at.end < len(data) or lost:
            told = [self._cut(at.end, f"{lost} edits were lost, {at.lines} are kept in {self.path}")]
        self._write_mark(Mark(at))
        return told

    def _cut(self, end: int, what: str) -> str:
        """Cut the file after a copy, and say so."""
        copy = self.path.with_name(f"{self.path.name}.broken")
        shutil.copyfile(self.path, copy)
        os.ftruncate(self._file, end)
        os.fsync(self._file)
        return f"{what}; the file as it was is {copy}"

    def close(self) -> None:
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


def _unsealed(data: bytes, path: Path) -> list[Any]:
    """The values of a journal of release 0.1; a last line that a crash cut off is dropped."""
    values = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            values.append(json.loads(line))
        except ValueError:
            raise JournalDamaged(f"{path} is damaged: line {number} is not JSON", hint=HINT) from None
    return values


def _unwritten(path: Path, error: Exception) -> ArtifactError:
    cause = error.strerror if isinstance(error, OSError) else str(error)
    full = any(os.strerror(code) in str(cause) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    return (DiskFull if full else ArtifactError)(f"the edit cannot be written to {path}: {cause}")
