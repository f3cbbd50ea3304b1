"""Runs that were stored before the redesign still load, recommend the same, and take new items.

The archive holds small `capsid`, `capsid-bpe`, `tiger` and `sasrec` runs, fitted on a tiny world and written by the
code of that time; the JSON file holds what they recommended after the first two items.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from capsid.evaluate.kept import keep_evaluation, kept_evaluation
from capsid.recommender import Recommender

HERE = Path(__file__).parent
ARCHIVE = HERE / "runs-before-the-redesign.tar.gz"
WANTED = json.loads((HERE / "runs-before-the-redesign.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", WANTED)
def test_an_old_run_recommends_what_it_did(name: str, stored: Path) -> None:
    recommender = Recommender.from_pretrained(stored / name)
    found = recommender.recommend(list(recommender.catalogue_.items)[:2], k=5)
    assert list(found.items) == WANTED[name]["items"]
    assert list(found.scores) == pytest.approx(WANTED[name]["scores"], rel=1e-4)
    assert recommender.evaluate("test").users == 20


@pytest.mark.parametrize("name", ["capsid", "capsid-bpe", "tiger"])
def test_an_old_run_takes_new_items_and_is_stored_again(name: str, stored: Path, tmp_path: Path) -> None:
    recommender = Recommender.from_pretrained(stored / name)
    recommender.add_items({"item_id": ["new"], "title": ["amber 0 birch 1 item 0"]})
    recommender.save_pretrained(tmp_path / "again")
    again = Recommender.from_pretrained(tmp_path / "again")
    assert again.recommend(["new"], k=2) == recommender.recommend(["new"], k=2)


def test_evaluations_kept_by_older_versions_are_read_and_joined(stored: Path, tmp_path: Path) -> None:
    """They had no manifest of their own; a run that holds some still opens, and the next evaluation adds one."""
    run = tmp_path / "run"
    shutil.copytree(stored / "tiger", run)
    recommender = Recommender.from_pretrained(run)
    cases = recommender.catalogue_.split.cases("test")
    keep_evaluation(run, recommender.evaluate("test"), cases)
    (run / "evaluations" / "manifest.json").unlink()
    again = Recommender.from_pretrained(run)
    assert kept_evaluation(run).metric("recall@10").mean() == pytest.approx(again.evaluate("test").metrics["recall@10"])
    keep_evaluation(run, again.evaluate("test", filter_history=True), cases)
    assert sorted(p.name for p in (run / "evaluations").iterdir()) == [
        "manifest.json",
        "test-filtered.json",
        "test-filtered.npz",
        "test.json",
        "test.npz",
    ]
