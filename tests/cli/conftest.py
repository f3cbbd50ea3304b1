from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_world import capsid, settings

from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared folder: 64 items, 120 users."""
    dataset = planted_dataset(branching=(4, 2, 2), items_per_leaf=4, users=120, length=8)
    return write_prepared(dataset, tmp_path_factory.mktemp("data") / "shop")


@pytest.fixture(scope="session")
def fitted(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test may change."""
    out = tmp_path_factory.mktemp("runs") / "shop"
    answer = capsid("fit", "rq-kmeans", "--data", shop, "--out", out, *settings())
    assert answer.code == 0, answer.err
    return out


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A copy of the run, to do with as one likes."""
    return Path(shutil.copytree(fitted, tmp_path / "run"))
