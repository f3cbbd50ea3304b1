from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
from data_files import ITEMS, write

from capsid.data.attributes import kind_of
from capsid.data.check import CheckReport, check_path
from capsid.data.findings import EXAMPLES, Findings
from capsid.data.sources import load_dataset
from capsid.data.table_files import BlockSize, table_blocks
from capsid.errors import DataError


def codes(report: CheckReport, severity: str = "error") -> set[str]:
    return {f.code for f in report.findings if f.severity == severity}


def test_sound_data_has_no_errors(shop: Path) -> None:
    report = check_path(shop)
    assert report.ok
    assert report.counts == {"users": 3, "items": 4, "interactions": 9}
    assert codes(report, "info") == {"item-without-interactions"}
    assert codes(report, "warning") == {"missing-text"}  # Half of the items have no brand.


def test_everything_wrong_is_found_at_once(tmp_path: Path) -> None:
    write(
        tmp_path / "items.jsonl.gz",
        b"\n".join(
            [
                *(json.dumps(i).encode() for i in ITEMS),
                b'{"item_id": "a"}',
                b'{"item_id": "e", ',
                b'{"item_id": "f", "title": 5}',
                b'{"item_id": "g", "title": "\xff"}',
                b'{"title": "no id"}',
            ]
        ),
    )
    lines = ["u1 a b c", "u2", "u3 a", "u1 b c", "u4 a b a", "u5 a nope b", "u6 a b"]
    write(tmp_path / "sequences.txt.gz", lines)
    report = check_path(tmp_path)
    assert codes(report) == {"duplicate-id", "broken-line", "mixed-types", "not-utf8", "bad-id", "unknown-id"}
    assert codes(report, "warning") >= {"empty-sequence", "one-item-sequence", "missing-text"}
    assert codes(report, "info") >= {"repeated-item", "item-without-interactions", "two-item-sequence"}
    where = {(f.code, f.where) for f in report.findings}
    assert where >= {
        ("duplicate-id", "items.jsonl.gz:5"),
        ("broken-line", "items.jsonl.gz:6"),
        ("mixed-types", "items.jsonl.gz:7"),
        ("not-utf8", "items.jsonl.gz:8"),
        ("bad-id", "items.jsonl.gz:9"),
        ("empty-sequence", "sequences.txt.gz:2"),
        ("one-item-sequence", "user u3"),
        ("duplicate-id", "sequences.txt.gz:4"),
        ("repeated-item", "user u4"),
        ("unknown-id", "sequences.txt.gz:6"),
    }
    assert not report.ok
    assert all(f.message for f in report.findings)
    severities = [f.severity for f in report.findings]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


def test_few_examples_and_the_whole_count(shop: Path) -> None:
    write(shop / "sequences.txt.gz", [f"u{i} a" for i in range(20)] + [f"v{i} x a b" for i in range(30)])
    report = check_path(shop)
    for code, total in (("one-item-sequence", 20), ("unknown-id", 30)):
        assert sum(f.code == code for f in report.findings) == EXAMPLES
        assert report.totals[code] == total
    with pytest.raises(DataError, match=r"sequences\.txt\.gz:21: item 'x'.*and 29 more errors"):
        load_dataset(shop)


@pytest.mark.parametrize("keywords", [True, False])
def test_title_that_leaks_popularity(tmp_path: Path, keywords: bool) -> None:
    more = {"keywords": "k"} if keywords else {}
    items = [{"item_id": str(i), "categories": ["x"]} | ({"title": "t"} if i % 2 else {}) | more for i in range(20)]
    write(tmp_path / "items.jsonl", [json.dumps(i) for i in items])
    write(tmp_path / "sequences.txt", ["u 1 2 3"])
    finding = next(f for f in check_path(tmp_path).findings if f.where == "title")
    assert "50.0% of the items have no 'title'; titles with less than 90% coverage" in finding.message
    assert ("not used as text" if keywords else "used anyway") in finding.message
    assert "popular" in str(finding.hint)


def test_truncated_file_still_reports_the_rest(shop: Path) -> None:
    lines = "".join(f"u{i} a b {'zz' if i == 3 else 'c'}\n" for i in range(20_000)).encode()
    whole = gzip.compress(lines)
    (shop / "sequences.txt.gz").write_bytes(whole[: len(whole) // 2])
    report = check_path(shop)
    assert codes(report) == {"truncated-file", "unknown-id"}
    assert report.counts["users"] > 1000


def test_time_ties_and_disorder(shop: Path) -> None:
    write(shop / "times.txt.gz", ["u1 1 1 1", "u2 1 2 2", "u3 3 4 5"])
    report = check_path(shop)
    tie = next(f for f in report.findings if f.code == "time-tie")
    assert tie.message.startswith("50 % of neighbouring interactions tie; in item id ascend 67 % within ties")
    write(shop / "times.txt.gz", ["u1 1 2 3", "u2 1 2 0", "u3 3 4 5"])
    assert "time-order" in codes(check_path(shop))


def test_tables_and_unreadable_folders(tmp_path: Path) -> None:
    write(tmp_path / "a" / "interactions.csv", ["user,item,time", "u,a,1", "u,x,2", "u,a,oops", "v,b,1,2"])
    write(tmp_path / "a" / "items.csv", ["item,title", "a,A", "a,B", "b,", "c,C", "d,D"])
    report = check_path(tmp_path / "a")
    assert codes(report) >= {"unknown-id", "missing-value", "duplicate-id", "broken-line", "nothing-to-evaluate"}
    pl.DataFrame({"user": ["u"], "thing": ["a"]}).write_parquet(tmp_path / "interactions.parquet")
    report = check_path(tmp_path)
    assert codes(report) == {"unreadable"}
    with pytest.raises(DataError, match="no folder"):
        check_path(tmp_path / "nowhere")


ROWS = ["user,item,time,note", *(f"u{n // 4},i{n % 7},{n}," for n in range(40))]


def found_errors(folder: Path, *lines: str, end: str = "\n") -> list[tuple[str, str]]:
    (folder / "interactions.csv").write_text("\n".join([*ROWS, *lines]) + end)
    return [(f.code, f.where) for f in check_path(folder).findings if f.severity == "error"]


def test_a_quotation_mark_that_is_never_closed_swallows_no_rows_silently(tmp_path: Path) -> None:
    assert found_errors(tmp_path, 'v,i1,1,"open', "v,i2,2,", "v,i3,3,") == [("unclosed-quote", "interactions.csv:42")]
    # Within a field it is only a character; closed, a field may have several lines.
    assert found_errors(tmp_path, 'v,i1,1,12" pot', "v,i2,2,") == []
    assert found_errors(tmp_path, 'v,i1,1,"two', 'lines"', "v,i2,2,") == []
    assert check_path(tmp_path).counts["interactions"] == 42


def test_a_table_that_ends_within_a_line(tmp_path: Path) -> None:
    assert found_errors(tmp_path, "v,i1,17", end="") == [("truncated-file", "interactions.csv:42")]
    assert found_errors(tmp_path, "v,i1,17,", end="") == []
    assert found_errors(tmp_path, "v,i1,17") == [], "a whole line may leave out empty fields at its end"


@pytest.mark.parametrize("blocks", [True, False])
def test_open_quotes_are_found_in_blocks_too(tmp_path: Path, blocks: bool) -> None:
    (tmp_path / "items.csv").write_text("item,title\na,A\nb,B\n" * 9 + 'c,"open\nd,D\n')
    findings = Findings()
    size = BlockSize(rows=4, bytes=40) if blocks else None
    rows = sum(block.frame.height for block in table_blocks(tmp_path / "items.csv", findings, size))
    assert rows == 26
    assert [(f.code, f.where) for f in findings.kept] == [("unclosed-quote", "items.csv:28")]


@pytest.mark.parametrize(
    ("first", "second"),
    [("interactions.csv", "interactions.tsv"), ("sequences.txt", "interactions.csv"), ("items.csv", "items.tsv")],
)
def test_two_datasets_in_a_folder_are_refused(tmp_path: Path, first: str, second: str) -> None:
    write(tmp_path / "interactions.csv", ["user,item,time", "u,a,1"])
    for name in (first, second):
        write(tmp_path / name, ["item,user,time", "a,u,1"])
    with pytest.raises(DataError, match=r"has both|holds two datasets"):
        load_dataset(tmp_path)


def test_missing_items_file_is_a_finding(shop: Path) -> None:
    (shop / "items.jsonl.gz").unlink()
    assert "unreadable" in codes(check_path(shop))


def test_no_text_at_all(tmp_path: Path) -> None:
    write(tmp_path / "interactions.csv", ["user,item,time", "u,a,1", "u,b,2", "u,c,3"])
    report = check_path(tmp_path)
    assert report.ok
    assert "no-text" in codes(report, "warning")


def test_built_in_name() -> None:
    report = check_path("movies")
    assert report.ok
    assert report.counts["items"] == 2078


def test_findings_without_errors_do_not_raise() -> None:
    findings = Findings()
    findings.warning("w", "here", "careful")
    findings.raise_first("x")
    assert findings.errors == 0


@pytest.mark.parametrize("number", [2**63, -(2**63), 2**64])
def test_whole_numbers_that_no_column_can_hold(number: int) -> None:
    assert (kind_of(number), kind_of(2**63 - 1)) == ("other", "whole number")
