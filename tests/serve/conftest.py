"""A small run, and a server over it that all tests of a file share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
sys.path.insert(0, str(Path(__file__).parents[1] / "recommender"))

from served import Served
from small_recipes import small, world

from capsid.recommender import Recommender


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    Recommender(small("capsid")).fit(world()).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def served(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(run, tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture
def recommender(run: Path) -> Recommender:
    return Recommender.from_pretrained(run)
