"""The checks on a store with known numbers, one of them impossible, and on the paper's own table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from test_tables import cell

from capsid.bench.check import HIGH, LOW, run_checks, statements
from capsid.bench.results import LINES, Result
from capsid.bench.rows import Source
from capsid.evaluate.metrics import ndcg_recall_slope


def with_metrics(line: Result, recall5: float, recall10: float, ndcg5: float, ndcg10: float) -> Result:
    metrics = {"recall@5": recall5, "recall@10": recall10, "ndcg@5": ndcg5, "ndcg@10": ndcg10}
    test = {**line.evaluations["test"], "metrics": metrics}
    return dataclasses.replace(line, evaluations={**line.evaluations, "test": test})


def store(folder: Path, *lines: Result) -> Source:
    for line in lines:
        (folder / line.plan).mkdir(parents=True, exist_ok=True)
        with (folder / line.plan / LINES).open("a") as file:
            file.write(json.dumps(line.to_dict()) + "\n")
    return Source(folder)


def found(source: Source) -> dict[str, tuple[bool | None, str]]:
    return {c.name: (c.passed, c.detail) for c in run_checks(source)}


def test_the_bounds_are_those_of_ranks_six_and_ten() -> None:
    import math

    assert LOW < 1 / math.log2(11) < LOW + 0.0002
    assert HIGH - 0.0002 < 1 / math.log2(7) < HIGH
    assert ndcg_recall_slope(0.1, 0.1, 0.05, 0.05) is None


def test_an_impossible_cell_is_found(tmp_path: Path) -> None:
    good = with_metrics(cell("tiger", 0, 0.2)[0], 0.05, 0.08, 0.03, 0.0395)
    bad = with_metrics(cell("capsid", 0, 0.2)[0], 0.05, 0.08, 0.03, 0.05)
    checks = found(store(tmp_path, good, bad))
    passed, detail = checks["main: NDCG is consistent with recall in every cell"]
    assert passed is False
    assert "capsid/amazon-beauty/0" in detail
    assert "tiger/" not in detail


def test_cells_of_every_plan_are_checked(tmp_path: Path) -> None:
    bad = with_metrics(cell("tiger", 0, 0.2, plan="mine")[0], 0.05, 0.08, 0.03, 0.05)
    passed, detail = found(store(tmp_path, bad))["mine: NDCG is consistent with recall in every cell"]
    assert passed is False
    assert "tiger/amazon-beauty/0" in detail


def test_a_plan_with_other_ks_has_nothing_to_check(tmp_path: Path) -> None:
    line = cell("tiger", 0, 0.2, plan="mine")[0]
    line = dataclasses.replace(line, ks=(20,), evaluations={"test": {"metrics": {"recall@20": 0.1, "ndcg@20": 0.9}}})
    assert found(store(tmp_path, line))["mine: NDCG is consistent with recall in every cell"] == (None, "0 cells")


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    checks = found(Source(tmp_path))
    assert checks["main: NDCG is consistent with recall in every cell"][0] is None
    assert checks["merges shorten ids and keep collisions"] == (None, "not run")


def test_the_paper_contradicts_itself_in_places() -> None:
    every = {s.about: s for s in statements()}
    assert sum(not s.agrees for s in every.values()) == len(every) == 10
    ndcg = every["main table: NDCG is consistent with recall"].detail
    for broken in ("actionpiece on beauty", "actionpiece on sports", "capsid on beauty", "capsid-bpe on beauty"):
        assert broken in ndcg
    assert ndcg.count(";") == 3
    # e^4 against 255 rivals at weight 1 each: two agreements of unit votes with one direction, and none of theirs.
    assert "0.18 is possible" in every["the winner's weight is possible with normalised votes (appendix A.1)"].detail
    shown = found(Source(Path("/nowhere")))
    assert shown["the paper: ids of Beauty have one mean length"] == (False, "3.41 and 3.6")


def test_mechanisms_and_merges(tmp_path: Path) -> None:
    full = with_metrics(cell("full", 0, 0.2, plan="ablation")[0], 0.05, 0.08, 0.03, 0.0395)
    better = with_metrics(cell("no merges", 0, 0.2, plan="ablation")[0], 0.05, 0.09, 0.03, 0.0425)
    longer = dataclasses.replace(better, ids={**better.ids, "mean_tokens": 2.5})
    shorter = dataclasses.replace(better, ids={**better.ids, "mean_tokens": 1.5})
    for line, expected in ((longer, True), (shorter, False)):
        folder = tmp_path / str(expected)
        assert found(store(folder, full, line))["without: no merges does not improve both"][0] is expected
    plain, merged = cell("capsid", 0, 0.2)[0], cell("capsid-bpe", 0, 0.2)[0]
    plain = dataclasses.replace(plain, ids={**plain.ids, "mean_tokens": 2.4})
    name = "merges shorten ids and keep collisions"
    assert found(store(tmp_path / "m", plain, merged))[name][0] is True
    other = dataclasses.replace(merged, ids={**merged.ids, "collision_rate": 0.02})
    assert found(store(tmp_path / "n", plain, other))[name][0] is False
