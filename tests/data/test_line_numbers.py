"""Messages about rows of text files name the lines that an editor shows, whatever stands above them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from data_files import write
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.cli.input_files import read_histories
from capsid.data.check import check_path
from capsid.data.dataset import Dataset
from capsid.data.findings import Findings
from capsid.data.streaming import Held, import_tables
from capsid.data.table_files import BlockSize, table_blocks
from capsid.errors import DataError

HEAD = "user,item,time,note"
# What may stand above a row, and how many lines it takes.
ABOVE = {
    "one too many": ("u,a,1,x,y", 1),
    "blank": ("", 1),
    "line breaks": ('u,a,1,"two\n\nlines"', 3),
    "broken over two lines": ('u,a,1,"two\nlines",y', 2),
    "not UTF-8": ("u,a,1,\udcff", 1),
    "sound": ('u,a,1,"a ""word"""', 1),
}
SIZES = (None, BlockSize(rows=2, bytes=30), BlockSize(rows=1, bytes=1))


def places(path: Path, size: BlockSize | None) -> list[str]:
    """Where the rows of user `me` stand."""
    blocks = table_blocks(path, Findings(), size)
    return [b.where(n) for b in blocks for n, row in enumerate(b.frame.iter_rows(named=True)) if row["user"] == "me"]


@settings(deadline=None, max_examples=60)
@given(
    above=st.lists(st.sampled_from(sorted(ABOVE)), max_size=8),
    between=st.lists(st.sampled_from(sorted(ABOVE)), max_size=4),
    lead=st.integers(0, 2),
    end=st.sampled_from(["\n", ""]),
)
def test_rows_of_a_csv_know_their_lines(
    above: list[str], between: list[str], lead: int, end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = lead + 2 + sum(ABOVE[name][1] for name in above)
    second = first + 2 + sum(ABOVE[name][1] for name in between)
    parts = [HEAD, *(ABOVE[n][0] for n in above), 'me,a,1,"x\ny"', *(ABOVE[n][0] for n in between), "me,b,2,"]
    path = tmp_path_factory.mktemp("table") / "interactions.csv"
    path.write_bytes(("\n" * lead + "\n".join(parts) + end).encode("utf-8", "surrogateescape"))
    for size in SIZES:
        assert places(path, size) == [f"interactions.csv:{first}", f"interactions.csv:{second}"], size


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_json_lines_and_parquet(size: BlockSize | None, tmp_path: Path) -> None:
    me, you = (json.dumps({"user": user}) for user in ("me", "you"))
    path = write(tmp_path / "interactions.jsonl", [you, "{", "", "[]", me, "{", me])
    assert places(path, size) == ["interactions.jsonl:5", "interactions.jsonl:7"]
    pl.DataFrame({"user": ["you", "me", "me"]}).write_parquet(tmp_path / "interactions.parquet")
    assert places(tmp_path / "interactions.parquet", size) == [f"interactions.parquet row {n}" for n in (2, 3)]


BROKEN = "u,a,1,2,3,4,5,6"
INTERACTIONS = ["user,item,time,stars", BROKEN, "u,a,1,5", "u,zz,2,5", BROKEN, "", "u,,3,5", "u,a,4,good", "u,b,5,5"]
ITEMS = ["item,title,price", "a,A,1,too,many", "a,A,dear", "b,B,2", "", "b,C,3", ",D,4"]


def test_every_message_of_a_check_names_its_line(tmp_path: Path) -> None:
    write(tmp_path / "interactions.csv", INTERACTIONS)
    write(tmp_path / "items.csv", ITEMS)
    found = {(f.code, f.where) for f in check_path(tmp_path, min_rating=1).findings if f.severity == "error"}
    assert found == {
        ("broken-line", "interactions.csv:2"),
        ("unknown-id", "interactions.csv:4"),
        ("broken-line", "interactions.csv:5"),
        ("missing-value", "interactions.csv:7"),
        ("mixed-types", "interactions.csv:8"),
        ("broken-line", "items.csv:2"),
        ("mixed-types", "items.csv:3"),
        ("duplicate-id", "items.csv:6"),
        ("missing-value", "items.csv:7"),
        ("nothing-to-evaluate", "sequences"),
    }


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    """Whether other lines of the file are broken or not."""
    write(tmp_path / "interactions.csv", ["user,item,time", *[f"u,{item},{n}" for n, item in enumerate("abc")], ""])
    for more in ([], ["d,D,too,many"]):
        write(tmp_path / "items.csv", ["item,title", "a,A", "", "b,B", "c,C", *more, ""])
        found = [(f.code, f.where) for f in check_path(tmp_path).findings if f.severity == "error"]
        assert found == [("broken-line", "items.csv:6")] * len(more)


def test_parts_name_their_own_files(tmp_path: Path) -> None:
    write(tmp_path / "interactions" / "1.csv", ["user,item,time", "u,a,1", "u,a,2", "u,a,3"])
    write(tmp_path / "interactions" / "2.csv", ["user,item,time", '"u",a,4', "u,zz,5"])
    write(tmp_path / "items.csv", ["item,title", "a,A"])
    (found,) = [f for f in check_path(tmp_path).findings if f.severity == "error"]
    assert (found.code, found.where) == ("unknown-id", "interactions/2.csv:3")
    with pytest.raises(DataError, match=r"^interactions/2\.csv:3: item 'zz'"):
        import_tables(tmp_path, tmp_path / "out", held=Held(block=BlockSize(rows=1, bytes=8)))


def test_a_table_of_histories_names_its_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "week.csv", ["user,item,time,note", 'u,i1,1,"two\nlines"', "u,i2,,", "u,,2,"])
    with pytest.raises(DataError, match=r"^week\.csv:4: timestamp is missing \(and 1 more error\)") as caught:
        read_histories(path)
    assert "data check" not in str(caught.value.hint), "it takes folders, not this file"


def test_rows_of_a_frame_are_counted() -> None:
    with pytest.raises(DataError, match=r"^interactions row 2: item is missing") as caught:
        Dataset.from_frames({"user": ["u", "u", None], "item": ["a", None, "b"], "time": [1, 2, 3]})
    assert "data check" not in str(caught.value.hint)
