"""From a measured run to production: other holdouts, a fit on all data, and recommendations for many users."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli_world import TINY, capsid, lines
from test_cli_run import held_out

from capsid.recommender import Recommender


@pytest.fixture(scope="module")
def live(shop: Path, fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on all data, with the number of steps from the measured one."""
    out = tmp_path_factory.mktemp("runs") / "live"
    options = [part for setting in TINY if "training.steps" not in setting for part in ("--set", setting)]
    fit = ("fit", "rq-kmeans", "--data", shop, "--out", out, *options, "--holdout", "none", "--steps-from", fitted)
    answer = capsid(*fit)
    assert answer.code == 0, answer.err
    assert "capsid evaluate" not in answer.out, "there is nothing to measure"
    return out


def test_a_fit_on_all_data_trains_as_long_as_the_measured_run_was_good(live: Path, fitted: Path, shop: Path) -> None:
    best = json.loads((fitted / "log.json").read_text())[-1]["best_step"]
    (log,) = json.loads((live / "log.json").read_text())
    assert log["steps"] == log["best_step"] == best
    assert log["curve"] == []
    recommender = Recommender.from_pretrained(live)
    train = recommender.catalogue_.split.train
    everything = sum(len(items) for items in held_out(shop).values())
    assert len(train.values) == everything == recommender.catalogue_.counts.sum()


def test_a_run_without_held_out_items_cannot_be_measured(live: Path, fitted: Path) -> None:
    for verb in (["evaluate", live], ["predict", live, "--out", "-"]):
        answer = capsid(*verb)
        assert answer.code == 1
        assert "held out no items for test" in answer.err
        assert "--holdout last" in answer.err
    answer = capsid("fit", "rq-kmeans", "--data", "x", "--out", "y", "--steps-from", live)
    assert "was fitted without validation" in answer.err
    assert capsid("recommend", live, "--history", "i1", "--json").json["personal"]


@pytest.mark.parametrize("kind", ["time", "cold"])
def test_other_holdouts(shop: Path, tmp_path: Path, kind: str) -> None:
    fit = ("fit", "popularity", "--data", "planted", "--out", tmp_path / kind, "--holdout", kind)
    answer = capsid(*fit, "--holdout-share", 0.2)
    assert answer.code == 0, answer.err
    split = Recommender.from_pretrained(tmp_path / kind).catalogue_.split
    assert split.kind == {"time": "temporal-last", "cold": "cold-item"}[kind]
    if kind == "cold":
        assert len(split.cold) == pytest.approx(0.2 * 512, abs=2)
    assert "already finished" in capsid(*fit, "--holdout-share", 0.2).err
    assert "holds another run" in capsid(*fit).err, "another share is another run"
    assert capsid("evaluate", tmp_path / kind).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--holdout", "lst"], "there is no holdout 'lst'"),
        (["--holdout", "time", "--holdout-share", "0.5"], "--holdout-share must be above 0 and below 0.5, got 0.5"),
        (["--holdout", "time"], "has no times"),
    ],
)
def test_holdouts_that_cannot_be(shop: Path, tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "d").mkdir()
    for name in ("sequences.txt.gz", "items.jsonl.gz"):
        (tmp_path / "d" / name).write_bytes((shop / name).read_bytes())
    answer = capsid("fit", "popularity", "--data", tmp_path / "d", "--out", tmp_path / "run", *options)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert "hint:" in answer.err


def test_a_user_of_the_run(fitted: Path, shop: Path) -> None:
    """Everything the run knows of the user counts, held-out items too: the next item is what comes after them."""
    user, items = next(iter(held_out(shop).items()))
    about = capsid("recommend", fitted, "--user", user, "-k", 5, "--json").json
    assert about["user"] == user
    assert about["history"] == items
    again = capsid("recommend", fitted, "--history", ",".join(items), "-k", 5, "--json").json
    assert about["items"] == again["items"]
    assert capsid("recommend", fitted, "--user", user, "--data", shop, "-k", 5, "--json").json == about
    unknown = capsid("recommend", fitted, "--user", "nobody")
    assert unknown.code == 1
    assert "there is no user 'nobody' among the 120 users" in unknown.err


def test_everybody_in_three_forms(fitted: Path, shop: Path, tmp_path: Path) -> None:
    users = held_out(shop)
    for ending in ("csv", "parquet", "jsonl"):
        answer = capsid("recommend", fitted, "--all-users", "-k", 3, "--out", tmp_path / f"all.{ending}")
        assert (answer.code, answer.out) == (0, ""), answer.err
        assert "120 users" in answer.err
    told = lines(tmp_path / "all.jsonl")
    assert [line["user"] for line in told] == list(users)
    for line in told:
        assert set(line) == {"user", "items", "titles", "scores", "personal"}
        assert len(line["items"]) == 3
        assert not set(line["items"]) & set(users[line["user"]])
    frame = pl.read_parquet(tmp_path / "all.parquet")
    assert frame.columns == ["user", "rank", "item", "title", "score"]
    with open(tmp_path / "all.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    flat = [(u["user"], n + 1, i, t) for u in told for n, (i, t) in enumerate(zip(u["items"], u["titles"]))]
    assert flat == [(r["user"], int(r["rank"]), r["item"], r["title"]) for r in rows]
    assert flat == list(zip(*(frame[name] for name in ("user", "rank", "item", "title"))))
    scores = [score for line in told for score in line["scores"]]
    assert np.allclose(frame["score"], scores)
    assert np.allclose([float(r["score"]) for r in rows], scores)
    assert capsid("recommend", fitted, "--all-users", "-k", 3).out == (tmp_path / "all.jsonl").read_text()


def test_histories_of_a_file(fitted: Path, tmp_path: Path) -> None:
    table = tmp_path / "week.csv"
    table.write_text(
        "customer_id,product_id,date\nann,i2,2024-05-02\nann,i1,2024-05-01\nann,no-such,2024-05-03\nbob,other,2024-05-01\n"
    )
    answer = capsid("recommend", fitted, "--histories", table, "-k", 4, "--out", "-")
    ann, bob = (json.loads(line) for line in answer.out.splitlines())
    assert ann["items"] == capsid("recommend", fitted, "--history", "i1,i2", "-k", 4, "--json").json["items"]
    assert (ann["personal"], bob["personal"]) == (True, False)
    assert "2 interactions with items that the run does not know" in answer.err
    assert "1 of 2 users have no known item" in answer.err


def test_predictions_in_other_forms(fitted: Path, tmp_path: Path) -> None:
    for ending in ("jsonl", "parquet"):
        assert capsid("predict", fitted, "-k", 3, "--out", tmp_path / f"p.{ending}").code == 0
    frame = pl.read_parquet(tmp_path / "p.parquet")
    assert frame.columns == ["user", "rank", "item", "score"]
    assert frame["item"].to_list() == [i for line in lines(tmp_path / "p.jsonl") for i in line["items"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give exactly one of --history, --user, --histories and --all-users, got none"),
        (["--history", "i1", "--user", "u1"], "got 2"),
        (["--history", "i1", "--data", "planted"], "--data needs --user or --all-users"),
        (["--all-users", "--out", "x.txt"], "--out must end in .csv or .parquet or .jsonl, got 'x.txt'"),
        (["--histories", "none.csv"], "there is no file none.csv"),
    ],
)
def test_questions_that_make_no_sense(fitted: Path, options: list[str], message: str) -> None:
    answer = capsid("recommend", fitted, *options)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert "hint:" in answer.err


def test_refit_tells_what_changed(fitted: Path, shop: Path, tmp_path: Path) -> None:
    quick = ("--set", "schedule.0.training.steps=4")
    answer = capsid("refit", fitted, "--data", shop, "--out", tmp_path / "june", *quick)
    assert answer.code == 0, answer.err
    assert "ids: 0 of 64 known items changed, 0 new items, 0 retired" in answer.out
    assert "of the first 10 items are the same" in answer.out
    assert capsid("evaluate", tmp_path / "june").code == 0
    again = capsid("refit", fitted, "--data", shop, "--out", tmp_path / "june", *quick)
    assert (again.code, "--force" in again.err) == (1, True)
    about = capsid("refit", fitted, "--data", shop, "--out", tmp_path / "june", *quick, "--force", "--json").json
    assert about["churn"]["users"] == 120
    assert 0 <= about["churn"]["overlap"] <= 1


def test_the_order_of_ties_is_chosen_and_recorded(tmp_path: Path) -> None:
    for ties, order in (((), "shuffle 0"), (("--ties", "file"), "file")):
        out = tmp_path / order
        summary = capsid("fit", "popularity", "--data", "movies", "--out", out, *ties, "--json").json
        assert summary["order"] == order
        assert Recommender.from_pretrained(out).catalogue_.order == order
        assert capsid("evaluate", out, "--json").json["order"] == order
        assert "holds another run" in capsid("fit", "popularity", "--data", "planted", "--out", out).err
    answer = capsid("compare", tmp_path / "file", tmp_path / "shuffle 0")
    assert "different cases" in answer.err
    refit = ("refit", tmp_path / "file", "--data", "movies", "--out", tmp_path / "again")
    answer = capsid(*refit)
    assert answer.code == 2
    assert "order 'file' and the data in the order 'shuffle 0'" in answer.err
    assert "--ties file" in answer.err
    assert capsid(*refit, "--ties", "file").code == 0


@pytest.mark.parametrize("options", [("cold",), ("time", "--holdout-target", "successive")])
def test_warm_and_cold_targets_are_reported_apart(tmp_path: Path, options: tuple[str, ...]) -> None:
    out = tmp_path / "run"
    fit = capsid("fit", "popularity", "--data", "movies", "--out", out, "--holdout", *options)
    assert fit.code == 0, fit.err
    found = capsid("evaluate", out, "--json").json
    warm, cold = found["by_warmth"]["warm"], found["by_warmth"]["cold"]
    assert warm["cases"] > cold["cases"] > 0
    assert found["cases"] == warm["cases"] + cold["cases"]
    assert (found["cases"] > found["users"]) == (options[0] == "time"), "several targets of a user"
    whole = (warm["cases"] * warm["recall@10"] + cold["cases"] * cold["recall@10"]) / found["cases"]
    assert whole == pytest.approx(found["metrics"]["recall@10"])
    assert cold["recall@10"] == 0, "popularity cannot recommend what nobody took"
    assert "cold" in capsid("evaluate", out).out
