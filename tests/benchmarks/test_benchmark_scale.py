"""The benchmark of workers' memory on a tiny catalogue: what it measures is there, and the worker did its shard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def test_memory_of_a_worker(load, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    scale = load("scale")
    monkeypatch.setattr(scale, "SIZES", (4, 4))
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path / "home"))
    result = scale.main(["--quick", "--skip", "rank", "--out", str(tmp_path / "scale.json")])
    small, large = result["worker_memory"]
    assert small["written"]
    assert large["written"]
    assert large["tokenizer_folder_bytes"] > 2 * small["tokenizer_folder_bytes"]
    assert 0 < small["held_bytes"] <= small["peak_bytes"]
    assert json.loads((tmp_path / "scale.json").read_text())["config"]["items"] == [2_000, 20_000]
