"""One run all the way: fit, evaluate, predict, recommend, look at its ids. On planted data, with the real command."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from cli_world import Answer, capsid, contents, lines, settings

from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared

EVALUATION = {"split", "users", "filter_history", "metrics", "code_recall@50"}


def held_out(shop: Path) -> dict[str, list[str]]:
    """Users' items as the file has them, read without capsid."""
    rows = gzip.decompress((shop / "sequences.txt.gz").read_bytes()).decode().splitlines()
    return {user: items for user, *items in (row.split() for row in rows) if len(items) >= 3}


def test_fit_writes_a_run_and_says_what_next(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    answer = capsid("fit", "sasrec", "--data", shop, "--out", out, *settings()[2:])
    assert answer.code == 0, answer.err
    assert f"capsid evaluate {out}" in answer.out
    assert "validation ndcg@10-filtered" in answer.out
    assert "64 items" in answer.err
    assert "40 steps of 32 sequences" in answer.err
    assert "valid ndcg@10" in answer.err
    assert [p.name for p in out.parent.iterdir()] == ["run"], "the working folder is gone"
    assert (out / "manifest.json").exists()


def test_fit_again_is_done_already(run: Path, shop: Path) -> None:
    before = contents(run)
    answer = capsid("fit", "rq-kmeans", "--data", shop, "--out", run, *settings(), "--json")
    assert "already finished" in answer.err
    assert answer.json["recipe"] == "rq-kmeans"
    assert answer.json["steps"] == 40
    assert contents(run) == before


@pytest.mark.parametrize("changed", ["recipe", "seed", "setting", "data"])
def test_another_fit_does_not_replace_a_run(run: Path, shop: Path, tmp_path: Path, changed: str) -> None:
    before = contents(run)
    data = shop
    if changed == "data":
        data = write_prepared(planted_dataset(branching=(2, 2), users=30, length=6), tmp_path / "other")
    recipe = "popularity" if changed == "recipe" else "rq-kmeans"
    options = [] if changed == "recipe" else settings(*(["decoder.width=21"] if changed == "setting" else []))
    seed = 1 if changed == "seed" else 0
    answer = capsid("fit", recipe, "--data", data, "--out", run, "--seed", seed, *options)
    assert answer.code == 1
    assert "holds another run (rq-kmeans on planted, seed 0)" in answer.err
    assert "--force" in answer.err
    assert contents(run) == before


def test_a_run_is_replaced_where_the_user_says_so(run: Path, shop: Path) -> None:
    assert capsid("fit", "popularity", "--data", shop, "--out", run, "--force").code == 0
    assert json.loads((run / "recipe.json").read_text())["name"] == "popularity"


def test_a_damaged_run_is_fitted_again(run: Path, shop: Path) -> None:
    whole = contents(run)
    (run / "users.parquet").write_text("[]")
    assert capsid("fit", "rq-kmeans", "--data", shop, "--out", run, *settings(), "--force").code == 0
    again = contents(run)
    assert again["generator.safetensors"] == whole["generator.safetensors"]
    assert again["users.parquet"] == whole["users.parquet"]


def test_the_seed_matters(run: Path, shop: Path, tmp_path: Path) -> None:
    assert capsid("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "b", "--seed", 1, *settings()).code == 0
    assert contents(tmp_path / "b")["generator.safetensors"] != contents(run)["generator.safetensors"]


@pytest.mark.parametrize("filtered", [False, True])
def test_evaluate(run: Path, filtered: bool) -> None:
    flag = "--filter-history" if filtered else "--no-filter-history"
    about = capsid("evaluate", run, flag, "-k", "5,10", "--json").json
    assert set(about) >= EVALUATION
    assert set(about["metrics"]) >= {"recall@5", "recall@10", "ndcg@5", "ndcg@10", "mrr@10"}
    assert about["filter_history"] is filtered
    assert about["split"] == "test"
    name = "test-filtered" if filtered else "test"
    with np.load(run / "evaluations" / f"{name}.npz") as values:
        assert len(values["user"]) == about["users"] == 120
        for metric, mean in about["metrics"].items():
            assert values[metric].mean() == pytest.approx(mean)
    assert json.loads((run / "evaluations" / f"{name}.json").read_text())["metrics"] == about["metrics"]
    assert capsid("recommend", run, "--history", "i1").code == 0, "the run is still whole"


def test_evaluate_for_people(run: Path) -> None:
    answer = capsid("evaluate", run, "--split", "valid", "-k", 3)
    assert answer.code == 0
    assert "valid: 120 users, history filtered" in answer.out
    assert "NDCG" in answer.out
    assert "users in" in answer.err
    assert "users in" not in answer.out


@pytest.mark.parametrize("filtered", [False, True])
def test_predictions_scored_by_anyone_give_what_evaluate_says(
    fitted: Path, shop: Path, tmp_path: Path, filtered: bool
) -> None:
    file = tmp_path / "new" / "predictions.jsonl"
    flags = [] if filtered else ["--no-filter-history"]
    answer = capsid("predict", fitted, "--split", "test", "-k", 10, "--out", file, *flags)
    assert (answer.code, answer.out) == (0, "")
    rows = lines(file)
    truth = held_out(shop)
    assert sorted(row["user"] for row in rows) == sorted(truth)
    recall, ndcg = [], []
    for row in rows:
        assert set(row) == {"user", "items", "scores"}
        assert len(row["items"]) == len(set(row["items"])) == len(row["scores"]) == 10
        assert row["scores"] == sorted(row["scores"], reverse=True)
        *history, target = truth[row["user"]]
        assert not (filtered and set(history) & set(row["items"]))
        rank = row["items"].index(target) + 1 if target in row["items"] else None
        recall.append(rank is not None)
        ndcg.append(1 / math.log2(rank + 1) if rank else 0.0)
    metrics = capsid("evaluate", fitted, "--json", *flags).json["metrics"]
    assert metrics["recall@10"] == pytest.approx(np.mean(recall))
    assert metrics["ndcg@10"] == pytest.approx(np.mean(ndcg))
    assert np.mean(recall) > 10 / 64, "better than chance, or the test says little"


def test_predict_prints_the_same_lines(fitted: Path, tmp_path: Path) -> None:
    command = ["predict", fitted, "--split", "valid", "-k", 3, "--out"]
    printed = capsid(*command, "-").out
    capsid(*command, tmp_path / "p.jsonl")
    assert (tmp_path / "p.jsonl").read_text() == printed
    assert printed.count("\n") == 120
    assert [p.name for p in tmp_path.iterdir()] == ["p.jsonl"], "the shards are removed when the file is written"


def test_predict_resumes_and_every_engine_writes_the_same(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capsid.scale import ranked

    def predict(name: str, *options: object) -> Answer:
        return capsid("predict", fitted, "-k", 3, "--out", tmp_path / name, *options)

    assert predict("one.jsonl").code == 0
    # Two shards of one batch each for 120 users; a shard of other users' lists would be noticed.
    monkeypatch.setattr(ranked, "USERS_PER_SHARD", ranked.BATCH)
    killed, done = ranked.RankShards.table, []

    def dies_at_the_second(self: ranked.RankShards, number: int) -> object:
        done.append(number)
        if len(done) == 2:
            raise KeyboardInterrupt
        return killed(self, number)

    monkeypatch.setattr(ranked.RankShards, "table", dies_at_the_second)
    assert predict("two.jsonl").code == 130
    assert len(list((tmp_path / ".two.jsonl.shards").glob("lists-*.parquet"))) == 1
    assert predict("two.jsonl").code == 0
    assert done == [0, 1, 1], "the finished shard is not made again"
    monkeypatch.undo()
    assert predict("three.jsonl", "--engine", "processes", "--workers", 1).code == 0
    assert len({(tmp_path / f"{name}.jsonl").read_bytes() for name in ("one", "two", "three")}) == 1
    assert predict("four.jsonl", "--engine", "spark").code == 2


def test_recommend(fitted: Path) -> None:
    command = ["recommend", fitted, "--history", "i1, i2,i3", "-k", 5]
    about = capsid(*command, "--json").json
    assert set(about) == {"history", "items", "scores", "titles", "personal", "seen"}
    assert about["seen"] is None, "token probabilities of this recipe do not sum to 1 over items"
    assert len(about["items"]) == 5
    assert not set(about["items"]) & {"i1", "i2", "i3"}
    shown = capsid(*command).out
    assert all(item in shown and title in shown for item, title in zip(about["items"], about["titles"]))
    denied = capsid(*command, "--deny", about["items"][0], "--json").json["items"]
    assert about["items"][0] not in denied
    assert denied[:4] == about["items"][1:]
    assert set(capsid(*command, "--allow", "i1,i7,i8", "--json").json["items"]) == {"i7", "i8"}
    allowed = capsid(*command, "--allow", "i1,i7", "--no-filter-history", "--json").json["items"]
    assert set(allowed) == {"i1", "i7"}
    assert len(capsid("recommend", fitted, "--history", "i1", "-k", 500, "--json").json["items"]) == 63


def test_nobody_knows_me_yet(fitted: Path) -> None:
    answer = capsid("recommend", fitted, "--history", "", "--json")
    assert answer.json["personal"] is False
    assert len(answer.json["items"]) == 10
    assert "most popular" in answer.err


def test_the_data_is_in_order(shop: Path) -> None:
    answer = capsid("data", "check", shop, "--json")
    assert answer.json["ok"] is True
