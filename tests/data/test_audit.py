"""The audit tells a file that is sorted by id within ties from one that is not, whatever else is in it."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capsid.base.vocabulary import Vocabulary, id_ranks
from capsid.cli.main import run
from capsid.data.audit import FollowerScores, audit, order_facts
from capsid.data.check import check_path
from capsid.data.dataset import Dataset
from capsid.data.sources import load_dataset
from capsid.data.split import Cases, leave_one_out
from capsid.data.ties import with_order
from capsid.errors import DataError
from capsid.explain.audit_page import render
from capsid.ragged import Ragged

USERS, ITEMS, LENGTH = 1500, 800, 8


def sorted_by_id(times: bool = True) -> Dataset:
    """Users take items of one group on one day; the file sorts the items of a day by id."""
    rng = np.random.default_rng(0)
    rows, days = [], []
    for _ in range(USERS):
        group = int(rng.integers(0, 4))
        row = rng.choice(200, size=LENGTH, replace=False) + 200 * group
        half = LENGTH // 2
        rows.append([*np.sort(row[:half]), *np.sort(row[half:])])
        days.append([0] * half + [3] * half)
    return Dataset(
        "<sorted>",
        Vocabulary(f"u{i}" for i in range(USERS)),
        Vocabulary(f"i{i:03}" for i in range(ITEMS)),
        Ragged.from_rows(rows),
        pl.DataFrame({"title": [f"t{i}" for i in range(ITEMS)]}),
        times=Ragged.from_rows(days, np.int64).values if times else None,
        days=times,
    )


def write(folder: Path, dataset: Dataset) -> Path:
    folder.mkdir()
    for name, rows in (
        ("sequences", [dataset.items.ids(r) for r in dataset.sequences]),
        ("days", Ragged(dataset.times, dataset.sequences.offsets)),
    ):
        lines = [" ".join(map(str, [user, *row])) for user, row in zip(dataset.users, rows)]
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    items = [json.dumps({"item_id": i, "title": f"t {i}", "brand": "b", "categories": ["c"]}) for i in dataset.items]
    (folder / "items.jsonl").write_text("\n".join(items))
    return folder


def test_the_verdict_flips_on_a_shuffled_copy() -> None:
    data = sorted_by_id()
    found = audit(data)
    assert found.order.tied == pytest.approx(6 / 7)
    assert found.order.ascending_within == 1.0
    assert found.order.target_tied == 1.0
    assert found.verdict.startswith("86 % of the order is unknown; within ties it follows item ids")
    assert found.verdict.endswith("do not rank sequential models on it.")
    file, mixed, whole = found.accuracy
    assert file.with_ids > 1.05 * file.followers > 1.05 * mixed.followers
    assert mixed.with_ids == pytest.approx(mixed.followers, rel=0.1)
    assert whole.order == "whole histories shuffled"
    again = audit(with_order(data))
    assert not again.suspicious
    assert "gives nothing away" in again.verdict
    assert again.order.ascending_within == pytest.approx(0.5, abs=0.03)


def test_a_file_without_times_is_judged_by_its_neighbours() -> None:
    data = sorted_by_id(times=False)
    assert audit(data).verdict.startswith("No times are known and neighbours follow item ids")
    mixed = replace(with_order(sorted_by_id()), times=None, days=False)
    assert audit(mixed).verdict == "No times are known, so ties cannot be seen; the order of ids gives nothing away."


def test_the_verdict_is_silent_on_movies() -> None:
    found = audit(load_dataset("movies", ties="file"))
    assert found.order.follows_ids, "films rated in one second are sorted"
    assert not found.suspicious, "but nobody can win by it"
    assert "do not rank" not in found.verdict
    assert found.by_time[0] == pytest.approx(1.0)
    assert 0 < found.later < 1


def test_directions_by_hand() -> None:
    data = Dataset(
        "d",
        Vocabulary(["u", "v", "w"]),
        Vocabulary(["9", "10", "7"]),
        Ragged.from_rows([[2, 0, 1], [1, 0, 0], []]),
        pl.DataFrame({"title": ["a", "b", "c"]}),
        times=np.array([0, 0, 5, 1, 1, 1]),
    )
    assert id_ranks(data.items).tolist() == [1, 2, 0], "numbers are compared as numbers"
    assert id_ranks(Vocabulary(["9", "10", "x"])).tolist() == [1, 0, 2]
    facts = order_facts(data)
    # 7 to 9 and 10 to 9 tie, 9 to 9 has no direction; 9 to 10 is between days.
    assert (facts.neighbours, facts.ties) == (4, 3)
    assert (facts.ascending_within, facts.ascending_between) == (0.5, 1.0)
    assert facts.target_tied == 0.5
    with pytest.raises(DataError, match="nothing can be audited"):
        audit(replace(data, sequences=data.sequences.first(2), times=np.array([0, 0, 1, 1])))


def test_followers_are_ranked_as_by_hand() -> None:
    train = Ragged.from_rows([[0, 1, 2], [0, 1], [0, 3], [4, 1]])
    scores = FollowerScores.count(train, 6)
    one = lambda history, target: Cases(np.array([0]), Ragged.from_rows([history]), np.array([target]))  # noqa: E731
    # After 0 came 1 twice and 3 once, and 2 two places later.
    assert scores.hits(one([0], 1), k=1).tolist() == [True]
    assert scores.hits(one([0], 3), k=1).tolist() == [False]
    assert scores.hits(one([0], 3), k=2).tolist() == [True]
    assert scores.hits(one([1, 0], 3), k=1).tolist() == [True], "items of the history are left out"
    assert scores.hits(one([0], 5), k=6).tolist() == [False], "never followed"
    ranks = np.array([0, 1, 2, 3, 4, 5])
    assert scores.hits(one([0], 3), k=1, ranks=ranks[::-1].copy(), weight=9).tolist() == [False]
    assert scores.hits(one([0, 4], 2), k=1).tolist() == [False], "two places after 0 it counts half"
    assert scores.hits(one([0, 4], 2), k=2).tolist() == [True]
    assert scores.hits(one([0, 4], 2), k=1, ranks=np.array([3, 0, 2, 4, 1, 5]), weight=9).tolist() == [True]
    assert scores.known(one([0], 3)) == 1.0
    assert scores.known(one([0], 2)) == 0.0
    split = leave_one_out(sorted_by_id())
    whole = FollowerScores.count(split.train, ITEMS).hits(split.test)
    part = FollowerScores.count(split.train, ITEMS).hits(split.test.take(np.arange(5, 9)))
    assert whole[5:9].tolist() == part.tolist()


def test_check_names_the_problem_with_figures(tmp_path: Path) -> None:
    shop = write(tmp_path / "shop", sorted_by_id())
    (finding,) = [f for f in check_path(shop).findings if f.code == "tie-order"]
    assert finding.severity == "warning"
    assert re.fullmatch(
        "86 % of neighbouring interactions tie; in item id ascend 100 % within ties and \\d+ % between them: "
        "ties follow item ids",
        finding.message,
    )
    assert "--ties shuffle" in str(finding.hint)
    mixed = write(tmp_path / "mixed", with_order(sorted_by_id()))
    assert [f.code for f in check_path(mixed).findings if "tie" in f.code] == ["time-tie"]


def test_check_names_mixed_units_and_columns_that_nothing_reads(tmp_path: Path) -> None:
    rows = ["user,item,timestamp,stars,note", *(f"u{n},i{n % 3},{1_400_000_000 + n},5,x" for n in range(9))]
    (tmp_path / "interactions.csv").write_text("\n".join(rows) + "\n")
    found = {f.code: f.message for f in check_path(tmp_path).findings}
    assert found["unused-column"] == "columns that are not used: stars, note"
    assert "mixed-times" not in found
    rows[1] = "u0,i0,1400000000000,5,x"
    (tmp_path / "interactions.csv").write_text("\n".join(rows) + "\n")
    found = {f.code: f.message for f in check_path(tmp_path).findings}
    assert found["mixed-times"] == "8 times look like seconds since 1970 and 1 like milliseconds"


def test_the_page_shows_the_figures_and_no_markup_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audit(sorted_by_id())
    page = render(found)
    assert "&lt;sorted&gt;" in page
    assert "<sorted>" not in page
    assert found.verdict in page
    for value in (found.accuracy[0].followers, found.accuracy[0].with_ids, found.accuracy[1].followers):
        assert f"{value:.4f}" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    shop = write(tmp_path / "shop", sorted_by_id())
    assert run(["data", "audit", str(shop), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["suspicious"] is True
    assert shown["verdict"] in (tmp_path / "page.html").read_text()
