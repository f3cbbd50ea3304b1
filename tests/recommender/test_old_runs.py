"""Runs of release 0.1 still load, have the same ids, recommend the same, and take new items.

The archive holds small runs, fitted on a tiny world and written by the code of that release; the JSON file holds what
they recommended after the first two items, and the tokens of the first four.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from capsid.recommender import Recommender

HERE = Path(__file__).parent
ARCHIVE = HERE / "runs-of-0.1.tar.gz"
WANTED = json.loads((HERE / "runs-of-0.1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", WANTED)
def test_an_old_run_recommends_what_it_did(name: str, stored: Path) -> None:
    recommender = Recommender.from_pretrained(stored / name)
    ids = recommender.fitted.tokenizer.ids
    assert {item: list(ids[item]) for item in WANTED[name]["tokens"]} == WANTED[name]["tokens"]
    if WANTED[name]["second"] is not None:
        assert {item: list(ids.others[0][item]) for item in WANTED[name]["second"]} == WANTED[name]["second"]
    found = recommender.recommend(list(recommender.catalogue_.items)[:2], k=5)
    assert list(found.items) == WANTED[name]["items"]
    assert list(found.scores) == pytest.approx(WANTED[name]["scores"], rel=1e-4, abs=1e-6)
    assert recommender.evaluate("test").users == 20


@pytest.mark.parametrize("name", ["capsid-strong", "capsid-two", "cobra"])
def test_an_old_run_takes_new_items_and_is_stored_again(name: str, stored: Path, tmp_path: Path) -> None:
    recommender = Recommender.from_pretrained(stored / name)
    recommender.add_items({"item_id": ["new"], "title": ["amber 0 birch 1 item 0"]})
    recommender.save_pretrained(tmp_path / "again")
    again = Recommender.from_pretrained(tmp_path / "again")
    assert again.recommend(["new"], k=2) == recommender.recommend(["new"], k=2)
