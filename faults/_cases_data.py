"""Unusual data files: `data check`, `data import`, `fit` and Python accept the same ones and name what is wrong."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator

import polars as pl
from _cases import Answer, Case, World, capsid, checked, python

from capsid.data.sources import load_dataset

HEAD = "user,item,timestamp"
ROWS = [f"u{u},i{(u + t) % 4},{t}" for u in range(4) for t in range(5)]
ITEM_ROWS = ["item_id,title", *(f"i{n},film {n}" for n in range(4))]
ITEMS = [json.dumps({"item_id": f"i{n}", "title": f"film {n}"}) for n in range(4)]
SEQUENCES = [f"u{u} " + " ".join(f"i{(u + t) % 4}" for t in range(5)) for u in range(4)]
LONG = "x" * 100_000


def text(rows: list[str], encoding: str = "utf-8", line: str = "\n") -> bytes:
    """Lines as the bytes of a file."""
    return "".join(f"{row}{line}" for row in rows).encode(encoding)


def table(rows: list[str], **files: bytes) -> dict[str, bytes]:
    """A folder with a table of interactions."""
    return {"interactions.csv": text([HEAD, *rows]), **{name.replace("__", "."): data for name, data in files.items()}}


def prepared(**files: list[str] | bytes) -> dict[str, bytes]:
    """A prepared folder in which some files are replaced."""
    given = {name.replace("__", "."): text(v) if isinstance(v, list) else v for name, v in files.items()}
    return {"items.jsonl": text(ITEMS), "sequences.txt": text(SEQUENCES), **given}


def swapped(separator: str) -> list[str]:
    """The table with another separator."""
    return [row.replace(",", separator) for row in (HEAD, *ROWS)]


def parquet() -> bytes:
    """The table as Parquet."""
    buffer = io.BytesIO()
    pl.DataFrame([row.split(",") for row in ROWS], schema=HEAD.split(","), orient="row").write_parquet(buffer)
    return buffer.getvalue()


# Name -> files of a folder that can be used.
GOOD: dict[str, dict[str, bytes]] = {
    "a table": table(ROWS),
    "a table with items": table(ROWS, items__csv=text(ITEM_ROWS)),
    "items that have only an id": table(ROWS, items__csv=text([r.split(",")[0] for r in ITEM_ROWS])),
    "items as JSON lines": table(ROWS, items__jsonl=text(ITEMS)),
    **{f"separator {s!r}": {"interactions.csv": text(swapped(s))} for s in (";", "\t", "|")},
    **{
        f"encoding {e}": {"interactions.csv": text([HEAD, *ROWS], e)}
        for e in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be")
    },
    "Windows lines": {"interactions.csv": text([HEAD, *ROWS], line="\r\n")},
    "gzip": {"interactions.csv.gz": gzip.compress(text([HEAD, *ROWS]))},
    "Parquet": {"interactions.parquet": parquet()},
    "tsv": {"interactions.tsv": text(swapped("\t"))},
    "JSON lines": {"interactions.jsonl": text([json.dumps(dict(zip(HEAD.split(","), r.split(",")))) for r in ROWS])},
    "other names of columns": {"interactions.csv": text(["customer_id,ASIN,Date", *ROWS])},
    "more columns": {"interactions.csv": text([f"{HEAD},rating,shop", *(f"{r},good,x" for r in ROWS)])},
    "ids with spaces": table([r.replace("i", "item ") for r in ROWS]),
    "ids in quotes": table([r.replace("u", '"u,').replace(",i", '",i', 1) for r in ROWS]),
    "ids in many scripts": table([r.replace("i", "東é") for r in ROWS]),
    "ids with leading zeros": table([r.replace("i", "00") for r in ROWS]),
    "long ids": table([r.replace("i", LONG[:500]) for r in ROWS]),
    "descending times": table([f"u{u},i{t % 4},{9 - t}" for u in range(4) for t in range(5)]),
    "equal times": table([f"u{u},i{t % 4},7" for u in range(4) for t in range(5)]),
    "negative times": table([f"u{u},i{t % 4},{t - 9}" for u in range(4) for t in range(5)]),
    "times with fractions": table([f"u{u},i{t % 4},{t}.5" for u in range(4) for t in range(5)]),
    **{
        f"dates {d}": table([f'u{u},i{t % 4},"{d.format(t + 13)}"' for u in range(4) for t in range(5)])
        for d in (
            "2024-05-{}",
            "2024/05/{}",
            "{}.05.2024",
            "{}/05/2024",
            "05/{}/2024",
            "2024-05-{} 18:00",
            "2024-05-{}T18:00:00Z",
            "{} May 2024",
            "May {}, 2024",
            "{}.05.2024 18:00:00",
            "05/{}/2024 06:00 PM",
            "2024-05-{}T18:00:00+02:00",
        )
    },
    "repeated rows": table([*ROWS, *ROWS]),
    "one user": table([f"u,i{t},{t}" for t in range(5)]),
    "one item": table([f"u{u},i,{t}" for u in range(3) for t in range(4)]),
    "users with one item": table([*ROWS, "lonely,i1,3"]),
    "blank lines": {"interactions.csv": text([HEAD, "", *ROWS, "", ""])},
    "prepared": prepared(),
    "prepared with gzip": {
        "items.jsonl.gz": gzip.compress(text(ITEMS)),
        "sequences.txt.gz": gzip.compress(text(SEQUENCES)),
    },
    "prepared with times": prepared(times__txt=[f"u{u} 1 2 3 4 5" for u in range(4)]),
    "prepared with equal times": prepared(times__txt=[f"u{u} 1 1 1 1 1" for u in range(4)]),
    "prepared with a name": prepared(dataset__json=b'{"name": "shop", "text_fields": ["title"]}'),
    "prepared with tabs": prepared(
        dataset__json=b'{"separator": "\\t"}', sequences__txt=[s.replace(" ", "\t") for s in SEQUENCES]
    ),
    "prepared with a byte order mark": prepared(items__jsonl=text(ITEMS, "utf-8-sig")),
    "prepared, items nobody took": prepared(items__jsonl=[*ITEMS, '{"item_id": "z"}']),
    "prepared, odd titles": prepared(
        items__jsonl=[json.dumps({"item_id": f"i{n}", "title": f"\u001b[31m{n}"}) for n in range(4)]
    ),
}
# Name -> files of a folder that cannot be used, and what is said about them.
BAD: dict[str, tuple[dict[str, bytes], str]] = {
    "an empty folder": ({}, "holds no dataset"),
    "another file": ({"notes.txt": b"hello"}, "notes.txt"),
    "an empty table": ({"interactions.csv": b""}, "is empty"),
    "only a header": ({"interactions.csv": text([HEAD])}, "no interactions"),
    "no header": ({"interactions.csv": text(ROWS)}, "no column for the user"),
    "no item column": ({"interactions.csv": text(["user,timestamp", "u,1"])}, "no column for the item"),
    "no time column": ({"interactions.csv": text(["user,item", "u,i"])}, "no column for the timestamp"),
    "a column twice": ({"interactions.csv": text(["user,item,item,timestamp", "u,i,i,1"])}, ""),
    "too many fields": (table([*ROWS, "u,i,1,2,3,4"]), "6 fields"),
    "a missing user": (table([*ROWS, ",i1,3"]), "user is missing"),
    "a missing item": (table([*ROWS, "u1,,3"]), "item is missing"),
    "a missing time": (table([*ROWS, "u1,i1,"]), "timestamp is missing"),
    "a time in words": (table([*ROWS, "u1,i1,yesterday"]), "'yesterday'"),
    "an infinite time": (table([*ROWS, "u1,i1,inf"]), "'inf'"),
    "a time that is NaN": (table([*ROWS, "u1,i1,nan"]), "'nan'"),
    "a date that can be two": (
        table([f"u{u},i{t},0{t + 1}/0{t + 2}/2024" for u in range(3) for t in range(4)]),
        "/2024",
    ),
    "a date that is none": (table([f"u{u},i{t},2024-02-{28 + t}" for u in range(3) for t in range(4)]), "'2024-02-30'"),
    "a tab in an id": (table([*ROWS, '"u\t1",i1,3']), "contains a tab"),
    "a line break in an id": (table([*ROWS, 'u1,"i\n1",3']), "line break"),
    "Latin-1": ({"interactions.csv": text([HEAD, *ROWS, "u1,Amélie,3"], "latin-1")}, "Windows-1252 'Amélie'"),
    "binary": ({"interactions.csv": bytes(range(256)) * 9}, ""),
    "a broken gzip": ({"interactions.csv.gz": gzip.compress(text([HEAD, *ROWS]))[:-9]}, ""),
    "a gzip that is none": ({"interactions.csv.gz": text([HEAD, *ROWS])}, ""),
    "a broken Parquet": ({"interactions.parquet": b"PAR1 no"}, "cannot be read"),
    "an empty Parquet": ({"interactions.parquet": b""}, ""),
    "broken JSON": ({"interactions.jsonl": b'{"user": '}, "broken JSON"),
    "JSON that is no object": ({"interactions.jsonl": b"[1, 2]\n"}, "expected a JSON object"),
    "JSON in Latin-1": ({"interactions.jsonl": '{"user": "é"}'.encode("latin-1")}, "Windows-1252"),
    "JSON in UTF-16": ({"interactions.jsonl": '{"user": "x"}'.encode("utf-16")}, "UTF-16"),
    "JSON with 5,000 digits": ({"interactions.jsonl": b'{"user": ' + b"9" * 5000 + b"}"}, ""),
    "deep JSON": ({"interactions.jsonl": b"[" * 100_000}, ""),
    "unknown items": (table([*ROWS, "u1,z,9"], items__csv=text(ITEM_ROWS)), "'z' is not in items.csv"),
    "an item twice": (table(ROWS, items__csv=text([*ITEM_ROWS, "i1,again"])), "occurs twice"),
    "an item without id": (table(ROWS, items__csv=text([*ITEM_ROWS, ",nameless"])), "id is missing"),
    "items without id column": (table(ROWS, items__csv=text(["title", "x"])), "no column for the item"),
    "a price in words": (
        table(ROWS, items__csv=text(["item_id,price", *(f"i{n},cheap" for n in range(4))])),
        "'cheap'",
    ),
    "an empty items table": (table(ROWS, items__csv=b""), "is empty"),
    "prepared without items": ({"sequences.txt": text(SEQUENCES)}, "has no items.jsonl"),
    "prepared without sequences": ({"items.jsonl": text(ITEMS)}, "has no sequences.txt"),
    "prepared, empty": (prepared(sequences__txt=b"", items__jsonl=b""), "no items"),
    "prepared, no sequences": (prepared(sequences__txt=b""), "no interactions"),
    "prepared, unknown item": (prepared(sequences__txt=[*SEQUENCES, "u9 z"]), "'z' is not in the items file"),
    "prepared, a user twice": (prepared(sequences__txt=[*SEQUENCES, SEQUENCES[0]]), "already occurs on line 1"),
    "prepared, an item twice": (prepared(items__jsonl=[*ITEMS, ITEMS[0]]), "already occurs on line 1"),
    "prepared, no id": (prepared(items__jsonl=[*ITEMS, '{"title": "x"}']), "the item's id is None"),
    "prepared, an id with a space": (prepared(items__jsonl=[*ITEMS, '{"item_id": "a b"}']), "'a b'"),
    "prepared, an id that is a list": (prepared(items__jsonl=[*ITEMS, '{"item_id": [1]}']), "[1]"),
    "prepared, an id that is a fraction": (prepared(items__jsonl=[*ITEMS, '{"item_id": 1.5}']), "1.5"),
    "prepared, an id of 5,000 digits": (prepared(items__jsonl=[*ITEMS, '{"item_id": ' + "9" * 5000 + "}"]), ""),
    "prepared, broken JSON": (prepared(items__jsonl=[*ITEMS, "{"]), "broken JSON"),
    "prepared, mixed types": (prepared(items__jsonl=[*ITEMS, '{"item_id": "y", "title": [3]}']), "'title'"),
    "prepared, nested": (prepared(items__jsonl=[*ITEMS, '{"item_id": "y", "x": {"a": 1}}']), "no column can hold"),
    "prepared, descending times": (prepared(times__txt=[f"u{u} 5 4 3 2 1" for u in range(4)]), "not in time order"),
    "prepared, times too few": (prepared(times__txt=["u0 1 2 3"]), "does not match"),
    "prepared, times in words": (prepared(times__txt=[f"u{u} a b c d e" for u in range(4)]), "cannot be read"),
    "prepared, an infinite time": (prepared(times__txt=[f"u{u} 1 2 3 4 inf" for u in range(4)]), "cannot be read"),
    "prepared, broken dataset.json": (prepared(dataset__json=b"{"), "not valid JSON"),
    "prepared, dataset.json is a list": (prepared(dataset__json=b"[]"), "wrong type"),
    "prepared, no such field": (prepared(dataset__json=b'{"text_fields": ["colour"]}'), "'colour'"),
    "prepared, odd separator": (prepared(dataset__json=b'{"separator": "+"}'), "separator"),
    "prepared, Latin-1": (prepared(sequences__txt="ué i1\n".encode("latin-1")), "Windows-1252"),
    "prepared, a broken gzip": (
        {"items.jsonl": text(ITEMS), "sequences.txt.gz": gzip.compress(text(SEQUENCES))[:20]},
        "too early",
    ),
    "prepared, zero bytes": (prepared(sequences__txt=b"\x00" * 100), ""),
}


def cases() -> Iterator[Case]:
    """Every folder with the three commands that read it, and from Python."""
    for name, files in GOOD.items():
        for verb in VERBS:
            act = lambda w, f=files, v=verb: _ask(w, f, v)  # noqa: E731
            yield Case("data files", f"{name}: {verb}", act, expected="success")
    for name, (files, says) in BAD.items():
        for verb in VERBS:
            act = lambda w, f=files, v=verb: _ask(w, f, v)  # noqa: E731
            yield Case("data files", f"{name}: {verb}", act, says=says)


VERBS = ("check", "import", "fit", "describe", "Python")


def _ask(world: World, files: dict[str, bytes], verb: str) -> Answer:
    folder = world.fresh() / "data"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    new = folder.with_name("new")
    if verb == "Python":
        return python(lambda: len(load_dataset(folder).users))
    if verb == "check":
        return checked(capsid("data", "check", folder))
    commands = {
        "import": ["data", "import", folder, "--out", new],
        "fit": ["fit", "popularity", "--data", folder, "--out", new],
        "describe": ["data", "describe", folder, "--json"],
    }
    return capsid(*commands[verb])
