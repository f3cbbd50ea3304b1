"""A foreign shop's files as they are: columns with other names, texts, rows that cannot be read, duplicates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_world import capsid, lines

from capsid.data.sources import load_dataset

COLUMNS = "user=Kunde,item=Artikel,time=Datum,title=Titel"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Twelve customers, eight articles, German names."""
    folder = tmp_path / "laden"
    folder.mkdir()
    rows = ["Kunde;Artikel;Datum;Aktion"]
    for customer in range(12):
        rows += [f"k{customer};a{(customer + step) % 8};{1 + step:02d}.03.2024;Kauf" for step in range(5)]
    (folder / "interactions.csv").write_text("\n".join(rows) + "\n")
    items = ["Artikel;Titel;Stichworte;Gewicht", *(f"a{n};Tasse {n};rot, klein;{n}" for n in range(8))]
    (folder / "items.csv").write_text("\n".join(items) + "\n")
    return folder


def test_check_suggests_the_columns_and_they_work(shop: Path, tmp_path: Path) -> None:
    found = capsid("data", "check", shop, "--json")
    assert found.code == 1
    (error,) = (f for f in json.loads(found.out)["findings"] if f["severity"] == "error")
    assert error["hint"] == "try --columns user=Kunde,item=Artikel,time=Datum"
    assert capsid("data", "check", shop, *error["hint"].split()[1:]).code == 0
    answer = capsid("data", "import", shop, "--out", tmp_path / "own", "--columns", COLUMNS)
    assert answer.code == 0, answer.err
    assert "interactions.csv: columns that are not used: Aktion" in answer.err
    data = load_dataset(tmp_path / "own")
    assert data.attributes["title"].to_list()[:2] == ["Tasse 0", "Tasse 1"]
    assert data.text_fields == ("title",)


def test_text_columns(shop: Path, tmp_path: Path) -> None:
    command = ("data", "import", shop, "--columns", COLUMNS)
    assert capsid(*command, "--out", tmp_path / "own", "--text", "title,Stichworte").code == 0
    assert load_dataset(tmp_path / "own").text_fields == ("title", "Stichworte")
    answer = capsid(*command, "--out", tmp_path / "no", "--text", "title,Gewicht")
    assert answer.code == 1
    assert "--text names 'Gewicht', which is no column of text" in answer.err
    assert not (tmp_path / "no").exists()


def test_bad_rows_are_skipped_counted_and_listed(shop: Path, tmp_path: Path) -> None:
    with open(shop / "interactions.csv", "a") as file:
        file.write("k1;a9;01.03.2024;Kauf\nk1;;02.03.2024;Kauf\nk1;a1;irgendwann;Kauf\n" + "k2;a1;x;y;z;zu viel\n" * 9)
    with open(shop / "items.csv", "a") as file:
        file.write("a3;Tasse 3 noch einmal;;\n")
    command = ("data", "import", shop, "--out", tmp_path / "own", "--columns", COLUMNS)
    assert capsid(*command).code == 1
    answer = capsid(*command, "--skip-bad-rows")
    assert answer.code == 0, answer.err
    skipped = lines(tmp_path / "own.skipped.jsonl")
    assert len(skipped) == 13
    assert f"rows that were skipped: 13, listed in {tmp_path / 'own.skipped.jsonl'}" in answer.err
    assert {row["where"].partition(":")[0] for row in skipped} == {"interactions.csv", "items.csv"}
    whole, own = load_dataset(tmp_path / "own"), tmp_path / "own"
    assert (whole.interactions, len(whole.items)) == (60, 8)
    assert load_dataset(own).attributes["title"].to_list()[3] == "Tasse 3"


def test_only_bad_rows_or_an_open_quotation_mark_cannot_be_skipped(shop: Path, tmp_path: Path) -> None:
    command = ("data", "import", shop, "--out", tmp_path / "own", "--columns", COLUMNS, "--skip-bad-rows")
    good = (shop / "interactions.csv").read_text()
    (shop / "interactions.csv").write_text(good + 'k1;"a1;01.03.2024;Kauf\nk2;a1;01.03.2024;Kauf\n')
    answer = capsid(*command)
    assert answer.code == 1
    assert "a quotation mark is opened here and never closed" in answer.err
    (shop / "interactions.csv").write_text("Kunde;Artikel;Datum\n;a1;01.03.2024\nk1;;01.03.2024\n")
    answer = capsid(*command)
    assert answer.code == 1
    assert "all 2 rows were skipped" in answer.err
    assert not (tmp_path / "own").exists()


def test_duplicates_are_named_and_dropped_on_request(shop: Path, tmp_path: Path) -> None:
    with open(shop / "interactions.csv", "a") as file:
        file.write("k1;a1;01.03.2024;Kauf\n" * 3)
    command = ("data", "import", shop, "--columns", COLUMNS)
    answer = capsid(*command, "--out", tmp_path / "all")
    assert "3 rows repeat the user, item and time of another row (--drop-duplicates keeps one of them)" in answer.err
    assert load_dataset(tmp_path / "all").interactions == 63
    assert capsid(*command, "--out", tmp_path / "one", "--drop-duplicates").code == 0
    assert load_dataset(tmp_path / "one").interactions == 60


def test_fit_reads_them_too(shop: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert capsid("fit", "popularity", "--data", shop, "--out", run, "--columns", COLUMNS).code == 0
    assert capsid("recommend", run, "--history", "a1", "-k", 2, "--json").json["titles"][0].startswith("Tasse")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--columns", "user=Kunde,user=Artikel"), 2, "--columns names 'user' twice"),
        (("--columns", "user=Kunde,item=Kunde"), 2, "--columns names 'Kunde' twice"),
        (("--columns", "kunde=Kunde"), 2, "NAME one of user, item, time"),
        (("--columns", "user"), 2, "--columns takes NAME=COLUMN"),
        (("--columns", "user=Kunde,"), 2, "--columns must be names separated by commas"),
        (("--columns", "user=Kundin,item=Artikel,time=Datum"), 1, "has no column 'Kundin'"),
        (("--columns", "user=Kunde,item=Artikel,time=Aktion"), 1, "timestamp 'Kauf' cannot be read"),
        (("--columns", COLUMNS.replace("=Titel", "=Name")), 1, "items.csv has no column 'Name'"),
        (("--columns", COLUMNS, "--mapped"), 2, "--columns cannot be used with --mapped"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(
    options: tuple[str, ...], code: int, message: str, shop: Path, tmp_path: Path
) -> None:
    answer = capsid("data", "import", shop, "--out", tmp_path / "own", *options)
    assert answer.code == code
    assert message in answer.err
    assert [p.name for p in tmp_path.iterdir()] == ["laden"]


def test_options_for_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    answer = capsid("data", "import", "movies", "--out", tmp_path / "own", "--drop-duplicates")
    assert answer.code == 1
    assert "--drop-duplicates is for folders of tables, and movies is none" in answer.err
