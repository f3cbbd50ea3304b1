"""The page benchmark on a tiny run: it opens views in a browser and counts bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")


def test_views_are_opened_and_weighed(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = load("page")
    if page.CHROMIUM is None:
        pytest.skip("there is no chromium: `make browser` installs it")
    out = tmp_path / "page.json"
    result = page.main(["--quick", "--only", "zoomed", "--out", str(out)])
    assert result["page"]["gzipped_bytes"] < 100_000
    assert set(result["views"]["zoomed"]["answers"]) == {"info", "tree"}
    assert 1_000 < result["largest_answer_bytes"] < 200_000
    assert result["views"]["zoomed"]["seconds"] > 0
    assert set(json.loads(out.read_text())) >= {"machine", "config", "page", "search"}
