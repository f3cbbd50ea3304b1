"""A table is written the same way twice: marks, deviations, empty cells, the paper's numbers marked as such."""

from __future__ import annotations

from capsid.bench.table import PAPER_NOTE, Column, Entry, Row, Table, latex, markdown, plain

TABLE = Table(
    "t",
    "Some & all",
    (Column("R@10"), Column("collisions", "low", 1, 100, "%"), Column("words", None)),
    (
        Row("floor", (Entry((0.09,)), Entry((0.001,)), Entry(text="a_b")), context=True),
        Row("one", (Entry((0.05, 0.07), 0.0648), Entry((0.5,)), Entry())),
        Row("two", (Entry((0.05,)), Entry((0.25,), 0.3), Entry()), " †"),
        Row("three", (Entry(), Entry((0.25,)), Entry())),
        Row("paper only", (Entry((), 0.0839), Entry(), Entry())),
    ),
)


def cells(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
    return [c.strip() for c in line.strip("|").split("|")]


def test_markdown() -> None:
    text = markdown(TABLE)
    assert cells(text, "one") == ["one", "**0.0600** ± 0.0141 [0.0648]", "<u>50.0</u>%", ""]
    assert cells(text, "two") == ["two †", "<u>0.0500</u>", "**25.0**% [30.0]", ""]
    assert cells(text, "three") == ["three", "", "**25.0**%", ""]
    assert cells(text, "floor") == ["floor", "0.0900", "0.1%", "a_b"], "context takes no part in the contest"
    assert cells(text, "paper only") == ["paper only", "[0.0839]", "", ""]
    assert PAPER_NOTE in text
    assert not TABLE.empty


def test_latex() -> None:
    text = latex(TABLE)
    assert r"\textbf{0.0600} $\pm$ 0.0141 {\scriptsize [0.0648]}" in text
    assert r"two $^\dagger$ & \underline{0.0500} & \textbf{25.0}\% {\scriptsize [30.0]} &  \\" in text
    assert r"Some \& all" in text
    assert r"a\_b" in text
    assert text.count("{") == text.count("}")


def test_plain_numbers() -> None:
    rows = plain(TABLE)["rows"]
    assert isinstance(rows, list)
    assert rows[1]["R@10"]["values"] == [0.05, 0.07]
    assert rows[1]["R@10"]["paper"] == 0.0648
    assert rows[3]["R@10"]["mean"] is None


def test_a_lone_row_wins_nothing_and_no_note_without_the_papers_numbers() -> None:
    table = Table("t", "T", (Column("x"),), (Row("a", (Entry((1.0,)),)), Row("b", (Entry(),))))
    assert "**" not in markdown(table)
    assert PAPER_NOTE not in markdown(table)
    assert Table("t", "T", (Column("x"),), (Row("a", (Entry((), 1.0),)),)).empty
