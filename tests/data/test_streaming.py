"""Importing in blocks writes the bytes that importing in memory writes, whatever the blocks and partitions are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from data_files import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capsid.data.dataset import k_core
from capsid.data.mapped import write_mapped
from capsid.data.sources import load_dataset
from capsid.data.streaming import Held, Numbering, import_dataset, import_tables
from capsid.data.table_files import BlockSize
from capsid.errors import CapsidError, DataError

Event = tuple[object, object, object]
USERS = st.sampled_from(["u", "v w", "007", "7", "ü", 'say "hi"', "a,b"])
ITEMS = st.sampled_from(["a", "b", "c", "long item", "é", "7.0"])
WHOLE, FRACTIONS = st.integers(-3, 3), st.sampled_from([0.5, -1.25, 3.0, 1e20])
CATALOGUE = ["a", "b", "c", "long item", "é", "7.0", *"01234"]
DATES = st.sampled_from(["2024-05-31", "31.05.2024", "2024-05-31T18:00:00Z", "13/01/2024", "02/01/2024"])
TEXT_TIMES = st.sampled_from(["-0", "0", "1", "2", "-0.5", "1e3"])


def events(times: st.SearchStrategy[object]) -> st.SearchStrategy[list[Event]]:
    return st.lists(st.tuples(USERS, ITEMS, times), min_size=1, max_size=25)


WHOLE_IDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), WHOLE), min_size=1, max_size=25)
WORLDS = st.one_of(
    WHOLE_IDS, events(WHOLE), events(FRACTIONS), events(DATES), events(TEXT_TIMES), events(WHOLE | FRACTIONS)
)


def frame(rows: list[Event]) -> pl.DataFrame:
    names = ("user", "item", "timestamp")
    return pl.DataFrame({n: pl.Series([row[i] for row in rows], strict=False) for i, n in enumerate(names)})


def write_table(path: Path, rows: list[Event], form: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        frame(rows).write_parquet(path, row_group_size=3)
    elif form == "csv":
        # A row may go over several lines, which a block must not cut.
        frame(rows).with_columns(note=pl.lit('one\ntwo, "three"\n')).write_csv(path)
    else:
        text = "".join(json.dumps(dict(zip(("user", "item", "ts"), row))) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def outcome(out: Path, make: object) -> object:
    """The bytes that were written, or the error."""
    try:
        make(out)  # type: ignore[operator]
    except CapsidError as error:
        assert not out.exists()
        return type(error), error.message.split(" (and ")[0]
    return contents(out)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=WORLDS,
    form=st.sampled_from(["parquet", "csv", "jsonl", "jsonl.gz"]),
    parts=st.integers(1, 3),
    block=st.builds(BlockSize, rows=st.integers(1, 9), bytes=st.integers(1, 80)),
    partition=st.integers(1, 12),
    k=st.sampled_from([None, 1, 2, 3]),
    catalogue=st.booleans(),
)
def test_streaming_equals_memory_to_the_bit(
    rows: list[Event],
    form: str,
    parts: int,
    block: BlockSize,
    partition: int,
    k: int | None,
    catalogue: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("world")
    size = -(-len(rows) // parts)
    for number, start in enumerate(range(0, len(rows), size)):
        name = f"interactions.{form}" if parts == 1 else f"interactions/part-{number}.{form}"
        write_table(folder / "data" / name, rows[start : start + size], form)
    if catalogue:
        write(
            folder / "data" / "items.csv", ["item,title", "unseen,U", *(f"{i},T" for i in "abcé"), "long item,", "7.0,"]
        )

    def in_memory(out: Path) -> None:
        dataset = load_dataset(folder / "data", ties="file")
        write_mapped(dataset if k is None else k_core(dataset, k), out)

    def in_blocks(out: Path) -> None:
        import_tables(folder / "data", out, k=k, held=Held(block=block, partition=partition))

    assert outcome(folder / "blocks", in_blocks) == outcome(folder / "memory", in_memory)
    assert not list(folder.glob(".*"))


def test_text_numbers_and_dates_of_late_blocks_decide_how_all_are_read(tmp_path: Path) -> None:
    small = Held(block=BlockSize(rows=1, bytes=8), partition=1)
    whole = ["1", "2", "3"]
    for times in (whole, ["1", "2", "2.5"], ["03/04/2024", "05/06/2024", "13/01/2024"], ["-0", "1", "0.5"]):
        write(tmp_path / "data" / "interactions.csv", ["user,item,ts", *(f"u,{n},{t}" for n, t in enumerate(times))])
        import_tables(tmp_path / "data", tmp_path / "out", held=small)
        found, expected = load_dataset(tmp_path / "out"), load_dataset(tmp_path / "data")
        assert found.times is not None
        assert found.times.dtype == (np.int64 if times is whole else np.float64)
        assert found.times.tobytes() == expected.times.tobytes()  # type: ignore[union-attr]
        assert found.fingerprint == expected.fingerprint


BROKEN = {
    "a time that is NaN": ("csv", ["user,item,ts", "u,a,1", "u,b,nan"], r"interactions\.csv:3: timestamp 'nan'"),
    "too many fields": ("csv", ["user,item,ts", "u,a,1", "u,a,2", "u,b,2,3"], r"interactions\.csv:4: the line has 4"),
    "not UTF-8": ("csv", b"user,item,ts\nu,a,1\nu,\xff,2\n", r"interactions\.csv:3: .*UTF-8"),
    "a tab in an id": ("csv", ["user,item,ts", "u,a,1", '"u\tv",a,1'], "csv:3: the id 'u\\\\tv' contains a tab"),
    "no item": ("csv", ["user,item,ts", "u,a,1", "u,,1"], "csv:3: item is missing"),
    "no rows": ("csv", ["user,item,ts"], "holds no interactions"),
    "nothing": ("csv", b"", "is empty"),
    "no time": ("csv", ["user,item", "u,a"], "no column for the timestamp"),
    "broken JSON": ("jsonl", ['{"user": 1, "item": 2, "ts": 3}', '{"user"'], r"interactions\.jsonl:2: broken JSON"),
    "two types": ("jsonl", [f'{{"user": {u}, "item": 2, "ts": 3}}' for u in ("1.5", '"x"')], "'user' holds text, but"),
    "truncated": ("csv.gz", b"user,item,ts\n" + b"u,a,1\n" * 9999, "cannot be unpacked"),
    "truncated Parquet": ("parquet", b"PAR1 and no more", "cannot be read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_input_writes_nothing(name: str, tmp_path: Path) -> None:
    ending, lines, message = BROKEN[name]
    path = write(tmp_path / "data" / f"interactions.{ending}", lines)
    if name == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=message) as caught:
        import_tables(tmp_path / "data", tmp_path / "out", held=Held(block=BlockSize(rows=1, bytes=8), partition=1))
    assert caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_parts_that_do_not_fit_together(tmp_path: Path) -> None:
    parts = tmp_path / "data" / "interactions"
    write(parts / "a.csv", ["user,item,ts", "u,a,1"])
    write(parts / "b.csv", ["user,product,ts", "u,b,2"])
    for read in (lambda: load_dataset(tmp_path / "data"), lambda: import_tables(tmp_path / "data", tmp_path / "out")):
        with pytest.raises(DataError, match=r"interactions/b\.csv has no column 'item'; it has: user, product, ts"):
            read()
    write(parts / "b.jsonl", ["{}"])
    with pytest.raises(DataError, match=r"holds \.csv and \.jsonl"):
        load_dataset(tmp_path / "data")
    write(parts / "notes.txt", [""])
    with pytest.raises(DataError, match=r"holds notes\.txt, which is no table"):
        load_dataset(tmp_path / "data")


def test_ratings_and_unknown_items(tmp_path: Path) -> None:
    write(tmp_path / "data" / "interactions.csv", ["user,item,ts,stars", "u,a,1,5", "u,b,2,2", "v,c,3,4", "v,a,1,5"])
    import_dataset(tmp_path / "data", tmp_path / "out", min_rating=4, mapped=True)
    assert load_dataset(tmp_path / "out").fingerprint == load_dataset(tmp_path / "data", min_rating=4).fingerprint
    with pytest.raises(DataError, match="no rating is 9 or more"):
        import_dataset(tmp_path / "data", tmp_path / "none", min_rating=9, mapped=True)
    write(tmp_path / "data" / "items.csv", ["item,title", "a,A", "b,B"])
    with pytest.raises(DataError, match=r"interactions\.csv:4: item 'c' is not in items\.csv"):
        import_dataset(tmp_path / "data", tmp_path / "none", mapped=True)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    blocks=st.lists(st.lists(st.sampled_from(["a", "b", "", "aa", "é", "x" * 40]), max_size=6), max_size=8),
    collide=st.booleans(),
)
def test_numbers_are_those_of_a_dictionary_even_if_all_hashes_collide(
    blocks: list[list[str]], collide: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    known: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch, Numbering(tmp_path_factory.mktemp("n") / "ids") as numbering:
        if collide:
            patch.setattr(pl.Series, "hash", lambda self: pl.Series(np.zeros(len(self), dtype=np.uint64)))
        for block in blocks:
            expected = [known.setdefault(text, len(known)) for text in block]
            assert numbering.numbers(pl.Series(block, dtype=pl.String)).tolist() == expected
        assert numbering.numbers(pl.Series(["new", *known]), grow=False).tolist() == [-1, *range(len(known))]
        assert numbering.count == len(known)
