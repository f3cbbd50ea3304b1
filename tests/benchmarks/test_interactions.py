"""The benchmark of imports on a few thousand rows: the result is checked, and what is measured is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def test_a_quick_import(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out.json"
    result = load("interactions").main(["--quick", "--rows", "3k", "--work", str(tmp_path), "--out", str(out)])
    (size,) = result["sizes"]
    assert size["rows"] == 3_000
    assert 0 < size["kept"]["interactions"] < 3_000
    assert size["cpu_seconds"] > 0
    assert size["peak_bytes"] > 1e7
    assert json.loads(out.read_text())["config"]["core"] == 5
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
