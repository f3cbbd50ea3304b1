"""Workers that map a run make the lists of a run that is loaded whole, whatever the method needs."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from small_recipes import small, tiny_world

from capsid.base.storage.artifacts import MANIFEST
from capsid.data.dataset import Dataset
from capsid.errors import ArtifactError
from capsid.recommender import Recommender
from capsid.scale.engine import Processes, run_job
from capsid.scale.jobs import RankJob, job_text, run_shard
from capsid.scale.ranked import read_lists

OLD = Path(__file__).parents[1] / "recommender" / "runs-of-0.1.tar.gz"
METHODS = {
    "ids of several lengths": ("capsid", ()),
    "merges, soft input, memory": ("capsid-bpe", ("generator.soft_input=3", "memory=memory")),
    "two ids": ("capsid-two", ("generator.soft_input=2", "generator.compose=true")),
    "dense vectors": ("tiger-dense", ()),
    "in context, several readings": ("actionpiece", ()),
    "one token per item": ("sasrec", ()),
    "no weights": ("popularity", ()),
}
Lists = list[tuple[str, list[str], list[float]]]


def fit(name: str, settings: tuple[str, ...], out: Path, data: Dataset | None = None) -> Recommender:
    fitted = Recommender(small(name, 2).with_settings(settings)).fit(data or tiny_world())
    fitted.save_pretrained(out)
    return fitted


def job(run: Path, out: Path, *, k: int = 5, filtered: bool = True) -> RankJob:
    return RankJob.prepare(run, out, split="test", k=k, filter_history=filtered)


def ranked(run: Path, out: Path, *, k: int = 5, filtered: bool = True) -> Lists:
    asked = job(run, out, k=k, filtered=filtered)
    run_job(asked)
    return list(read_lists(asked.open()))


@pytest.mark.parametrize("method", METHODS)
def test_lists_are_those_of_the_whole_run(method: str, tmp_path: Path) -> None:
    fitted = fit(*METHODS[method], tmp_path / "run")
    for k, filtered in ((5, True), (100, False)):
        wanted = list(fitted.predict("test", k, filter_history=filtered))
        assert ranked(tmp_path / "run", tmp_path / f"lists{k}", k=k, filtered=filtered) == wanted


@pytest.mark.parametrize("name", ["capsid-strong", "capsid-two", "sasrec"])
def test_runs_of_older_versions(name: str, tmp_path: Path) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    wanted = list(Recommender.from_pretrained(tmp_path / name).predict("test", 5, filter_history=False))
    assert ranked(tmp_path / name, tmp_path / "lists", filtered=False) == wanted


def test_workers_read_neither_item_ids_nor_codes_nor_vectors(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit("capsid-bpe", ("generator.soft_input=2",), run)
    asked = job(run, tmp_path / "lists")
    listed = ranked(run, tmp_path / "before")
    grown = [
        "items.parquet",
        "users.parquet",
        "tokenizer/ids.parquet",
        "tokenizer/vectors.npy",
        "tokenizer/tokenizer.npz",
    ]
    kept = {name: (run / name).read_bytes() for name in grown}
    for name in grown:
        (run / name).write_bytes(b"nobody reads this")
    assert run_shard(job_text(asked), 0)["written"]
    for name, data in kept.items():
        (run / name).write_bytes(data)
    assert list(read_lists(asked.open())) == listed


def test_processes_write_the_same_bytes(tmp_path: Path) -> None:
    fit("popularity", (), tmp_path / "run")
    for engine in (None, Processes(1)):
        run_job(job(tmp_path / "run", tmp_path / str(engine is None)), engine)
    (here,), (there,) = (sorted((tmp_path / name).glob("*.parquet")) for name in ("True", "False"))
    assert here.read_bytes() == there.read_bytes()


def test_another_run_in_its_place_is_refused(tmp_path: Path) -> None:
    fit("popularity", (), tmp_path / "run")
    asked = job(tmp_path / "run", tmp_path / "lists")
    manifest = tmp_path / "run" / MANIFEST
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(ArtifactError, match="is not the run that was checked"):
        asked.open().table(0)
