"""Figures in pages: drawn from the store, and found out when they differ from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_current import present, put
from test_tables import cell

from capsid.bench.check import Claims, Selector, pages_in
from capsid.bench.rows import Source
from capsid.cli.main import run
from capsid.errors import ConfigError

ROOT = Path(__file__).parents[2]
WHERE = "main; {row}; amazon-beauty; test"


def mark(row: str, shown: str = "?", more: str = "") -> str:
    return f"<!-- claim {WHERE.format(row=row)}{more} -->{shown}<!-- /claim -->"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for seed in (0, 1):
        put(tmp_path / "store", "tiger", seed, present("tiger", seed))
    put(tmp_path / "store", "sasrec", 0, present("sasrec", 0), recall=0.8)
    return tmp_path / "store"


def claims(store: Path) -> Claims:
    return Claims(Source(store).plan)


def test_figures_by_hand(store: Path) -> None:
    found = claims(store)
    first, second = (float(cell("tiger", seed, 0.4)[1]["test/recall@10"].mean()) for seed in (0, 1))
    mean, deviation = (first + second) / 2, abs(first - second) / 2**0.5
    text = found.figure(Selector.read("main; tiger; amazon-beauty; test; recall@10"))
    assert text == f"{mean:.4f} ± {deviation:.4f}"
    one = float(cell("sasrec", 0, 0.8)[1]["test/recall@10"].mean())
    assert found.figure(Selector.read(WHERE.format(row="sasrec"))) == f"{one:.4f} / {0.4 * one:.4f}"
    above = found.figure(Selector.read("main; sasrec; amazon-beauty; test; recall@10; above tiger"))
    assert above == f"{100 * (one / mean - 1):+.0f} %"


def test_pages_are_drawn_and_a_changed_figure_is_found(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = tmp_path / "pages"
    (pages / "docs").mkdir(parents=True)
    readme, guide = pages / "README.md", pages / "docs" / "guide.md"
    readme.write_text(f"# Us\n\n| row | {mark('tiger')} | **{mark('sasrec', more='; recall@10')}** |\n")
    guide.write_text("nothing is claimed\n")
    assert pages_in(pages) == [readme, guide]
    verb = ["--store", str(store), "--pages", str(pages)]
    assert run(["bench", "claims", *verb]) == 1
    assert "README.md:3" in capsys.readouterr().out
    assert run(["bench", "claims", *verb, "--write"]) == 0
    drawn = readme.read_text()
    assert "?" not in drawn
    assert drawn.count("<!-- claim") == drawn.count("<!-- /claim -->") == 2

    def checked() -> list[bool]:
        capsys.readouterr()
        assert run(["bench", "check", *verb, "--json"]) == 1, "these made cells are impossible"
        found = [c for c in json.loads(capsys.readouterr().out) if c["name"].startswith("README.md:3")]
        assert all(c["of_every_cell"] for c in found), "a wrong figure ends the check with 1"
        return [c["passed"] for c in found]

    assert checked() == [True, True]
    readme.write_text(drawn.replace("0.", "1.", 1))
    assert checked() == [False, True]
    assert run(["bench", "claims", *verb, "--write"]) == 0
    assert readme.read_text() == drawn


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("main; tigger; amazon-beauty; test", "has stored no recall@10 of 'tigger'"),
        ("main; tiger; amazon-toys; test", "on amazon-toys"),
        ("main; tiger; amazon-beauty", "four to six things"),
        ("main; tiger; amazon-beauty; ", "four to six things"),
        ("mian; tiger; amazon-beauty; test", "'mian' has stored no"),
        ("main; tiger; amazon-beauty; test; recall@7", "recall@7"),
    ],
)
def test_what_the_store_does_not_have_is_a_problem(store: Path, tmp_path: Path, selector: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        claims(store).figure(Selector.read(selector))
    page = tmp_path / "README.md"
    page.write_text(f"<!-- claim {selector} -->0.5<!-- /claim -->")
    (found,) = claims(store).of_page(page, "README.md")
    assert not found.holds
    assert message in found.problem


def test_our_own_pages_say_what_the_store_says() -> None:
    found = [c for page in pages_in(ROOT) for c in claims(ROOT / "results" / "bench").of_page(page, page.name)]
    assert [
        f"{c.page}:{c.line} {c.selector}: {c.shown}, stored {c.stored}{c.problem}" for c in found if not c.holds
    ] == []
    assert len(found) > 40
