"""Cells that differ only in how they rank items, or in a memory that is fitted after training, are trained once: same
lines as alone, also after kills and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_world import TINY, Killed, Messages, jobs_of, plan_of, run, stored, without_times, work_here

from capsid.base.storage.artifacts import read_json, write_json
from capsid.bench.cells import Job, code_fingerprint, training_fingerprint
from capsid.bench.process import DONE, RESULT
from capsid.bench.store import Place, SharedRun, forget_other_code
from capsid.recipes import get_recipe
from capsid.recommender import Recommender

PIECES = [s for s in TINY if "restarts" not in s] + ["merges.size=12", "decoder.times=3"]
FIVE = {"method": "actionpiece", "settings": PIECES}
ONE = {"method": "actionpiece", "label": "one reading", "settings": [*PIECES, "decoder.times=1"]}


def lines_of(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in without_times(line).items() if name != "trained_by"}


@pytest.fixture(scope="module")
def jobs(shop: Path) -> list[Job]:
    return jobs_of(plan_of(FIVE, ONE), shop)


@pytest.fixture(scope="module")
def alone(jobs: list[Job], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The lines of both cells, each trained by itself."""
    place = Place(tmp_path_factory.mktemp("alone"), "toy")
    assert [work_here(job, place)[0] for job in jobs] == [0, 0]
    return [read_json(place.work(job.key) / RESULT) for job in jobs]


def test_training_is_the_same_if_only_the_ranking_differs(jobs: list[Job]) -> None:
    assert jobs[0].fingerprint != jobs[1].fingerprint
    assert jobs[0].training == jobs[1].training
    recipe = get_recipe("actionpiece")
    own = training_fingerprint(recipe, "d", 0)
    for other in ("decoder.width=40", "generator.width=64", "schedule.0.training.steps=9", "merges.size=9"):
        # Validation searches with this width, so it may keep other weights.
        assert training_fingerprint(recipe.with_settings([other]), "d", 0) != own
    assert training_fingerprint(recipe, "e", 0) != own
    assert training_fingerprint(recipe, "d", 1) != own


def test_the_runner_trains_once(shop: Path, jobs: list[Job], alone: list[dict[str, Any]], tmp_path: Path) -> None:
    """Through real processes; with two workers the second cell waits for the first."""
    place = Place(tmp_path, "toy")
    # A cell that cannot run leaves the plan unfinished, and what cells share in its place.
    summary, watch = run(plan_of(FIVE, ONE, {"method": "tigger"}), place, shop, workers=2)
    assert [o.state for o in summary.outcomes] == [DONE, DONE, "not available"]
    first, second = (cell.to_dict() for cell in stored(place))
    assert (first["trained_by"], second["trained_by"]) == (None, "actionpiece/shop/0")
    assert [lines_of(line) for line in (first, second)] == [lines_of(line) for line in alone]
    assert first["values_hash"] != second["values_hash"], "three readings and one rank differently"
    assert second["seconds"]["tokenizer"] == first["seconds"]["tokenizer"]
    assert sum("generator: best at step" in line for line in watch.lines) == 1
    assert not list(place.trained.iterdir()), "no cell needs the run any more"
    summary, _ = run(plan_of(FIVE, ONE), place, shop)
    assert [o.state for o in summary.outcomes] == ["finished", "finished"]
    assert not place.trained.exists()


MEMORIES = (
    ["memory=memory", "memory.last=2", "memory.neighbours=0"],
    [],
    ["memory=memory", "memory.last=1", "memory.neighbours=3"],
)


def test_methods_that_differ_in_their_memory_share_a_network(shop: Path, tmp_path: Path) -> None:
    """In any order: a cell without memory may come after one with memory."""
    groups = [
        {"method": "rq-kmeans", "label": f"row {number}", "settings": [*TINY, "over=children", *memory]}
        for number, memory in enumerate(MEMORIES)
    ]
    jobs = jobs_of(plan_of(*groups), shop)
    assert len({job.training for job in jobs}) == 1
    alone, together = Place(tmp_path / "alone", "toy"), Place(tmp_path / "together", "toy")
    for job in jobs:
        assert work_here(job, alone)[0] == 0
        assert work_here(job, together, share=True)[0] == 0
    found = [[read_json(place.work(job.key) / RESULT) for job in jobs] for place in (alone, together)]
    assert [lines_of(line) for line in found[1]] == [lines_of(line) for line in found[0]]
    assert [line["trained_by"] for line in found[1]] == [None, "row 0/shop/0", "row 0/shop/0"]
    assert len({line["values_hash"] for line in found[1]}) == 3, "the three memories rank differently"


def test_killed_at_any_moment_both_end_with_their_own_lines(
    jobs: list[Job], alone: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, "toy")
    shared = SharedRun.of(jobs[0], place)

    def killed(self: Recommender, path: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Recommender, "save_pretrained", killed)
        with pytest.raises(Killed):
            work_here(jobs[0], place, share=True)
    assert shared.about.exists()
    assert shared.described() is None, "a run that is not there is not used"
    # Killed after the run was left to others, the first cell reads it itself.
    with pytest.raises(Killed):
        work_here(jobs[0], place, Messages("test: recall@10"), share=True)
    assert shared.described() is not None
    with pytest.raises(Killed):
        work_here(jobs[1], place, Messages("test: recall@10"))
    for job in reversed(jobs):
        assert work_here(job, place)[0] == 0
    found = [read_json(place.work(job.key) / RESULT) for job in jobs]
    assert [lines_of(line) for line in found] == [lines_of(line) for line in alone]
    assert [line["values_hash"] for line in found] == [line["values_hash"] for line in alone]
    assert [line["trained_by"] for line in found] == [None, "actionpiece/shop/0"]


def test_a_damaged_run_is_trained_again(jobs: list[Job], alone: list[dict[str, Any]], tmp_path: Path) -> None:
    place = Place(tmp_path, "toy")
    assert work_here(jobs[0], place, share=True)[0] == 0
    weights = SharedRun.of(jobs[0], place).folder / "generator.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, messages = work_here(jobs[1], place)
    assert code == 0
    assert any("is damaged and is trained again" in line for line in messages.lines)
    line = read_json(place.work(jobs[1].key) / RESULT)
    assert line["trained_by"] is None
    assert lines_of(line) == lines_of(alone[1])


def test_runs_of_other_code_are_used_and_told_unless_fresh_code_is_asked_for(jobs: list[Job], tmp_path: Path) -> None:
    place = Place(tmp_path, "toy")
    assert work_here(jobs[0], place, share=True)[0] == 0
    shared = SharedRun.of(jobs[1], place)
    forget_other_code(place, code_fingerprint())
    write_json(shared.about, {**(shared.described() or {}), "codes": ["other"]})
    assert work_here(jobs[1], place)[0] == 0
    assert read_json(place.work(jobs[1].key) / RESULT)["codes"] == ["other", code_fingerprint()]
    forget_other_code(place, code_fingerprint())
    assert not list(place.trained.iterdir())


def test_a_cell_with_more_evaluations_is_trained_with_its_twin_and_one_with_fewer_is_its_twin(
    shop: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path, "toy")
    groups = [
        {"method": "popularity", "label": "first"},
        {"method": "popularity", "label": "more", "evaluations": ["test", "valid"]},
        {"method": "popularity", "label": "fewer", "evaluations": ["valid"]},
    ]
    summary, _ = run(plan_of(*groups), place, shop, workers=3)
    assert [o.state for o in summary.outcomes] == [DONE, DONE, "taken over"]
    first, more, fewer = stored(place)
    assert more.trained_by == "first/shop/0"
    assert fewer.taken_from == "toy:more/shop/0"
    assert list(fewer.evaluations) == ["valid"]
    assert first.metric("recall@10") == more.metric("recall@10")
    assert fewer.metric("recall@10", "valid") == more.metric("recall@10", "valid")
    again, _ = run(plan_of(*groups), place, shop)
    assert {o.state for o in again.outcomes} == {"finished"}
