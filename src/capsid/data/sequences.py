"""Parses lines `user item item ...` and `user time time ...` into ragged rows. Knows the lines, not the folder."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np

from capsid.base.vocabulary import Vocabulary
from capsid.data.findings import Findings
from capsid.data.lines import not_utf8, numbered_lines
from capsid.ragged import Ragged


def read_sequences(
    path: Path, items: Vocabulary, findings: Findings, *, separator: bytes | None = None
) -> tuple[list[str], Ragged]:
    """Users in file order and their item numbers; unknown items and broken lines are reported and left out.

    Ids are separated by `separator`; None is any white space.
    """
    numbers = {id_.encode(): i for i, id_ in enumerate(items)}
    users: dict[bytes, int] = {}
    values: list[int] = []
    ends = [0]
    for number, line in numbered_lines(path, findings):
        user, *ids = line.strip().split(separator)
        where = f"{path.name}:{number}"
        if not _is_text(line):
            findings.error("not-utf8", where, *not_utf8(line))
            continue
        if user in users:
            message = f"user {user.decode()!r} already occurs on line {users[user]}"
            findings.error("duplicate-id", where, message, "keep one line per user")
            continue
        users[user] = number
        if not ids:
            hint = "remove the line: there is nothing to learn from it"
            findings.warning("empty-sequence", where, f"user {user.decode()!r} has no items", hint)
        for id_ in ids:
            row = numbers.get(id_)
            if row is None:
                hint = "add a line for it to the items file, or remove it from the sequences"
                findings.error("unknown-id", where, f"item {id_.decode()!r} is not in the items file", hint)
            else:
                values.append(row)
        ends.append(len(values))
    if not values and not findings.errors:
        findings.error("no-interactions", path.name, "the file holds no interactions", "a line is: user item item ...")
    return [u.decode() for u in users], Ragged(np.array(values, dtype=np.int32), np.array(ends, dtype=np.int64))


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_times(
    path: Path, users: list[str], sequences: Ragged, findings: Findings, *, separator: bytes | None = None
) -> np.ndarray | None:
    """One time per interaction, or None (with a finding) if the file does not match the sequences."""
    if findings.errors:  # Times would not line up with sequences from which something was left out.
        return None
    lengths, rows = sequences.lengths, 0
    stamps: list[float] = []
    for number, line in numbered_lines(path, findings):
        user, *texts = line.strip().split(separator)
        where = f"{path.name}:{number}"
        if rows >= len(users) or user != users[rows].encode() or len(texts) != lengths[rows]:
            hint = "its lines must match the sequences file: the same users in order, one time per item"
            findings.error("times-differ", where, "the line does not match the sequences file", hint)
            return None
        try:
            row = list(map(_stamp, texts))
        except (ValueError, OverflowError):
            message = f"a time cannot be read: {b' '.join(texts)[:60].decode(errors='replace')!r}"
            findings.error("broken-line", where, message, "times are numbers, such as seconds since 1970")
            return None
        if any(later < earlier for earlier, later in itertools.pairwise(row)):
            message = f"user {users[rows]!r} has items that are not in time order"
            findings.error("time-order", where, message, "sort the items of every user, the oldest first")
        stamps += row
        rows += 1
    if rows != len(users):
        findings.error("times-differ", path.name, f"{rows} lines for {len(users)} users")
        return None
    return np.array(stamps)


def _stamp(text: bytes) -> float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
