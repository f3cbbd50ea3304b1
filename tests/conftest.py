"""For all tests: one thread, no network, a cache of their own, property tests that draw the same examples each time."""

from __future__ import annotations

from pathlib import Path

import faiss
import hypothesis
import pytest
import torch

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
