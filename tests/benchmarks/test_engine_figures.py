"""The benchmark of engines on a tiny catalogue: hashes are compared, kills happen, and figures are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_engines_write_the_same_bytes_after_kills(load, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path / "home"))
    result = load("engines").main(["--quick", "--skip", "two,ray,sleeping", "--out", str(tmp_path / "engines.json")])
    found = result["hashes"]
    assert found["all_equal"]
    assert set(found["engines"]) == {"here", "processes"}
    assert 3 <= found["engines"]["processes"]["kept_after_kill"] < 30
    assert json.loads((tmp_path / "engines.json").read_text())["hashes"] == found


def test_other_bytes_are_noticed(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    common = load("common")
    for folder, text in (("one", "a"), ("two", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "codes-00000.parquet").write_text(text)
    one, two = (common.folder_hash(tmp_path / folder) for folder in ("one", "two"))
    assert one != two
    (tmp_path / "two" / "codes-00000.parquet").write_text("a")
    assert common.folder_hash(tmp_path / "two") == one


def test_efficiency_of_sleeping_shards(load, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    engines = load("engines")
    monkeypatch.setattr(engines, "SLEEPERS", 1)
    found = engines.sleeping(engines.Processes(1), 6, 0.1)
    assert 0.2 < found["efficiency"] <= 1.0
    assert engines.processor_seconds() > 0
