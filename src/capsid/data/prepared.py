"""The prepared folder: `sequences.txt(.gz)`, one line per user, and `items.jsonl(.gz)`, one line per item.

Optional files: `dataset.json` (name, text_fields, provenance) and `times.txt(.gz)` (user time time ...).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from capsid.artifacts import MANIFEST, new_folder, open_folder
from capsid.data.attributes import attribute_frame
from capsid.data.dataset import Dataset
from capsid.data.findings import Findings
from capsid.data.lines import find_file, numbered_lines
from capsid.data.sequences import read_sequences, read_times
from capsid.errors import ArtifactError, DataError, nearest
from capsid.ragged import Ragged
from capsid.vocabulary import Vocabulary

KIND = "dataset"
SEQUENCES = ("sequences.txt.gz", "sequences.txt")
ITEMS = ("items.jsonl.gz", "items.jsonl")
TIMES = ("times.txt.gz", "times.txt")


def is_prepared(folder: Path) -> bool:
    """Whether the folder holds one of the two files of this format."""
    if find_file(folder, *SEQUENCES) is not None:
        return True
    # A folder of tables may also have its items as JSON lines.
    return find_file(folder, *ITEMS) is not None and not any(folder.glob("interactions.*"))


def read_prepared(folder: Path, findings: Findings) -> Dataset:
    """Everything that can be read; problems go to `findings`."""
    _check_manifest(folder, findings)
    about = _read_about(folder, findings)
    items, attributes = read_items(_need(folder, ITEMS), findings)
    users, sequences = read_sequences(_need(folder, SEQUENCES), items, findings)
    times_file = find_file(folder, *TIMES)
    times = read_times(times_file, users, sequences, findings) if times_file else None
    return Dataset(
        name=about.get("name", folder.resolve().name),
        users=Vocabulary(users),
        items=items,
        sequences=sequences,
        attributes=attributes,
        times=times,
        text_fields=_text_fields(about, attributes, findings),
        provenance=about.get("provenance", {}) | {"format": "prepared folder"},
    )


def write_prepared(dataset: Dataset, folder: Path) -> Path:
    """Write the dataset as a prepared folder, atomically; the same dataset gives the same bytes."""
    folder = Path(folder)
    for vocabulary, what in ((dataset.users, "user"), (dataset.items, "item")):
        _check_ids(vocabulary, what)
    with new_folder(folder, kind=KIND) as new:
        rows = (dataset.items.ids(row) for row in dataset.sequences)
        _write_lines(new / SEQUENCES[0], (" ".join([user, *ids]) for user, ids in zip(dataset.users, rows)))
        _write_lines(new / ITEMS[0], _item_lines(dataset))
        if dataset.times is not None:
            stamps = Ragged(dataset.times, dataset.sequences.offsets)
            _write_lines(
                new / TIMES[0], (" ".join([u, *map(str, row.tolist())]) for u, row in zip(dataset.users, stamps))
            )
        about = {
            "name": dataset.name,
            "text_fields": list(dataset.text_fields),
            "provenance": dict(dataset.provenance),
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
    wanted = {"name": str, "text_fields": list, "provenance": dict}
    bad = isinstance(about, dict) and next(
        (k for k in wanted if not isinstance(about.get(k, wanted[k]()), wanted[k])), None
    )
    if not isinstance(about, dict) or bad:
        findings.error("mixed-types", "dataset.json", f"{bad or 'the file'!r} has the wrong type", hint)
        return {}
    return about


def _text_fields(about: Mapping[str, Any], attributes: pl.DataFrame, findings: Findings) -> tuple[str, ...]:
    wanted = about.get("text_fields", ())
    for name in wanted:
        if name not in attributes.columns:
            hint = nearest(str(name), attributes.columns)
            findings.error("unknown-field", "dataset.json", f"no item has the text field {name!r}", hint)
    return tuple(name for name in wanted if name in attributes.columns)


def read_items(path: Path, findings: Findings) -> tuple[Vocabulary, pl.DataFrame]:
    """Ids and attributes of an items file; problems go to `findings`."""
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
        if not isinstance(id_, str) or len(id_.encode("utf-8", "replace").split()) != 1:
            hint = 'every line needs "item_id": a text or whole number without spaces'
            findings.error("bad-id", where, f"the item's id is {id_!r}", hint)
        elif id_ in first_line:
            hint = "keep one line per item"
            findings.error("duplicate-id", where, f"item {id_!r} already occurs on line {first_line[id_]}", hint)
        else:
            first_line[id_] = number
            records.append(record)
    if not records and not findings.errors:
        findings.error("no-items", path.name, "the file holds no items")
    lines = list(first_line.values())
    return Vocabulary(first_line), attribute_frame(records, lambda row: f"{path.name}:{lines[row]}", findings)


def _json_object(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8"))
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        findings.error("not-utf8", where, "the line is not valid UTF-8 text", "save the file as UTF-8")
    except (json.JSONDecodeError, RecursionError) as error:
        findings.error("broken-line", where, f"broken JSON: {error}", 'a line is one object: {"item_id": ..., ...}')
    else:
        if isinstance(record, dict):
            return record
        findings.error("broken-line", where, f"expected a JSON object, found a {type(record).__name__}")
    return None


def _check_ids(ids: Vocabulary, what: str) -> None:
    for id_ in ids:
        if len(id_.encode().split()) != 1:
            raise DataError(
                f"{what} id {id_!r} is empty or contains white space, which a sequences file cannot hold",
                hint="replace the white space in the ids, for example by '_'",
            )


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
