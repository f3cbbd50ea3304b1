"""Whole recipes fitted by two processes, against one process with the same lanes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_recipes import small, tiny_world
from teams import hash_of, together

from capsid.base.run_options import RunOptions, Team
from capsid.base.storage.artifacts import read_json
from capsid.errors import ConfigError
from capsid.fit.folder import assist_fit, fit_or_reuse
from capsid.recipe import Recipe
from capsid.recommender import Recommender
from capsid.stored import load_run

# Merges; masked items; dense vectors beside ids of an RQ-VAE; nothing to train.
NAMES = ("capsid-bpe", "bert4rec", "tiger-dense", "popularity")


def recipe(name: str) -> Recipe:
    made = small(name, 4)
    steps = range(len(made.schedule))
    made = made.with_settings([f"schedule.{n}.training.{s}" for n in steps for s in ("lanes=4", "validate_every=2")])
    return made if name == "popularity" else made.with_settings(["generator.dropout=0.2"])


def fit(name: str, out: Path, team: Team | None = None) -> bool | None:
    """Whether an earlier run was reused; None for the processes that assist."""
    recommender = Recommender(recipe(name))
    run = RunOptions() if team is None else RunOptions(team=team)
    if run.team.rank:
        return assist_fit(recommender, tiny_world(), run=run)
    return fit_or_reuse(recommender, tiny_world(), out, run=run).reused


def outcome(run: Path) -> tuple[str, list, list]:
    """Weights, ids and validations of a run."""
    fitted = load_run(run, {}).fitted
    curves = [[(p["step"], p["loss"], p["metric"]) for p in phase["curve"]] for phase in read_json(run / "log.json")]
    return hash_of(fitted.generator.state()), fitted.tokenizer.ids.prefix_free.values.tolist(), curves


def test_two_processes_write_the_run_of_one(tmp_path: Path) -> None:
    """All recipes in one team: the second starts where the first has ended. A second fit of the first is reused."""

    def work(team: Team, folder: Path) -> list[bool | None]:
        return [fit(name, folder / name, team) for name in (*NAMES, NAMES[0])]

    first, second = together(2, work, tmp_path / "two")
    assert first == {"value": [False] * len(NAMES) + [True]}
    assert second == {"value": [None] * (len(NAMES) + 1)}
    for name in NAMES:
        fit(name, tmp_path / name)
        assert outcome(tmp_path / "two" / name) == outcome(tmp_path / name), name
        assert not (tmp_path / "two" / f".{name}.work").exists()


def test_codes_that_learn_with_the_generator_need_whole_batches() -> None:
    with pytest.raises(ConfigError, match=r"lanes must be 1 where a phase adapts codes \(gumbel-codes\), got 4"):
        small("diger", 4).with_settings(["schedule.0.training.lanes=4"])


def test_lanes_that_the_team_cannot_share_are_refused_before_any_work(tmp_path: Path) -> None:
    def work(team: Team, folder: Path) -> None:
        Recommender(recipe("tiger").with_settings(["schedule.0.training.lanes=6"])).fit(
            tiny_world(), work=folder / "work", run=RunOptions(team=team)
        )

    for said in together(2, work, tmp_path / "six"):
        assert "training.lanes must be the number of processes (2) times 1, 2, 4, 8, ..., got 6" in said["error"]
    assert not list((tmp_path / "six" / "work").rglob("manifest.json"))


def test_processes_that_do_not_see_the_same_disk_are_told(tmp_path: Path) -> None:
    def work(team: Team, folder: Path) -> None:
        if team.rank == 0:
            team.broadcast("/nowhere/.run.work")
        else:
            fit("tiger", folder / "run", team)

    _, second = together(2, work, tmp_path / "apart")
    assert "does not find the working folder /nowhere/.run.work of process 0" in second["error"]


def test_a_team_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """A phase is finished, the run is not written: all processes read the phase and end with the same run."""

    def work(team: Team, folder: Path) -> object:
        recommender = Recommender(recipe("tiger"))
        recommender.fit(tiny_world(), work=folder / "work", run=RunOptions(team=team))
        return hash_of(recommender.fitted.generator.state())

    whole = together(2, work, tmp_path / "a")
    shutil.copytree(tmp_path / "a" / "work", tmp_path / "b" / "work")
    assert together(2, work, tmp_path / "b") == whole
    assert len({said["value"] for said in whole}) == 1
