from __future__ import annotations

import datetime as dt
from pathlib import Path

import pandas
import polars as pl
import pyarrow as pa
import pytest
from data_files import write
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.data.dataset import Dataset
from capsid.data.sources import load_dataset
from capsid.errors import DataError


def rows(data: Dataset) -> dict[str, list[str]]:
    return {user: data.items.ids(row) for user, row in zip(data.users, data.sequences)}


def test_csv_with_aliases_keeps_ids_as_written(tmp_path: Path) -> None:
    write(tmp_path / "interactions.csv", ["User_ID,item_id,ts,rating", "007,b,3,5", "007,a,1,2", "8,a,2,4", "8,b,2,4"])
    write(
        tmp_path / "items.csv",
        ["item_id,title,categories,price,year", 'b,"Bread, white",Food|Bakery,$2.5,1999', "a,Apple,Food,,2001"],
    )
    data = load_dataset(tmp_path, ties="file")
    assert rows(data) == {"007": ["a", "b"], "8": ["a", "b"]}
    assert list(data.items) == ["b", "a"]
    assert data.times is not None
    assert data.times.tolist() == [1, 3, 2, 2]
    assert data.attributes.schema == {
        "title": pl.String,
        "categories": pl.List(pl.String),
        "price": pl.Float64,
        "year": pl.Int64,
    }
    assert data.attributes["categories"].to_list() == [["Food", "Bakery"], ["Food"]]
    assert data.attributes["price"].to_list() == [2.5, None]
    assert rows(load_dataset(tmp_path, min_rating=4, ties="file")) == {"007": ["b"], "8": ["a", "b"]}


def test_parquet_without_items(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1, 1, 2], "item": [10, 11, 10], "timestamp": [2.5, 1.5, 9.0]})
    frame.write_parquet(tmp_path / "interactions.parquet")
    data = load_dataset(tmp_path)
    assert rows(data) == {"1": ["11", "10"], "2": ["10"]}
    assert list(data.items) == ["10", "11"]
    assert data.text_fields == ()


@pytest.mark.parametrize(
    "times",
    [
        [dt.datetime(2024, 1, 2, 0, 0, 1), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)],
        [dt.date(2024, 1, 3), dt.date(2024, 1, 1), dt.date(2024, 1, 2)],
        ["2024-01-02 00:00:01", "2024-01-01", "2024-01-02T00:00:00"],
        ["2024-01-02T00:00:01Z", "2024-01-01T00:00:00+00:00", "2024-01-02T01:00:00+01:00"],
        ["10", "9", "9.5"],
        [3, 1, 2],
    ],
)
def test_times_of_any_form_give_the_order(times: list[object]) -> None:
    data = Dataset.from_frames({"user": ["u"] * 3, "item": ["late", "first", "middle"], "time": times})
    assert rows(data) == {"u": ["first", "middle", "late"]}


def test_epoch_seconds_of_dates() -> None:
    data = Dataset.from_frames({"user": ["u"], "item": ["a"], "date": [dt.date(1970, 1, 2)]})
    assert data.times is not None
    assert data.times.tolist() == [86400.0]


def test_from_frames_accepts_pandas_arrow_and_named_columns() -> None:
    columns = {"who": ["u", "u"], "what": ["a", "b"], "when": [2, 1]}
    names = {"user": "who", "item": "what", "timestamp": "when"}
    frames: list[object] = [pl.DataFrame(columns), pl.LazyFrame(columns), pa.table(columns)]
    frames.append(pandas.DataFrame(columns))
    for frame in frames:
        assert rows(Dataset.from_frames(frame, name="x", **names)) == {"u": ["b", "a"]}
    items = pandas.DataFrame({"item": ["b", "a", "c"], "title": ["B", None, "C"]})
    data = Dataset.from_frames(pandas.DataFrame(columns), items, **names)
    assert list(data.items) == ["b", "a", "c"]
    assert data.attributes["title"].to_list() == ["B", None, "C"]
    with_gap = pandas.DataFrame({"user": [1, None], "item": ["a", "b"], "timestamp": [1, 2]})
    with pytest.raises(DataError, match="interactions row 2: user is missing"):
        Dataset.from_frames(with_gap)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40))
def test_time_order_with_file_order_for_ties(events: list[tuple[int, int, int]]) -> None:
    frame = {"user": [e[0] for e in events], "item": [e[1] for e in events], "timestamp": [e[2] for e in events]}
    data = Dataset.from_frames(frame)
    for user, found in rows(data).items():
        mine = [e for e in events if str(e[0]) == user]
        assert found == [str(e[1]) for e in sorted(mine, key=lambda e: e[2])]
    assert list(data.users) == list(dict.fromkeys(str(e[0]) for e in events))


BROKEN = {
    "no time": (["user,item", "u,a"], None, r"no column for the timestamp; it has: user, item.*timestamp, time, ts"),
    "no item": (["user,time", "u,1"], None, "no column for the item"),
    "empty": ([], None, "is empty"),
    "header only": (["user,item,time"], None, "no interactions"),
    "bad time": (["user,item,time", "u,a,1", "u,b,soon"], None, r"\.csv:3: timestamp 'soon' cannot be read"),
    "missing id": (["user,item,time", "u,,1"], None, r"\.csv:2: item is missing"),
    "unknown item": (
        ["user,item,time", "u,a,1", "u,x,2"],
        ["item,title", "a,A"],
        r"\.csv:3: item 'x' is not in items\.csv",
    ),
    "item twice": (
        ["user,item,time", "u,a,1"],
        ["item,title", "a,A", "a,B"],
        r"items\.csv:3: item 'a' occurs twice",
    ),
    "bad price": (["user,item,time", "u,a,1"], ["item,price", "a,dear"], r"items\.csv:2: the price 'dear'"),
    "too many fields": (["user,item,time", "u,a,1", "u,b,2,3,4"], None, r"interactions\.csv:3: the line has 5 fields"),
    "not UTF-8": (b"user,item,time\nu,a,1\nu,\xff\xfe,2\n", None, r"interactions\.csv:3.*UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tables(tmp_path: Path, case: str) -> None:
    interactions, items, message = BROKEN[case]
    write(tmp_path / "interactions.csv", interactions)
    if items:
        write(tmp_path / "items.csv", items)
    with pytest.raises(DataError, match=message):
        load_dataset(tmp_path)


def test_damaged_parquet_and_odd_columns(tmp_path: Path) -> None:
    (tmp_path / "interactions.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"interactions\.parquet cannot be read"):
        load_dataset(tmp_path)
    events = {"user": ["u"], "item": ["a"], "timestamp": [1]}
    with pytest.raises(DataError, match="'size' of type Struct"):
        Dataset.from_frames(events, pl.DataFrame({"item": ["a"], "size": [{"w": 1}]}))
    with pytest.raises(DataError, match="fractions"):
        Dataset.from_frames({"user": [1.5], "item": ["a"], "timestamp": [1]})
    with pytest.raises(DataError, match="cannot hold ids"):
        Dataset.from_frames({"user": [["x"]], "item": ["a"], "timestamp": [1]})
    with pytest.raises(DataError, match="cannot be read as time"):
        Dataset.from_frames({"user": ["u"], "item": ["a"], "timestamp": [True]})
    with pytest.raises(DataError, match="cannot be read as a table"):
        Dataset.from_frames(3)
    with pytest.raises(DataError, match="no rating is 9"):
        Dataset.from_frames(events | {"rating": [3]}, min_rating=9)
