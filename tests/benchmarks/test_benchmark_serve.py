"""The service benchmark on a tiny run: what it promises to count, it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")


def test_promises_are_counted(load, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    serve = load("serve")
    amounts = serve.Amounts(0.3, 0.3, 3, 5, 1, 1, 20)
    monkeypatch.setattr(serve, "QUICK", amounts)
    out = tmp_path / "serve.json"
    result = serve.main(["--quick", "--only", "peak,edits,terminations,bodies,watching", "--out", str(out)])
    assert result["peak"]["codes"].keys() == {"200"}
    assert result["peak"]["of_raw"] > 0
    assert result["edits"]["edits"] == {"200": 3}
    assert result["edits"]["answers_not_of_their_version"] == 0
    assert result["terminations"]["lost"] == 0
    assert result["bodies"]["server_errors"] == 0
    assert result["watching"]["same_bits"]
    assert set(json.loads(out.read_text())) >= {"machine", "config", "peak", "raw"}
