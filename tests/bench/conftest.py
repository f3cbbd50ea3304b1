from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bench_world import FAKE, jobs_of, plan_of, work_here

from capsid.bench.store import Place
from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 items, 60 users."""
    dataset = planted_dataset(branching=(3, 2, 2), items_per_leaf=4, users=60, length=7)
    return write_prepared(dataset, tmp_path_factory.mktemp("bench-data") / "shop")


@pytest.fixture(scope="session")
def fake(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell's process that pretends, and beside it what it says to have found."""
    folder = tmp_path_factory.mktemp("fake")
    place = Place(folder / "store", "template")
    (job,) = jobs_of(plan_of({"method": "popularity"}, name="template"), shop)
    assert work_here(job, place)[0] == 0
    shutil.copy(place.work(job.key) / "result.json", folder / "result.json")
    (values,) = (place.folder / "values").glob("*.npz")
    shutil.copy(values, folder / "values.npz")
    (folder / "fake.py").write_text(FAKE)
    return folder / "fake.py"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "store", "toy")
