from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from data_files import ITEMS, SEQUENCES, write
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.data.prepared import write_prepared
from capsid.data.sources import load_dataset
from capsid.errors import ArtifactError, CapsidError, DataError
from capsid.ragged import Ragged


def test_reads_users_items_and_types(shop: Path) -> None:
    data = load_dataset(shop)
    assert list(data.users) == ["u1", "u2", "u3"]
    assert list(data.items) == ["a", "b", "c", "d"]
    assert [data.items.ids(row) for row in data.sequences] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert data.attributes.schema == {
        "title": pl.String,
        "brand": pl.String,
        "categories": pl.List(pl.String),
        "price": pl.Float64,
    }
    assert data.attributes["price"].to_list() == [1.5, 2.0, None, 1300.5]
    assert data.attributes["categories"].to_list()[0] == ["Food", "Fruit"]
    assert data.text_fields == ("title", "brand", "categories")
    assert data.name == "shop"


def test_plain_files_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    lines = b"\xef\xbb\xbf" + "\r\n".join([*SEQUENCES, "", "  "]).encode()
    write(tmp_path / "sequences.txt", lines)
    write(tmp_path / "items.jsonl", "\r\n".join(json.dumps(i) for i in ITEMS).encode())
    data = load_dataset(str(tmp_path))
    assert data.users[0] == "u1"
    assert data.interactions == 9


def test_numeric_item_ids_become_text(tmp_path: Path) -> None:
    write(tmp_path / "items.jsonl", ['{"item_id": 7}', '{"item_id": "8"}'])
    write(tmp_path / "sequences.txt", ["u 7 8 7"])
    assert list(load_dataset(tmp_path).items) == ["7", "8"]


def test_dataset_json_names_data_and_text_fields(shop: Path) -> None:
    write(shop / "dataset.json", ['{"name": "Shop", "text_fields": ["title"]}'])
    data = load_dataset(shop)
    assert (data.name, data.text_fields) == ("Shop", ("title",))
    write(shop / "dataset.json", ['{"text_fields": ["titel"]}'])
    with pytest.raises(DataError, match=r"dataset\.json.*'titel'.*did you mean 'title'"):
        load_dataset(shop)
    write(shop / "dataset.json", ['{"text_fields": "title"}'])
    with pytest.raises(DataError, match="text_fields"):
        load_dataset(shop)


BROKEN = {
    "unknown item": ("sequences.txt.gz", ["u1 a b", "u2 a x b", "u3 x y"], r"sequences.txt.gz:2: item 'x'.*2 more"),
    "user twice": ("sequences.txt.gz", ["u1 a b", "u1 a b"], r"sequences.txt.gz:2: user 'u1' already occurs on line 1"),
    "no interactions": ("sequences.txt.gz", [], "no interactions"),
    "not UTF-8 sequences": ("sequences.txt.gz", b"u1 a b\nu\xff2 a b\n", r"sequences.txt.gz:2.*UTF-8"),
    "item twice": (
        "items.jsonl.gz",
        [json.dumps(i) for i in [*ITEMS, ITEMS[1]]],
        r"items.jsonl.gz:5: item 'b'.*line 2",
    ),
    "broken JSON": ("items.jsonl.gz", [json.dumps(ITEMS[0]), '{"item_id": "b", '], r"items.jsonl.gz:2: broken JSON"),
    "not an object": ("items.jsonl.gz", ["[1, 2]"], r"items.jsonl.gz:1: expected a JSON object"),
    "not UTF-8 items": ("items.jsonl.gz", b'{"item_id": "a", "title": "\xe9"}\n', r"items.jsonl.gz:1.*UTF-8"),
    "lone surrogate": ("items.jsonl.gz", ['{"item_id": "a", "title": "\\ud800"}'], r"items.jsonl.gz:1.*UTF-8"),
    "id with space": ("items.jsonl.gz", ['{"item_id": "a b"}'], r"items.jsonl.gz:1: the item's id is 'a b'"),
    "no id": ("items.jsonl.gz", ['{"title": "a"}'], r"items.jsonl.gz:1: the item's id is None"),
    "mixed types": (
        "items.jsonl.gz",
        ['{"item_id": "a", "size": 4}', '{"item_id": "b", "size": "big"}', '{"item_id": "c"}'],
        r"items.jsonl.gz:2: 'size' is 'big' \(text\), but the column holds whole number",
    ),
    "categories as text": ("items.jsonl.gz", ['{"item_id": "a", "categories": "x"}'], r":1: 'categories' is 'x'"),
    "price as words": ("items.jsonl.gz", ['{"item_id": "a", "price": "cheap"}'], r":1: 'price' is 'cheap'"),
    "nested": ("items.jsonl.gz", ['{"item_id": "a", "x": {"y": 1}}'], r"items.jsonl.gz:1: 'x' is"),
    "huge number": ("items.jsonl.gz", ['{"item_id": "a", "x": 99999999999999999999}'], r"items.jsonl.gz:1: 'x' is"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_input_names_file_and_line(shop: Path, case: str) -> None:
    file, lines, message = BROKEN[case]
    write(shop / file, lines)
    with pytest.raises(DataError, match=message):
        load_dataset(shop)


@pytest.mark.parametrize("file", ["sequences.txt.gz", "items.jsonl.gz"])
def test_truncated_and_damaged_gzip(shop: Path, file: str) -> None:
    lines = [f'{{"item_id": "{i}", "title": "{i * 7919}"}}' if file[0] == "i" else f"u{i} a b" for i in range(20_000)]
    whole = gzip.compress("\n".join(lines).encode())
    (shop / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"{file}:\d+: the file ends too early; [1-9]\d?,\d+ complete lines"):
        load_dataset(shop)
    (shop / file).write_bytes(b"this is not gzip")
    with pytest.raises(DataError, match="damaged"):
        load_dataset(shop)


def test_missing_file_is_named(shop: Path) -> None:
    (shop / "items.jsonl.gz").unlink()
    with pytest.raises(DataError, match=r"has no items\.jsonl\.gz"):
        load_dataset(shop)


def test_round_trip_keeps_everything(shop: Path, tmp_path: Path) -> None:
    once = load_dataset(shop)
    write_prepared(once, tmp_path / "copy")
    again = load_dataset(tmp_path / "copy")
    assert again.fingerprint == once.fingerprint
    assert again.attributes.equals(once.attributes)
    first = (tmp_path / "copy" / "items.jsonl.gz").read_bytes()
    write_prepared(again, tmp_path / "copy")  # An earlier import may be replaced; the bytes do not change.
    assert (tmp_path / "copy" / "items.jsonl.gz").read_bytes() == first


def test_column_order_survives_leading_nulls(tmp_path: Path) -> None:
    frame = pl.DataFrame({"brand": [None, "B"], "title": ["x", "y"], "year": [None, 3]})
    ragged = Ragged.from_rows([[0, 1]])
    data = Dataset("d", Vocabulary(["u"]), Vocabulary(["a", "b"]), ragged, frame, times=np.array([5, 6]))
    again = load_dataset(write_prepared(data, tmp_path / "d"))
    assert again.attributes.equals(frame)
    assert again.times is not None
    assert again.times.tolist() == [5, 6]
    assert again.times.dtype == np.int64


def test_changed_byte_and_half_written_folder_are_noticed(shop: Path, tmp_path: Path) -> None:
    copy = write_prepared(load_dataset(shop), tmp_path / "copy")
    write(copy / "sequences.txt.gz", ["u1 a b c"])
    with pytest.raises(DataError, match=r"sequences\.txt\.gz was changed"):
        load_dataset(copy)


def test_writing_refuses_strangers_folder_and_ids_with_tabs(shop: Path, tmp_path: Path) -> None:
    data = load_dataset(shop)
    before = {p.name: p.read_bytes() for p in shop.iterdir()}
    with pytest.raises(ArtifactError):
        write_prepared(data, shop)
    assert {p.name: p.read_bytes() for p in shop.iterdir()} == before
    bad = Dataset("d", Vocabulary(["u\t1"]), data.items, Ragged.from_rows([[0]]), data.attributes)
    with pytest.raises(DataError, match=r"'u\\t1'"):
        write_prepared(bad, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_times_that_do_not_fit(shop: Path) -> None:
    write(shop / "times.txt.gz", ["u1 1 2 3", "u2 1 2 3", "u3 1 2"])
    with pytest.raises(DataError, match=r"times\.txt\.gz:3"):
        load_dataset(shop)
    write(shop / "times.txt.gz", ["u1 1 2 3", "u2 1 2 3", "u3 1 2 x"])
    with pytest.raises(DataError, match=r"times\.txt\.gz:3"):
        load_dataset(shop)
    write(shop / "times.txt.gz", ["u1 1 2 3", "u3 1 2 3", "u2 1 2 3"])
    with pytest.raises(DataError, match=r"times\.txt\.gz:2"):
        load_dataset(shop)
    write(shop / "times.txt.gz", ["u1 1 2 3"])
    with pytest.raises(DataError, match="1 lines for 3 users"):
        load_dataset(shop)


ids = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=6)


@settings(deadline=None, max_examples=25)
@given(items=st.lists(ids, min_size=1, max_size=8, unique=True), data=st.data())
def test_any_ids_survive_the_files(
    tmp_path_factory: pytest.TempPathFactory, items: list[str], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(0, len(items) - 1), min_size=1, max_size=5), min_size=1, max_size=5))
    users = data.draw(st.lists(ids, min_size=len(rows), max_size=len(rows), unique=True))
    frame = pl.DataFrame(
        {
            "title": data.draw(
                st.lists(
                    st.text(max_size=5).map(lambda t: t.encode("utf-8", "replace").decode()),
                    min_size=len(items),
                    max_size=len(items),
                )
            )
        }
    )
    original = Dataset("d", Vocabulary(users), Vocabulary(items), Ragged.from_rows(rows), frame)
    folder = write_prepared(original, tmp_path_factory.mktemp("x") / "d")
    again = load_dataset(folder)
    assert again.fingerprint == original.fingerprint


@settings(deadline=None, max_examples=40)
@given(
    noise=st.binary(max_size=60), where=st.sampled_from(["sequences.txt", "items.jsonl", "dataset.json", "times.txt"])
)
def test_any_bytes_give_data_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, where: str
) -> None:
    folder = tmp_path_factory.mktemp("x")
    write(folder / "sequences.txt", SEQUENCES)
    write(folder / "items.jsonl", [json.dumps(i) for i in ITEMS])
    (folder / where).write_bytes(noise)
    try:
        load_dataset(folder)
    except CapsidError as error:
        assert error.message  # noqa: PT017
