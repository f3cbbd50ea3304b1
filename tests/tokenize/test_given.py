"""Codes from a file: they come back as they are, through a stored tokenizer too, and wrong files are named by line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from worlds import make_table

from capsid.errors import ConfigError, DataError
from capsid.settings import check_together
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.lookup import GivenCodes
from capsid.tokenize.rivals.quantisers import ResidualKMeans

VECTORS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
TABLE = make_table(VECTORS)


def write(path: Path, rows: dict[str, list[int]]) -> Path:
    path.write_text("".join(json.dumps({"item": i, "codes": c}) + "\n" for i, c in rows.items()), encoding="utf-8")
    return path


def some_codes(seed: int = 0) -> dict[str, list[int]]:
    rng = np.random.default_rng(seed)
    return {item: rng.integers(0, 5, size=rng.integers(1, 4)).tolist() for item in TABLE.items}


def test_codes_come_back_as_they_are(tmp_path: Path) -> None:
    rows = some_codes() | {"of another catalogue": [9, 9, 9, 9]}
    fitted = GivenCodes(path=str(write(tmp_path / "c.jsonl", rows))).fit(TABLE)
    assert [c.tolist() for c in fitted.encode(TABLE)] == [rows[item] for item in TABLE.items]
    assert fitted.sizes == (5, 5, 5)
    loaded = GivenCodes(path="gone").load_state(fitted.state())
    part = TABLE.take(np.array([5, 2]))
    assert [c.tolist() for c in loaded.encode(part)] == [rows[item] for item in part.items]
    for ours, theirs in zip(loaded.centres() or (), fitted.centres() or (), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_codes_of_another_tokenizer_make_the_same_ids_and_decode_as_well(tmp_path: Path) -> None:
    other = ResidualKMeans(codebooks=(6, 5, 4)).fit(TABLE)
    codes = other.encode(TABLE)
    rows = dict(zip(TABLE.items, (c.tolist() for c in codes)))
    path = str(write(tmp_path / "c.jsonl", rows))
    given = ItemTokenizer(tokenizer=GivenCodes(path=path)).fit(TABLE)
    assert given.ids.encoded == codes
    unit_ND = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    decoded = GivenCodes(path=path).fit(make_table(unit_ND)).decode(codes)
    assert decoded is not None
    assert np.linalg.norm(unit_ND - decoded, axis=1).mean() < 0.9


WRONG = {
    "not json": ("{", "c.jsonl:1: not a line of JSON"),
    "no codes": ('{"item": "a"}', "c.jsonl:1: the line must have an item and codes"),
    "a list": ("[1]", "c.jsonl:1: the line must have an item and codes"),
    "empty": ('{"item": "a", "codes": []}', r"codes must be 1 or more whole numbers from 0 to 1,048,575, got \[\]"),
    "negative": ('{"item": "a", "codes": [-1]}', r"got \[-1\]"),
    "true": ('{"item": "a", "codes": [true]}', r"got \[True\]"),
    "half": ('{"item": "a", "codes": [0.5]}', r"got \[0.5\]"),
    "twice": ('{"item": "a", "codes": [1]}\n{"item": "a", "codes": [2]}', "c.jsonl:2: item 'a' has a line already"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lines_are_named(case: str, tmp_path: Path) -> None:
    text, message = WRONG[case]
    (tmp_path / "c.jsonl").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        GivenCodes(path=str(tmp_path / "c.jsonl")).fit(TABLE)


def test_items_without_codes_are_named(tmp_path: Path) -> None:
    rows = some_codes()
    gone = TABLE.items[7]
    del rows[gone]
    path = write(tmp_path / "c.jsonl", rows)
    with pytest.raises(DataError, match=f"has no codes for 1 of 60 items, such as '{gone}'"):
        GivenCodes(path=str(path)).fit(TABLE)
    fitted = GivenCodes(path=str(write(path, some_codes()))).fit(TABLE)
    with pytest.raises(DataError, match="item 'new' has no codes: they were read from a file at the fit"):
        fitted.encode(make_table(VECTORS[:1], names=["new"]))
    with pytest.raises(ConfigError, match=r"tokenizer.path must name a file of codes"):
        check_together(GivenCodes())
