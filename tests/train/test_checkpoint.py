from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from capsid.errors import ArtifactError
from capsid.train import checkpoint as module
from capsid.train.checkpoint import load_checkpoint, save_checkpoint

TENSORS = {"a/x": torch.arange(6.0).view(2, 3).t(), "a/y": torch.tensor(3), "b/x": torch.zeros(0)}


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c.checkpoint"
    assert load_checkpoint(path) is None
    save_checkpoint(path, TENSORS, {"done": 3, "best": float("-inf"), "curve": [[1, 0.1]]})
    loaded = load_checkpoint(path)
    assert loaded is not None
    assert loaded.values == {"done": 3, "best": float("-inf"), "curve": [[1, 0.1]]}
    assert set(loaded.group("a")) == {"x", "y"}
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(loaded.tensors[name], tensor, rtol=0, atol=0)
    assert os.listdir(path.parent) == ["c.checkpoint"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_says_what_to_do(tmp_path: Path, share: float) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, TENSORS, {"done": 3})
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ArtifactError, match=r"cannot be read.*delete it to start over"):
        load_checkpoint(path)


def test_a_foreign_file_says_what_to_do(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "c")
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_checkpoint(tmp_path / "c")


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "c", TENSORS, {"done": 3})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"No space left.*disk full"):
        save_checkpoint(tmp_path / "c", TENSORS, {"done": 4})
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded is not None
    assert loaded.values == {"done": 3}
    assert os.listdir(tmp_path) == ["c"]
