"""Several runs on one history, and their kept metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from served import Served
from small_recipes import small, world
from test_http import refused

from capsid.evaluate.kept import compare_runs, keep_evaluation
from capsid.recommender import Recommender

ITEMS = list(world().items)


def test_runs_side_by_side(run: Path, recommender: Recommender, tmp_path: Path) -> None:
    other = Recommender(small("popularity")).fit(world())
    other.save_pretrained(tmp_path / "other")
    result = other.evaluate()
    keep_evaluation(tmp_path / "other", result, other.catalogue_.split.test)
    with Served(run, tmp_path / "state", compare=(str(tmp_path / "other"),)) as served:
        listed = served.client.get("/v1/runs").json()["runs"]
        assert [(r["run"], r["served"], r["recipe"]) for r in listed] == [
            ("run", True, "capsid"),
            ("other", False, "popularity"),
        ]
        assert listed[0]["metrics"] == {"plain": None, "filtered": None}
        values = result.values["recall@10"]
        assert listed[1]["metrics"]["filtered"]["recall@10"] == pytest.approx(
            {"mean": result.metrics["recall@10"], "error": float(np.std(values) / len(values) ** 0.5)}
        )
        assert listed[1]["differences"] == {"plain": None, "filtered": None}, "the served run has no values"
        body = {"history": [*ITEMS[:3], "nothing"], "k": 5}
        titles = [(i["title"], i["known"]) for i in served.client.post("/v1/compare", json=body).json()["history"]]
        assert titles == [*((recommender.catalogue_.title(n), True) for n in range(3)), ("nothing", False)]
        body["history"] = ITEMS[:3]
        found = served.client.post("/v1/compare", json=body).json()["runs"]
        for answer, wanted in zip(found, (recommender, other)):
            assert [i["item"] for i in answer["items"]] == list(wanted.recommend(ITEMS[:3], 5).items)
        served.client.delete(f"/v1/items/{found[1]['items'][0]['item']}")
        again = served.client.post("/v1/compare", json=body).json()["runs"]
        assert again[1] == found[1], "edits are of the served run"
        nothing = {**body, "allow": ITEMS[:1], "deny": ITEMS[:1]}
        told = served.client.post("/v1/compare", json=nothing).json()["runs"]
        assert all("leave no item" in answer["problem"] for answer in told)
        refused(served.client.post("/v1/compare", json={"history": 1}), 422, "invalid_request")


def test_differences_are_paired_by_user(explored: Served) -> None:
    listed = explored.client.get("/v1/runs").json()["runs"]
    folder = Path(explored.options.run).parent
    wanted = compare_runs([folder / "rq-kmeans"], [folder / "capsid-bpe"], metric="ndcg@10")
    found = listed[1]["differences"]["filtered"]["ndcg@10"]
    assert found["difference"] == pytest.approx(wanted.difference)
    assert (found["low"], found["high"]) == pytest.approx((wanted.low, wanted.high), abs=0.01)
    assert listed[0]["differences"] == {"plain": None, "filtered": None}
    assert listed[1]["differences"]["plain"] is None
