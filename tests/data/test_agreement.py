"""`data check`, `data import` and `fit` accept the same data, and say the same about data that they refuse."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from data_files import ITEMS, SEQUENCES, write

from capsid.cli.main import run
from capsid.data.prepared import write_prepared
from capsid.data.sources import load_dataset

HEAD = "user,item,timestamp,rating"
ROWS = [f"u{u},i{(u + t) % 4},{t},{t % 5}" for u in range(4) for t in range(5)]


def spaced(rows: list[str]) -> list[str]:
    return [row.replace("i", "item ").replace("u", "user ") for row in rows]


def capsid(*arguments: object) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run([str(a) for a in arguments])
    return code, said.getvalue()


def prepared(folder: Path, times: list[str]) -> Path:
    import json

    write(folder / "items.jsonl", [json.dumps(item) for item in ITEMS])
    write(folder / "sequences.txt", SEQUENCES)
    write(folder / "times.txt", times)
    return folder


# Name -> rows of the table, whether they can be used, and what is said if not.
TABLES: dict[str, tuple[list[str], bool, str]] = {
    "plain": ([HEAD, *ROWS], True, ""),
    "ids with spaces": ([HEAD, *spaced(ROWS)], True, ""),
    "ratings that are words": ([HEAD, *(f"{r}x" for r in ROWS)], True, ""),
    "descending times": ([HEAD, *(f"u{u},i{t},{9 - t},1" for u in range(4) for t in range(4))], True, ""),
    "a tab in an id": ([HEAD, *ROWS, '"u\t1",i1,7,3'], False, "'u\\t1' contains a tab"),
    "a line break in an id": ([HEAD, *ROWS, 'u1,"i\n1",7,3'], False, "'i\\n1' contains a tab or line break"),
    "a time that is a word": ([HEAD, *ROWS, "u1,i1,yesterday,3"], False, "timestamp 'yesterday' cannot be read"),
    "an infinite time": ([HEAD, *ROWS, "u1,i1,inf,3"], False, "timestamp 'inf' cannot be read"),
    "no user": ([HEAD, *ROWS, ",i1,3,3"], False, "user is missing"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path) -> None:
    rows, usable, message = TABLES[name]
    write(tmp_path / "data" / "interactions.csv", rows)
    agree(tmp_path, usable, message)


def test_words_as_ratings_are_named_where_ratings_are_used(tmp_path: Path) -> None:
    write(tmp_path / "data" / "interactions.csv", [HEAD, *ROWS, "u1,i1,9,good"])
    for command in (["data", "check"], ["data", "import", "--out", tmp_path / "new"]):
        code, said = capsid(*command, tmp_path / "data", "--min-rating", "2")
        assert (code, "the rating 'good' is not a number" in said) == (1, True), said
    assert capsid("data", "check", tmp_path / "data")[0] == 0


def test_descending_times_of_a_prepared_folder(tmp_path: Path) -> None:
    prepared(tmp_path / "data", ["u1 3 2 1", "u2 1 2 3", "u3 1 2 3"])
    agree(tmp_path, False, "user 'u1' has items that are not in time order")


@pytest.mark.parametrize("time", ["nan", "inf", "1e999", "9" * 5_000])
def test_times_that_are_no_numbers(time: str, tmp_path: Path) -> None:
    prepared(tmp_path / "data", [f"u1 1 2 {time}", "u2 1 2 3", "u3 1 2 3"])
    agree(tmp_path, False, "a time cannot be read")


def test_ids_with_spaces_come_back_from_a_prepared_folder(tmp_path: Path) -> None:
    write(tmp_path / "data" / "interactions.csv", [HEAD, *spaced(ROWS)])
    before = load_dataset(tmp_path / "data")
    after = load_dataset(write_prepared(before, tmp_path / "new"))
    assert list(after.items) == list(before.items) == [f"item {n}" for n in range(4)]
    assert list(after.users) == list(before.users)
    assert after.fingerprint == before.fingerprint


def test_an_odd_separator_is_refused(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "data", ["u1 1 2 3", "u2 1 2 3", "u3 1 2 3"])
    write(folder / "dataset.json", ['{"separator": "+"}'])
    agree(tmp_path, False, "the separator must be a space or a tab, got '+'")


def agree(folder: Path, usable: bool, message: str) -> None:
    check, about = capsid("data", "check", folder / "data")
    imported, refused = capsid("data", "import", folder / "data", "--out", folder / "imported")
    fitted, unfit = capsid("fit", "popularity", "--data", folder / "data", "--out", folder / "run")
    assert (check, imported, fitted) == ((0, 0, 0) if usable else (1, 1, 1)), (about, refused, unfit)
    for said in (about, refused, unfit):
        assert message in said
        assert usable or "hint: " in said
