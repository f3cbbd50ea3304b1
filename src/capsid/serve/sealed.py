"""Journal lines with chained checksums, and the mark beside a journal that says how far it was acknowledged.

A line is `["SUM", VALUE]` in JSON; its sum covers the sum of the line before it and the bytes of the value, so a
changed, missing or moved line breaks the chain. A chain cannot show that whole lines are cut off at its end; the mark
can.
Knows no locks and no edits.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import write_bytes
from capsid.errors import ArtifactError

HINT = "restore it from a backup, or keep the edits before the damage with: capsid serve RUN --recover"
_OPENS, _DIGITS = b'["', 16


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
