"""Forms that tables come in: separators, encodings, dates, JSON lines; what cannot be read is named with its value."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from capsid.data.check import check_path
from capsid.data.sources import load_dataset
from capsid.errors import DataError

ROWS = [("u", "a", 3), ("u", "b", 1), ("v", "a", 1), ("v", "c", 2)]


def lines(separator: str = ",", header: str = "user,item,timestamp") -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in [header.split(","), *ROWS])


def expected(folder: Path) -> None:
    data = load_dataset(folder)
    assert [data.items.ids(row) for row in data.sequences] == [["b", "a"], ["a", "c"]]
    assert list(data.users) == ["u", "v"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_encodings_are_found(tmp_path: Path, separator: str, encoding: str) -> None:
    (tmp_path / "interactions.csv").write_text(lines(separator), encoding=encoding)
    expected(tmp_path)


def test_a_quoted_separator_is_none(tmp_path: Path) -> None:
    (tmp_path / "interactions.csv").write_text(lines())
    (tmp_path / "items.csv").write_text('item_id,"title; long; form"\na,"x;y;z"\nb,y\nc,z\n')
    data = load_dataset(tmp_path)
    assert data.attributes.columns == ["title; long; form"]


def test_json_lines_and_gzip(tmp_path: Path) -> None:
    records = [dict(zip(("user_id", "asin", "ts"), row)) for row in ROWS]
    text = "".join(json.dumps(r) + "\n" for r in records)
    (tmp_path / "interactions.jsonl").write_text(text)
    expected(tmp_path)
    (tmp_path / "items.jsonl").write_text("".join(f'{{"item_id": "{i}", "title": "T {i}"}}\n' for i in "abc"))
    expected(tmp_path)
    assert load_dataset(tmp_path).title(0) == "T a"
    for name, content in (("jsonl.gz", text), ("csv.gz", lines()), ("tsv", lines("\t")), ("tsv.gz", lines("\t"))):
        for old in tmp_path.glob("interactions.*"):
            old.unlink()
        path = tmp_path / f"interactions.{name}"
        path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
        expected(tmp_path)
    (tmp_path / "interactions.tsv.gz").unlink()
    (tmp_path / "interactions.jsonl").write_text('{"user": "u"\n[1]\n')
    report = check_path(tmp_path)
    assert not report.ok
    assert any("interactions.jsonl:1" in f.where for f in report.findings)


DATES = {
    "2024-05-31": 1717113600,
    "2024/05/31": 1717113600,
    "31.05.2024": 1717113600,
    "31/05/2024": 1717113600,
    "05/31/2024": 1717113600,
    "2024-05-31 18:00:00": 1717178400,
    "31.05.2024 18:00": 1717178400,
    "2024-05-31T18:00:00Z": 1717178400,
    "31 May 2024": 1717113600,
    "31-May-2024 18:00": 1717178400,
    '"May 31, 2024"': 1717113600,
    '"June 1, 2024 06:00 PM"': 1717264800,
    "05/31/2024 06:00:00 PM": 1717178400,
}


@pytest.mark.parametrize("text", DATES)
def test_dates(tmp_path: Path, text: str) -> None:
    (tmp_path / "interactions.csv").write_text(f"user,item,timestamp\nu,a,{text}\nu,b,{text}\n")
    data = load_dataset(tmp_path)
    assert data.times is not None
    assert data.times.tolist() == [DATES[text]] * 2


def test_a_date_that_can_be_two_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "interactions.csv").write_text("user,item,timestamp\nu,a,03/04/2024\nu,b,05/06/2024\n")
    with pytest.raises(DataError, match="timestamp '03/04/2024' cannot be read") as caught:
        load_dataset(tmp_path)
    assert "one order of day and month" in str(caught.value.hint)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "interactions.csv").write_text("user,item,timestamp,rating\nu,a,1,good\nu,b,2,5\n")
    with pytest.raises(DataError, match="the rating 'good' is not a number"):
        load_dataset(tmp_path, min_rating=3)
    (tmp_path / "interactions.csv").write_bytes("user,item,timestamp\nu,Amélie,1\nu,b,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"not valid UTF-8 text: b'Am\\xe9lie', in Windows-1252 'Amélie'"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_that_are_recognised(encoding: str, tmp_path: Path) -> None:
    text = "user;item;timestamp\n" + "".join(f"u;Amélie {n};{n}\n" for n in range(5))
    (tmp_path / "interactions.csv").write_bytes(text.encode(encoding))
    data = load_dataset(tmp_path)
    assert list(data.items) == [f"Amélie {n}" for n in range(5)]


def test_json_lines_in_another_encoding_are_named(tmp_path: Path) -> None:
    line = '{"user": "u", "item": "Amélie", "timestamp": 1}\n'
    (tmp_path / "interactions.jsonl").write_bytes(line.encode("cp1252"))
    with pytest.raises(DataError, match=r"interactions\.jsonl:1: .* in Windows-1252 .*Amélie"):
        load_dataset(tmp_path)
    (tmp_path / "interactions.jsonl").write_bytes(line.encode("utf-16"))
    with pytest.raises(DataError, match="is UTF-16 text") as caught:
        load_dataset(tmp_path)
    assert caught.value.hint == "save the file as UTF-8"
