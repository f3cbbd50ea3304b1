"""`capsid tune`: what it finds, and that nothing is lost when it is killed or shared."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_world import TINY, capsid, lines

from capsid.errors import ConfigError
from capsid.fit.ranges import Range, has, ranges_of
from capsid.recipes import RECIPES

SMALL = [part for setting in TINY if not setting.startswith("tokenizer") for part in ("--set", setting)]
SPACE = ("generator.regularisation", "generator.neighbours", "generator.decay")


def states(folder: Path) -> list[int]:
    """The last state of every trial as Optuna stores it: 1 complete, 2 pruned, 3 failed."""
    found: dict[int, int] = {}
    for line in lines(folder / "study.log"):
        if line["op_code"] == 6:
            found[line["trial_id"]] = line["state"]
    return list(found.values())


def test_the_best_of_its_trials_is_a_file_for_config(shop: Path, tmp_path: Path) -> None:
    command = ("tune", "ease", "--data", shop, "--out", tmp_path / "tuned")
    found = capsid(*command, "--trials", 3, "--json").json
    values = [trial["value"] for trial in found["trials"]]
    assert values == sorted(values, reverse=True)
    assert all(set(trial["settings"]) == set(SPACE) for trial in found["trials"])
    report = (tmp_path / "tuned" / "report.md").read_text()
    assert f"| {found['trials'][0]['number']} | {values[0]:.4f} |" in report
    run = tmp_path / "run"
    assert capsid("fit", "ease", "--data", shop, "--out", run, "--config", found["config"]).code == 0
    stored = json.loads((run / "recipe.json").read_text())["generator"]
    for name in SPACE:
        assert stored[name.rpartition(".")[2]] == pytest.approx(found["trials"][0]["settings"][name], rel=0.01)
    valid = capsid("evaluate", run, "--split", "valid", "--json").json["metrics"]["ndcg@10"]
    assert valid == pytest.approx(values[0])
    more = capsid(*command, "--trials", 4, "--json").json
    assert len(more["trials"]) == 4, "the search goes on"
    answer = capsid(*command, "--trials", 4, "--seed", 1)
    assert answer.code == 1
    assert "holds a search with another recipe" in answer.err


def test_workers_share_the_trials(shop: Path, tmp_path: Path) -> None:
    command = ["tune", "item-knn", "--data", str(shop), "--out", str(tmp_path / "tuned"), "--trials", "6"]
    subprocess.run([sys.executable, "-m", "capsid", *command, "--workers", "2"], check=True, capture_output=True)
    assert states(tmp_path / "tuned").count(1) >= 6


def test_a_killed_search_goes_on_with_the_trial_it_was_in(shop: Path, tmp_path: Path) -> None:
    steps = ["--set", "schedule.0.training.steps=4000", "--set", "memory=null", "--set", "encoder=null"]
    folders = ["--data", str(shop), "--out", str(tmp_path / "t")]
    command = [sys.executable, "-m", "capsid", "tune", "sasrec-memory", *folders, *SMALL, *steps, "--trials", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = tmp_path / "t" / "study.log"
    deadline = time.monotonic() + 60
    # Operation 7 is the value of a validation.
    while not (log.exists() and '"op_code":7' in log.read_text()):
        assert time.monotonic() < deadline, "no validation within a minute"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    tried = [line for line in lines(log) if line["op_code"] == 5]
    short = ["--set", "schedule.0.training.steps=4000", "--set", "schedule.0.training.patience=1"]
    answer = capsid(*command[3:-2], *short, "--trials", "1")
    assert answer.code == 1, "other settings are another search"
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    again = [line for line in lines(log) if line["op_code"] == 5][len(tried) :]
    values = [[line["param_value_internal"] for line in some] for some in (tried, again)]
    assert values[0] == values[1], "its settings are tried again"
    assert sorted(states(tmp_path / "t")) == [1, 3]


def test_a_trial_below_the_median_is_pruned(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.fit.tune.STARTUP", 1)
    monkeypatch.setattr("capsid.fit.tune.WARMUP", 0)
    flat = ("--range", "schedule.0.training.learning_rate=0.000001:0.05:log", "--set", "memory=null")
    more = ("--set", "encoder=null", "--set", "schedule.0.training.validate_every=4")
    command = ("tune", "sasrec-memory", "--data", shop, "--out", tmp_path / "t", *SMALL, *flat, *more)
    found = capsid(*command, "--trials", 8, "--json").json
    assert any(trial["value"] is None for trial in found["trials"])
    assert found["trials"][0]["value"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--trials", "0"), "--trials must be at least 1, got 0"),
        (("--workers", "0"), "--workers must be at least 1, got 0"),
        (("--metric", "hits"), "--metric must be recall@10 or ndcg@10, got 'hits'"),
        (("--range", "generator.decay"), "--range must be part.field=LOW:HIGH"),
        (("--range", "generator.decay=1:0.5"), "LOW below HIGH"),
        (("--range", "generator.decay=0:1:log"), "above 0"),
        (("--range", "generator.nothing=0:1"), "has no setting 'generator.nothing'"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], message: str, shop: Path, tmp_path: Path) -> None:
    answer = capsid("tune", "ease", "--data", shop, "--out", tmp_path / "t", *options)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "t").exists()


def test_every_declared_range_fits_its_recipe() -> None:
    for recipe in RECIPES.values():
        if recipe.name in ("popularity",):
            with pytest.raises(ConfigError, match="has nothing to tune"):
                ranges_of(recipe)
            continue
        for r in ranges_of(recipe):
            assert all(has(recipe, path) for path in r.paths)
            for end in (r.low, r.high):
                recipe.with_settings([f"{path}={int(end) if r.whole else end}" for path in r.paths])
    named = ranges_of(RECIPES["ease"], (Range.parse("generator.decay=0.5:0.9"),))
    assert [r for r in named if r.name == "generator.decay"] == [Range(("generator.decay",), 0.5, 0.9)]


def test_without_optuna_the_extra_is_named(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    answer = capsid("tune", "ease", "--data", shop, "--out", tmp_path / "t")
    assert "tuning needs the extra `tune`" in answer.err
    assert "pip install 'capsid-rec[tune]'" in answer.err
