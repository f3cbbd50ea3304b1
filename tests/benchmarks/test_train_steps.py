"""A tiny run of the benchmark of training steps: twins agree with our way, and a twin that does not is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch


@pytest.fixture
def steps(load, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    module = load("train_steps")
    for name, value in {"ITEMS": 300, "USERS": 800, "SINGLE": 200}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_twins_agree_and_the_result_is_whole(steps, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = steps.main(["--quick", f"--out={tmp_path / 'steps.json'}"])
    for name, variants in (("sasrec", 4), ("merged ids", 2)):
        assert len(result[name]["ours_relative_to"]) == variants
        assert result[name]["ours_relative_to"][steps.OURS] == 1.0
        assert result[name]["largest_difference_of_gradients"] < 1e-4
    written = json.loads((tmp_path / "steps.json").read_text())
    assert written["sasrec"] == result["sasrec"]


def test_a_twin_that_differs_is_noticed(steps) -> None:  # type: ignore[no-untyped-def]
    gradients = [torch.ones(3), torch.ones(2)]
    other = [torch.ones(3), torch.tensor([1.0, 1.5])]
    assert steps.apart({steps.OURS: lambda: gradients, "twin": lambda: gradients}) == 0
    assert steps.apart({steps.OURS: lambda: gradients, "twin": lambda: other}) == 0.5
