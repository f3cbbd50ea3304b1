"""A real cell: killed at several moments it ends with the same line; ids are made once and shared; what it stores."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_world import TINY, Killed, Messages, jobs_of, plan_of, run, stored, without_times, work_here

from capsid.base.run_options import RunOptions
from capsid.base.storage.artifacts import read_json
from capsid.base.storage.locks import held
from capsid.bench import worker
from capsid.bench.cells import Job, cell_fingerprint, code_fingerprint, make_job, tokenizer_fingerprint
from capsid.bench.plans import read_plan
from capsid.bench.prepare import data_facts, estimate, rough_seconds
from capsid.bench.results import Result
from capsid.bench.store import Journal, Place, append, read_journal
from capsid.bench.worker import run_cell
from capsid.data.item_table import ItemTable
from capsid.data.sources import load_dataset
from capsid.data.split import leave_one_out, temporal_split
from capsid.encode.cache import cached_parts
from capsid.errors import ArtifactError, ConfigError
from capsid.recommender import Recommender

BOTH = ["test", "test-filtered"]


@pytest.fixture(scope="module")
def job(shop: Path) -> Job:
    return jobs_of(plan_of({"method": "rq-kmeans", "settings": list(TINY), "evaluations": BOTH}), shop)[0]


@pytest.fixture(scope="module")
def unbroken(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, Any]]:
    place = Place(tmp_path_factory.mktemp("unbroken"), "toy")
    assert work_here(job, place)[0] == 0
    return place, read_json(place.work(job.key) / "result.json")


def result_of(place: Place, job: Job) -> dict[str, Any]:
    return read_json(place.work(job.key) / "result.json")


def test_cells_wait_for_the_same_vectors_only(
    job: Job, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a lock has the key of a part of the vectors, so cells with other vectors do not wait for it."""
    locks: list[str] = []

    def noted(path: Path, **options: Any) -> Any:
        locks.append(path.stem)
        return held(path, **options)

    monkeypatch.setattr(worker, "held", noted)
    assert work_here(job, Place(tmp_path, "toy"))[0] == 0
    dataset = load_dataset(str(shop))
    table = ItemTable.from_training(dataset, leave_one_out(dataset).train)
    keys = [part.cache_key(table, seed=0)[:16] for part in cached_parts(job.recipe.encoder)]
    assert [name for name in locks if name.startswith("vectors")] == [f"vectors-{key}" for key in keys]


@pytest.mark.parametrize(
    "moments",
    [
        ["residual k-means: depth 1/2"],
        ["ids: fitted in", "step 5/12", "step 9/12"],
        ["generator: best at step", "test: recall@10", "looking at the ids"],
    ],
    ids=["ids", "training", "evaluation"],
)
def test_killed_and_resumed_gives_the_same_line(
    moments: list[str], job: Job, unbroken: tuple[Place, dict[str, Any]], tmp_path: Path
) -> None:
    place = Place(tmp_path, "toy")
    for moment in moments:
        with pytest.raises(Killed):
            work_here(job, place, Messages(moment))
        assert not (place.work(job.key) / "result.json").exists()
    code, messages = work_here(job, place)
    assert code == 0
    assert any("resuming from step" in line for line in messages.lines) == ("step 9/12" in moments)
    line = result_of(place, job)
    assert line["attempts"] == len(moments) + 1
    assert without_times(line) == without_times(unbroken[1])
    assert line["values_hash"] == unbroken[1]["values_hash"], "the values of every user are the same bits"


def test_what_a_line_holds(job: Job, unbroken: tuple[Place, dict[str, Any]]) -> None:
    place, line = unbroken
    result = Result.from_dict(line)
    append(place, result)
    (read,) = stored(place)
    assert read.to_dict() == result.to_dict()
    assert (read.method, read.seed, read.fingerprint) == ("rq-kmeans", 0, job.fingerprint)
    assert read.recipe == job.recipe.to_dict()
    assert "source" not in read.data
    assert read.data["fingerprint"] == job.data.fingerprint
    assert read.codes == (code_fingerprint(),)
    assert set(read.seconds) == {"vectors", "tokenizer", "training", "evaluation", "wall"}
    assert read.seconds["wall"] > read.seconds["training"] > 0
    assert read.peak_memory_mb > 50
    assert read.parameters > 1000
    assert (read.steps, read.sequences) == (12, 12 * 32)
    assert read.tokens == sum(phase["tokens"] for phase in read.log)
    assert [p["step"] for p in read.log[0]["curve"]] == [4, 8, 12]
    assert read.ids["items"] == 48
    assert {"capsid", "python", "torch", "numpy"} == set(read.versions)
    test = read.evaluations["test"]
    assert {"variants", "recall@10_by_tier", "coverage@10", "code_recall@50", "exposure@10"} <= set(test)
    assert read.metric("recall@10:expected") == test["variants"]["recall@10:expected"]
    with pytest.raises(ConfigError, match="did you mean 'recall@10'"):
        read.metric("recal@10")


def test_values_of_every_user(job: Job, shop: Path, unbroken: tuple[Place, dict[str, Any]]) -> None:
    place, _ = unbroken
    results = stored(place)
    (read,) = results
    whole = Recommender(job.recipe).fit(str(shop))
    for name, filtered in (("test", False), ("test-filtered", True)):
        found = whole.evaluate("test", filter_history=filtered)
        values = results.values(read, name, "ndcg@10")
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, found.values["ndcg@10"], rtol=1e-6)
        assert read.metric("ndcg@10", name) == found.metrics["ndcg@10"]
    users, targets = results.cases(read, "test")
    np.testing.assert_array_equal(targets, whole.catalogue_.split.test.targets)
    assert len(users) == read.evaluations["test"]["users"]
    with pytest.raises(ConfigError, match=r"no values 'ndgc@10'.*ndcg@10"):
        results.values(read, "test", "ndgc@10")
    with pytest.raises(ConfigError, match=r"no evaluation 'valid'.*test"):
        results.values(read, "valid", "ndcg@10")


def test_ids_are_made_once_and_shared(shop: Path, tmp_path: Path) -> None:
    narrow = [s for s in TINY if "width=8" not in s] + ["generator.width=4"]
    groups = [
        {"method": "rq-kmeans", "settings": list(TINY)},
        {"method": "rq-kmeans", "label": "narrow", "settings": narrow},
        {"method": "rq-kmeans", "label": "beside", "settings": [*TINY, "tokenizer.codebooks=5,5"]},
    ]
    place = Place(tmp_path, "toy")
    said = {}
    for job in jobs_of(plan_of(*groups), shop):
        code, messages = work_here(job, place)
        assert code == 0
        said[job.cell.label] = [line for line in messages.lines if line.startswith(("residual k-means", "ids: "))]
    made = {label: sum("residual k-means: depth 1" in line for line in lines) for label, lines in said.items()}
    assert made == {"rq-kmeans": 1, "narrow": 0, "beside": 1}
    assert any("reused from another cell" in line for line in said["narrow"])
    lines = {job.cell.label: result_of(place, job) for job in jobs_of(plan_of(*groups), shop)}
    assert {k: v["tokenizer_shared"] for k, v in lines.items()} == {"rq-kmeans": False, "narrow": True, "beside": False}
    assert lines["narrow"]["seconds"]["tokenizer"] == lines["rq-kmeans"]["seconds"]["tokenizer"]
    assert lines["narrow"]["ids"] == lines["rq-kmeans"]["ids"] != lines["beside"]["ids"]

    # Damaged ones are made again.
    (folder,) = [p.parent for p in place.tokenizers.glob("*/*/made.json") if "[5, 5]" not in str(_codebooks(p))]
    (folder / "made.json").write_text("{}")
    again = jobs_of(plan_of({**groups[1], "label": "again", "evaluations": ["valid"]}), shop)[0]
    code, messages = work_here(again, place)
    assert code == 0
    assert any("damaged and will be fitted again" in line for line in messages.lines)


def _codebooks(made: Path) -> list[int]:
    return list(read_json(made.parent / "tokenizer.json")["tokenizer"]["codebooks"])


def test_a_given_tokenizer_must_be_of_the_recipe(job: Job, shop: Path) -> None:
    fitted = Recommender(job.recipe).fit(str(shop)).fitted.tokenizer
    given = Recommender(job.recipe).fit(str(shop), tokenizer_from=lambda table, seed, progress: fitted)
    assert given.fitted.tokenizer is fitted
    other = Recommender(job.recipe.with_settings(["tokenizer.codebooks=4,4"]))
    with pytest.raises(ConfigError, match=r"does not match the recipe: tokenizer.codebooks"):
        other.fit(str(shop), tokenizer_from=lambda table, seed, progress: fitted)


def test_errors_are_messages(shop: Path, job: Job, tmp_path: Path) -> None:
    place = Place(tmp_path, "toy")
    changed = dataclasses.replace(job, data=dataclasses.replace(job.data, fingerprint="0" * 16))
    code, messages = work_here(changed, place)
    assert code == 1
    assert "changed since the run began" in messages.said[-1]["error"]
    assert messages.said[-1]["hint"] == "run the plan again"
    assert read_journal(place.work(changed.key))["attempts"] == 1


def test_fingerprints(shop: Path, job: Job) -> None:
    cell, recipe = job.cell, job.recipe
    prose = dataclasses.replace(recipe, name="another", about="told otherwise", deviations=("none",))
    same = cell_fingerprint(prose, job.data.fingerprint, cell.seed, cell.evaluations, cell.ks)
    assert same == job.fingerprint
    others = [
        cell_fingerprint(
            recipe.with_settings(["decoder.width=16"]), job.data.fingerprint, 0, cell.evaluations, cell.ks
        ),
        cell_fingerprint(recipe, "other", 0, cell.evaluations, cell.ks),
        cell_fingerprint(recipe, job.data.fingerprint, 1, cell.evaluations, cell.ks),
        cell_fingerprint(recipe, job.data.fingerprint, 0, ("test",), cell.ks),
        cell_fingerprint(recipe, job.data.fingerprint, 0, cell.evaluations, (10,)),
    ]
    assert len({job.fingerprint, *others}) == 6
    wide = recipe.with_settings(["generator.width=16", "schedule.0.training.steps=3"])
    assert tokenizer_fingerprint(wide, "d", 0) == tokenizer_fingerprint(recipe, "d", 0)
    for change in ("encoder.dim=17", "tokenizer.codebooks=5,5", "collisions=bucket", "merges=semantic-bpe"):
        assert tokenizer_fingerprint(recipe.with_settings([change]), "d", 0) != tokenizer_fingerprint(recipe, "d", 0)
    assert Job.from_dict(job.to_dict()) == job


def test_code_fingerprint(tmp_path: Path) -> None:
    for name in ("train/loop.py", "cli/main.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x = 1\n")
    first = code_fingerprint.__wrapped__(tmp_path)
    (tmp_path / "cli" / "main.py").write_text("x = 2\n")
    assert code_fingerprint.__wrapped__(tmp_path) == first
    (tmp_path / "train" / "loop.py").write_text("x = 2\n")
    assert code_fingerprint.__wrapped__(tmp_path) != first


def test_estimates_scale(job: Job, unbroken: tuple[Place, dict[str, Any]]) -> None:
    result = Result.from_dict({**unbroken[1], "seconds": {"training": 10.0, "wall": 30.0}})
    assert estimate(job, [result]).seconds == pytest.approx(30.0)
    long = dataclasses.replace(job, recipe=job.recipe.with_settings(["schedule.0.training.steps=36"]))
    assert estimate(long, [result]).seconds == pytest.approx(30.0 + 20.0)
    large = dataclasses.replace(job, data=dataclasses.replace(job.data, interactions=2 * job.data.interactions))
    assert estimate(large, [result]).seconds == pytest.approx(10.0 + 40.0)
    assert estimate(job, [result], spent=12.0).seconds == pytest.approx(18.0)
    assert estimate(job, [result], spent=100.0).seconds == pytest.approx(3.0)
    assert estimate(job, [dataclasses.replace(result, method="sasrec")]).basis == "table of rough speeds"
    assert rough_seconds(long) > rough_seconds(job) > 0


def test_the_smoke_plan(tmp_path: Path) -> None:
    """Every cell of it works; the two with the same ids make them once."""
    place, facts = Place(tmp_path, "smoke"), data_facts("planted", "planted", download=False)
    said = []
    for cell in read_plan("smoke").cells:
        job = make_job(cell, facts)
        code, messages = work_here(job, place)
        assert code == 0, messages.said[-1]
        said += messages.lines
        append(place, Result.from_dict(result_of(place, job)))
    assert len(stored(place)) == len(read_plan("smoke").cells)
    assert sum("residual k-means: depth 1" in line for line in said) == 1
    assert all(0 < r.metric("recall@10") < 1 for r in stored(place))


def test_a_fitted_run_is_kept_where_asked_and_nowhere_else(shop: Path, tmp_path: Path) -> None:
    """Through the real runner and a real process."""
    plan = plan_of(
        {"method": "popularity", "label": "most / taken"}, {"method": "popularity", "label": "again", "seeds": [1]}
    )
    summary, _ = run(plan.only("most*"), Place(tmp_path / "store", "toy"), shop, keep=tmp_path / "kept")
    assert not summary.failed
    kept = tmp_path / "kept" / "shop-0" / "most-taken"
    (line,) = stored(Place(tmp_path / "store", "toy"))
    again = Recommender.from_pretrained(kept).evaluate("test", ks=line.ks, filter_history=False)
    assert again.metrics["recall@10"] == line.evaluations["test"]["metrics"]["recall@10"]
    run(plan, Place(tmp_path / "store", "toy"), shop)
    assert [p.name for p in (tmp_path / "kept").rglob("recipe.json")] == ["recipe.json"]


def test_a_place_that_cannot_keep_a_run_is_told_before_the_work(job: Job, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("not a folder")
    place = Place(tmp_path / "store", "toy")
    with pytest.raises(ArtifactError, match="not a folder"):
        run_cell(job, place, Journal(place.work(job.key), "code"), Messages(), RunOptions(), tmp_path / "taken")
    assert not (place.work(job.key) / "fit").exists()


def test_cells_with_shuffled_ties_have_other_targets(shop: Path, tmp_path: Path) -> None:
    tied = shutil.copytree(shop, tmp_path / "tied")
    (tied / "manifest.json").unlink()
    (tied / "times.txt.gz").unlink()
    lines = gzip.decompress((tied / "sequences.txt.gz").read_bytes()).decode().splitlines()
    days = [" ".join([line.split()[0], *["0"] * len(line.split()[1:])]) for line in lines]
    (tied / "days.txt").write_text("\n".join(days) + "\n")
    group = {"method": "popularity"}
    place = Place(tmp_path / "store", "toy")
    file = jobs_of(plan_of(group), tied)[0]
    plan = plan_of(group, {**group, "order": 1}, ties="shuffle")
    assert not run(plan, place, tied)[0].failed
    first, second = stored(place)
    assert (file.data.order, first.order, second.order) == ("file", "shuffle 0", "shuffle 1")
    assert len({file.fingerprint, first.fingerprint, second.fingerprint}) == 3
    assert first.evaluations["test"]["untied"]["cases"] == 0, "all items of a user have one time"
    assert stored(place).values(first, "test", "tied").all()
    targets = [stored(place).cases(cell, "test")[1].tolist() for cell in (first, second)]
    assert targets[0] != targets[1]
    assert targets[0] == leave_one_out(load_dataset(tied)).test.targets.tolist()
    again = jobs_of(plan, tied)[0]
    assert again.fingerprint == first.fingerprint, "the order does not change from run to run"


def test_a_plan_may_ask_for_the_future(shop: Path, tmp_path: Path) -> None:
    group = {"method": "popularity", "evaluations": ["valid", "test"]}
    plan = plan_of(group, holdout="time", target="successive")
    place = Place(tmp_path, "toy")
    assert not run(plan, place, shop)[0].failed
    (found,) = stored(place)
    split = temporal_split(load_dataset(shop), target="successive")
    assert found.split == "temporal-successive"
    assert stored(place).cases(found, "test")[1].tolist() == split.test.targets.tolist()
    test = found.evaluations["test"]
    assert test["cases"] == len(split.test) == test["by_warmth"]["warm"]["cases"] + test["by_warmth"]["cold"]["cases"]
    assert test["users"] == len(set(split.test.users.tolist())) < test["cases"]
    assert test["untied"]["cases"] == test["cases"], "no two items of a user have one time"
    one, last = jobs_of(plan_of(group), shop)[0], jobs_of(plan_of(group, holdout="time"), shop)[0]
    assert len({one.fingerprint, last.fingerprint, found.fingerprint}) == 3
    assert len({one.training, last.training}) == 2, "a run is not shared by splits"
    for wrong in ({"holdout": "tme"}, {"target": "successive"}, {"holdout": "time", "target": "first"}):
        with pytest.raises(ConfigError):
            plan_of(group, **wrong)
