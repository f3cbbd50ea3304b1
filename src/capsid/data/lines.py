"""Numbered lines of a text file, plain or gzipped. Truncation or damage is reported after the last complete line.

Does not know what a line means.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from capsid.data.findings import Findings
from capsid.errors import DataError

BLOCK = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def find_file(folder: Path, *names: str) -> Path | None:
    """The one of these files that exists in the folder. Two are an error, because one of them would be ignored."""
    found = [name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0]} and {found[1]}", hint="keep one of them")
    return folder / found[0] if found else None


def numbered_lines(path: Path, findings: Findings) -> Iterator[tuple[int, bytes]]:
    """Line number (from 1) and bytes of every line without its line break; blank lines are skipped."""
    number, rest = 0, b""
    blocks = _blocks(path)
    while True:
        try:
            block = next(blocks, None)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            what = "ends too early" if isinstance(error, EOFError) else f"is damaged ({error})"
            findings.error(
                "truncated-file",
                f"{path.name}:{number + 1}",
                f"the file {what}; {number:,} complete lines could be read",
                "the copy or download was truncated or damaged: fetch the file again",
            )
            return
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
        if block is None:
            break
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


def not_utf8(line: bytes) -> tuple[str, str]:
    """Message and hint for text that is not UTF-8: its bytes, and what they say in the most common other encoding."""
    bad = 0
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.start
    shown = line[max(0, bad - 20) :][:40]
    return (
        f"the line is not valid UTF-8 text: {shown!r}, in Windows-1252 {shown.decode('cp1252', 'replace')!r}",
        "save the file as UTF-8; if the second form looks right: iconv -f WINDOWS-1252 -t UTF-8 FILE",
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        first = True
        start = file.peek(2)[:2]
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataError(f"{path.name} is UTF-16 text", hint="save the file as UTF-8")
        # read1 returns what could be decoded before it raises on a missing end; read would lose it.
        while block := file.read1(BLOCK):
            yield block.removeprefix(BYTE_ORDER_MARK) if first else block
            first = False
