"""For all tests: one thread, no network, a cache of their own, property tests that draw the same examples each time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import faiss
import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "benchmarks", ROOT / "faults")

torch.set_num_threads(1)
faiss.omp_set_num_threads(1)
# A failure must come back when the suite is run again, so examples are derived from the test itself.
# Explaining a failure takes a minute and more.
hypothesis.settings.register_profile(
    "capsid",
    deadline=None,
    max_examples=30,
    derandomize=True,
    database=None,
    phases=[p for p in hypothesis.Phase if p is not hypothesis.Phase.explain],
)
hypothesis.settings.load_profile("capsid")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is read from or left in the user's cache."""
    home = tmp_path_factory.mktemp("capsid-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSID_HOME", str(home))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield home


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Import a benchmark or a fault campaign by its file's name, as running the file does; threads are put back."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    threads, before = torch.get_num_threads(), set(sys.modules)

    def by_name(name: str) -> ModuleType:
        # A folder of tests may have the same name and stand in the path as well.
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
        assert module.__file__ in {str(folder / f"{name}.py") for folder in FOLDERS}
        return module

    yield by_name
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(tuple(map(str, FOLDERS))):
            del sys.modules[name]
