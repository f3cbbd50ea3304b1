"""The prepared folder: `sequences.txt(.gz)`, one line per user, and `items.jsonl(.gz)`, one line per item.

Optional files: `dataset.json` (name, text_fields, provenance, separator), and `times.txt(.gz)` (user time time ...) or
`days.txt(.gz)` (the same with days since the user's first interaction, which cannot be compared between users).
Ids are separated by white space, or by tabs if `dataset.json` has `"separator": "\\t"`: then ids may contain spaces.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from capsid.base.storage.artifacts import MANIFEST, new_folder, open_folder
from capsid.base.vocabulary import Vocabulary
from capsid.data.attributes import attribute_frame
from capsid.data.columns import can_be_id
from capsid.data.dataset import Dataset
from capsid.data.findings import Findings, find_file, not_utf8, numbered_lines
from capsid.errors import ArtifactError, DataError, nearest
from capsid.ragged import Ragged

KIND = "dataset"
SEQUENCES = ("sequences.txt.gz", "sequences.txt")
ITEMS = ("items.jsonl.gz", "items.jsonl")
TIMES = ("times.txt.gz", "times.txt")
DAYS = ("days.txt.gz", "days.txt")
TAB = "\t"


def is_prepared(folder: Path) -> bool:
    """Whether the folder holds one of the two files of this format."""
    if find_file(folder, *SEQUENCES) is not None:
        return True
    # A folder of tables may also have its items as JSON lines.
    return find_file(folder, *ITEMS) is not None and not any(folder.glob("interactions*"))


def read_prepared(folder: Path, findings: Findings) -> Dataset:
    """Everything that can be read; problems go to `findings`."""
    _check_manifest(folder, findings)
    about = _read_about(folder, findings)
    spaces = about.get("separator") == TAB
    items, attributes = read_items(_need(folder, ITEMS), findings, spaces=spaces)
    separator = TAB.encode() if spaces else None
    users, sequences = read_sequences(_need(folder, SEQUENCES), items, findings, separator=separator)
    times_file = find_file(folder, *TIMES, *DAYS)
    times = read_times(times_file, users, sequences, findings, separator=separator) if times_file else None
    return Dataset(
        name=about.get("name", folder.resolve().name),
        users=Vocabulary(users),
        items=items,
        sequences=sequences,
        attributes=attributes,
        times=times,
        days=times is not None and times_file is not None and times_file.name in DAYS,
        text_fields=_text_fields(about, attributes, findings),
        provenance=about.get("provenance", {}) | {"format": "prepared folder"},
    )


def write_prepared(dataset: Dataset, folder: Path) -> Path:
    """Write the dataset as a prepared folder, atomically; the same dataset gives the same bytes."""
    folder = Path(folder)
    for ids, what in ((dataset.users, "user"), (dataset.items, "item")):
        wrong = next((id_ for id_ in ids if not can_be_id(id_)), None)
        if wrong is not None:
            raise DataError(
                f"{what} id {wrong!r:.80} is empty, has spaces at its ends, or contains a tab or line break",
                hint="replace the white space in the ids, for example by '_'",
            )
    spaces = any(" " in id_ for ids in (dataset.users, dataset.items) for id_ in ids)
    separator = TAB if spaces else " "
    with new_folder(folder, kind=KIND) as new:
        rows = (dataset.items.ids(row) for row in dataset.sequences)
        _write_lines(new / SEQUENCES[0], (separator.join([user, *ids]) for user, ids in zip(dataset.users, rows)))
        _write_lines(new / ITEMS[0], _item_lines(dataset))
        if dataset.times is not None:
            stamps = Ragged(dataset.times, dataset.sequences.offsets)
            _write_lines(
                new / (DAYS if dataset.days else TIMES)[0],
                (separator.join([u, *map(str, row.tolist())]) for u, row in zip(dataset.users, stamps)),
            )
        about = {
            "name": dataset.name,
            "text_fields": list(dataset.text_fields),
            "provenance": dict(dataset.provenance),
            **({"separator": TAB} if spaces else {}),
        }
        (new / "dataset.json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def _need(folder: Path, names: tuple[str, ...]) -> Path:
    path = find_file(folder, *names)
    if path is None:
        raise DataError(
            f"{folder} has no {names[0]}",
            hint=f"a prepared folder needs {SEQUENCES[0]} and {ITEMS[0]} (or without .gz)",
        )
    return path


def _check_manifest(folder: Path, findings: Findings) -> None:
    if not (folder / MANIFEST).exists():
        return
    try:
        open_folder(folder, kind=KIND)
    except ArtifactError as error:
        hint = f"import it again, or delete {MANIFEST} if you changed the folder on purpose"
        findings.error("changed-file", MANIFEST, error.message, hint)


def _read_about(folder: Path, findings: Findings) -> dict[str, Any]:
    path = folder / "dataset.json"
    if not path.is_file():
        return {}
    hint = 'it should look like {"name": "shop", "text_fields": ["title", "categories"]}'
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        findings.error("broken-line", "dataset.json", f"not valid JSON: {error}", hint)
        return {}
    wanted = {"name": str, "text_fields": list, "provenance": dict, "separator": str}
    bad = isinstance(about, dict) and next(
        (k for k in wanted if not isinstance(about.get(k, wanted[k]()), wanted[k])), None
    )
    if not isinstance(about, dict) or bad:
        findings.error("mixed-types", "dataset.json", f"{bad or 'the file'!r} has the wrong type", hint)
        return {}
    separator = about.get("separator", TAB)
    if separator not in (" ", TAB):
        message = f"the separator must be a space or a tab, got {separator!r:.40}"
        findings.error("bad-separator", "dataset.json", message, 'write "separator": "\\t" if ids contain spaces')
    return about


def _text_fields(about: Mapping[str, Any], attributes: pl.DataFrame, findings: Findings) -> tuple[str, ...]:
    wanted = about.get("text_fields", ())
    for name in wanted:
        if name not in attributes.columns:
            hint = nearest(str(name), attributes.columns)
            findings.error("unknown-field", "dataset.json", f"no item has the text field {name!r}", hint)
    return tuple(name for name in wanted if name in attributes.columns)


def read_items(path: Path, findings: Findings, *, spaces: bool = False) -> tuple[Vocabulary, pl.DataFrame]:
    """Ids and attributes of an items file; problems go to `findings`. `spaces`: ids may contain them."""
    first_line: dict[str, int] = {}
    records: list[Mapping[str, Any]] = []
    for number, line in numbered_lines(path, findings):
        where = f"{path.name}:{number}"
        record = _json_object(line, where, findings)
        if record is None:
            continue
        id_ = record.pop("item_id", None)
        if isinstance(id_, int) and not isinstance(id_, bool):
            id_ = str(id_)
        if not isinstance(id_, str) or not (can_be_id(id_) and (spaces or " " not in id_)):
            hint = 'every line needs "item_id": a text or whole number without '
            hint += "tabs and line breaks" if spaces else 'spaces ("separator": "\\t" in dataset.json allows them)'
            findings.error("bad-id", where, f"the item's id is {id_!r:.80}", hint)
        elif id_ in first_line:
            hint = "keep one line per item"
            findings.error("duplicate-id", where, f"item {id_!r} already occurs on line {first_line[id_]}", hint)
        else:
            first_line[id_] = number
            records.append(record)
    if not records and not findings.errors:
        findings.error("no-items", path.name, "the file holds no items", 'a line is {"item_id": ..., "title": ...}')
    lines = list(first_line.values())
    return Vocabulary(first_line), attribute_frame(records, lambda row: f"{path.name}:{lines[row]}", findings)


def _json_object(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8"))
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        findings.error("not-utf8", where, *not_utf8(line))
    except (ValueError, RecursionError) as error:  # broken JSON, numbers of 5,000 digits, deep nesting
        findings.error("broken-line", where, f"broken JSON: {error}", 'a line is one object: {"item_id": ..., ...}')
    else:
        if isinstance(record, dict):
            return record
        findings.error("broken-line", where, f"expected a JSON object, found a {type(record).__name__}")
    return None


def _item_lines(dataset: Dataset) -> list[str]:
    """The first line names every column, nulls included, so that reading finds the columns in the same order."""
    rows = dataset.attributes.iter_rows(named=True)
    return [
        json.dumps({"item_id": id_} | {k: v for k, v in row.items() if v is not None or not number}, ensure_ascii=False)
        for number, (id_, row) in enumerate(zip(dataset.items, rows))
    ]


def _write_lines(path: Path, lines: Any) -> None:
    # No timestamp in the gzip header, so that the same data gives the same bytes.
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, compresslevel=6, mtime=0))


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
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
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


def read_times(
    path: Path, users: list[str], sequences: Ragged, findings: Findings, *, separator: bytes | None = None
) -> np.ndarray | None:
    """One time per interaction, or None (with a finding) if the file does not match the sequences."""
    if findings.errors:  # Times would not line up with sequences from which something was left out.
        return None
    lengths, rows = sequences.lengths, 0
    stamps: list[float] = []
    hint = "its lines must match the sequences file: the same users in order, one time per item"
    for number, line in numbered_lines(path, findings):
        user, *texts = line.strip().split(separator)
        where = f"{path.name}:{number}"
        if rows < len(users):
            wrong = _mismatch(user, len(texts), users[rows], lengths[rows])
        else:
            wrong = f"user {user.decode(errors='replace')!r} is not in the sequences file"
        if wrong:
            findings.error("times-differ", where, wrong, hint)
            return None
        try:
            row = list(map(_stamp, texts))
        except (ValueError, OverflowError):
            shown = b" ".join(texts)[:60].decode(errors="replace")
            message = f"a time cannot be read: {shown!r} (user {users[rows]!r})"
            findings.error("broken-line", where, message, "times are numbers, such as seconds since 1970")
            return None
        fall = next((pair for pair in itertools.pairwise(row) if pair[1] < pair[0]), None)
        if fall is not None:
            message = f"user {users[rows]!r} has items that are not in time order: {fall[1]} comes after {fall[0]}"
            findings.error("time-order", where, message, "sort the items of every user, the oldest first")
        stamps += row
        rows += 1
    if rows != len(users):
        findings.error("times-differ", f"{path.name}:{rows + 1}", f"user {users[rows]!r} has no line", hint)
        return None
    return np.array(stamps)


def _mismatch(user: bytes, times: int, wanted: str, items: int) -> str:
    """What is wrong with a line of times, if anything."""
    if user != wanted.encode():
        return f"the line is of user {user.decode(errors='replace')!r} where user {wanted!r} is expected"
    return "" if times == items else f"user {wanted!r} has {times} times for {items} items"


def _stamp(text: bytes) -> float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
