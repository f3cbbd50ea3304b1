from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import faiss
import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Import a benchmark by its file's name, as running the file does; threads are put back afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    threads, before = torch.get_num_threads(), set(sys.modules)

    def by_name(name: str) -> ModuleType:
        # A folder of tests has the same name and may stand in the path as well.
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
        assert module.__file__ == str(FOLDER / f"{name}.py")
        return module

    yield by_name
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]
