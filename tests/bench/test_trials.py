"""Trials choose a setting by validation; the row is evaluated with it on the run that its trial has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_world import TINY, plan_of, run, stored

from capsid.bench.plan_tables import OWN_TABLES, PlanCells
from capsid.bench.plans import Plan
from capsid.bench.prepare import WAITING, look
from capsid.bench.store import Place
from capsid.errors import ConfigError

# Not a step of training learns nothing: validation has to see the difference.
BAD, GOOD = "schedule.0.training.learning_rate=0.00000001", "schedule.0.training.learning_rate=0.02"
SETTINGS = [s for s in TINY if "learning_rate" not in s and "training.steps" not in s]
ROW: dict[str, Any] = {"method": "rq-kmeans", "label": "ids", "settings": [*SETTINGS, "schedule.0.training.steps=60"]}
ROW |= {"trials": [BAD, GOOD], "evaluations": ["valid-filtered", "test"]}
MORE = {**ROW, "label": "ids, wide", "settings": [*ROW["settings"], "decoder.width=20"], "tried_by": "ids"}
MORE.pop("trials")


def plan(*groups: dict[str, Any]) -> Plan:
    return plan_of(*groups, seeds=[0, 1])


def test_a_row_has_the_setting_of_its_best_trial(shop: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, "toy")
    wanted = plan(ROW, MORE)
    assert [c.name for c in wanted.cells] == [
        f"ids [{BAD}]/shop/0",
        f"ids [{GOOD}]/shop/0",
        "ids/shop/0",
        "ids/shop/1",
        "ids, wide/shop/0",
        "ids, wide/shop/1",
    ]
    states = [p.state for p in look(wanted, place, {"shop": str(shop)})]
    assert [s == WAITING for s in states] == [False, False, True, True, True, True]
    assert [c.name for c in wanted.only("ids, wide/*/1").cells] == [
        *(c.name for c in wanted.cells[:2]),
        "ids, wide/shop/1",
    ]
    summary, _ = run(wanted, place, shop)
    assert not summary.failed
    assert summary.count("done") == 6
    cells = {c.name: c for c in stored(place)}
    bad, better = cells[f"ids [{BAD}]/shop/0"], cells[f"ids [{GOOD}]/shop/0"]
    assert better.metric("ndcg@10", "valid-filtered") > bad.metric("ndcg@10", "valid-filtered")
    assert set(bad.evaluations) == set(better.evaluations) == {"valid-filtered"}, "no trial reads test"
    for name in ("ids/shop/0", "ids/shop/1", "ids, wide/shop/0"):
        assert cells[name].settings[-1] == GOOD
    row = cells["ids/shop/0"]
    assert row.trained_by == f"ids [{GOOD}]/shop/0", "the trial's network is evaluated, not trained again"
    assert row.metric("ndcg@10", "valid-filtered") == better.metric("ndcg@10", "valid-filtered")
    shown = OWN_TABLES["main"](PlanCells.read(tmp_path, "toy")).rows
    assert {r.label for r in shown} == {"ids", "ids, wide"}
    trials = OWN_TABLES["trials"](PlanCells.read(tmp_path, "toy"))
    (found,) = [r for r in trials.rows if r.label == "shop: ids"]
    assert found.entries[0].values == (2.0,)
    assert found.entries[1].text == GOOD
    assert not run(wanted, place, shop)[0].failed
    assert len(stored(place)) == 6, "nothing is run again"


def test_a_row_waits_for_trials_that_failed(shop: Path, tmp_path: Path) -> None:
    broken = {**ROW, "trials": [GOOD, "generator.heads=3"]}
    summary, _ = run(plan_of(broken), Place(tmp_path, "toy"), shop)
    outcomes = {o.cell: o for o in summary.outcomes}
    assert summary.failed
    assert outcomes["ids/shop/0"].state == "not started"
    assert outcomes["ids/shop/0"].error == "its trials are not finished"


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="no trials of the row 'idz'"):
        plan_of(ROW, {**MORE, "tried_by": "idz"})
    with pytest.raises(ConfigError, match="trials must be a list"):
        plan_of({**ROW, "trials": GOOD})
