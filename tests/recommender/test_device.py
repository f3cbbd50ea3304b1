"""Every tensor of a fit and of recommendations is made on the device that was asked for. Needs no GPU.

The device is the CPU in disguise (`elsewhere`): as on a GPU, mixing devices is an error; beyond that, nothing may be
made or computed on the CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from elsewhere import DEVICE, Elsewhere, There
from small_recipes import small, tiny_world

from capsid.base.devices import choose, on_device
from capsid.base.run_options import RunOptions
from capsid.errors import ConfigError
from capsid.recommender import Recommender

FAR = str(DEVICE)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    # torch has a list of devices with fused optimisers, which this one is not on.
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_, **__: None)
    return Elsewhere()


# Capsules, merges, soft input, likelihood over children; an RQ-VAE with dense vectors; masked items.
@pytest.mark.filterwarnings("ignore:.*to a meta parameter")
@pytest.mark.parametrize("name", ["capsid-bpe", "cobra", "bert4rec"])
def test_nothing_is_made_or_computed_elsewhere(name: str, watch: Elsewhere, tmp_path: Path) -> None:
    recipe, history = small(name, 2), list(tiny_world().items)[:3]
    recommender = Recommender(recipe)
    with watch:
        recommender.fit(tiny_world(), work=tmp_path / "work", run=RunOptions(device=FAR))
        items = recommender.recommend(history, 5).items
        recall = recommender.evaluate().metrics["recall@10"]
        recommender.save_pretrained(tmp_path / "run")
        assert watch.mistakes == set()
        again = Recommender.from_pretrained(tmp_path / "run", device=FAR)
        watch.mistakes.clear()  # Files are checked on the CPU before they are moved.
        assert again.recommend(history, 5).items == items
        assert watch.mistakes == set()
    assert all(isinstance(p, There) for p in recommender.fitted.generator.network.parameters())
    here = Recommender.from_pretrained(tmp_path / "run")
    assert here.recommend(history, 5).items == items, "a run can be read on another device"
    assert here.evaluate().metrics["recall@10"] == recall


def made_without_a_device() -> None:
    torch.zeros(3)


def mixed() -> None:
    with on_device(FAR):
        far = torch.ones(3)
    far + torch.ones(3)


def test_one_creation_without_its_device_is_noticed(watch: Elsewhere) -> None:
    with watch:
        with on_device(FAR):
            far = torch.as_tensor(np.arange(3.0)) + torch.arange(3)
        assert isinstance(far, There)
        assert watch.mistakes == set()
        made_without_a_device()
        assert any("aten.zeros" in text for text in watch.mistakes)
        with pytest.raises(AssertionError, match="mixes devices"):
            mixed()


def test_from_numpy_is_not_used() -> None:
    """It cannot be intercepted, so its tensors would stay on the CPU."""
    source = Path(__file__).parents[2] / "src" / "capsid"
    assert [str(p) for p in source.rglob("*.py") if "torch.from_numpy(" in p.read_text(encoding="utf-8")] == []


def test_drawn_numbers_do_not_depend_on_the_device(watch: Elsewhere) -> None:
    def draw() -> list[torch.Tensor]:
        source = torch.Generator().manual_seed(3)
        layer = torch.nn.Linear(3, 2)
        torch.nn.init.normal_(layer.weight, std=0.5, generator=source)
        with torch.no_grad():
            layer.bias.uniform_(-1, 1, generator=source)
        return [torch.randn(4, generator=source), layer.weight.detach(), layer.bias.detach()]

    with watch, on_device(FAR):
        far = [t.cpu() for t in draw()]
    assert all(torch.equal(a, b) for a, b in zip(far, draw()))


def test_arrays_come_back(watch: Elsewhere) -> None:
    with watch, on_device(FAR):
        there = torch.as_tensor(np.arange(6.0).reshape(2, 3)) * 2
        assert there.numpy().tolist() == there.tolist() == [[0, 2, 4], [6, 8, 10]]
        assert float(there[1, 2]) == 10


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", ""])
def test_names_of_devices(name: str) -> None:
    with pytest.raises(ConfigError, match="--device must be cpu, cuda, cuda:N or auto, got"):
        choose(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu() -> None:
    assert choose("auto") == choose("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="--device cuda:1: torch finds no GPU here"):
        choose("cuda:1")


def test_a_process_of_a_launcher_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose("cuda") == choose("auto") == torch.device("cuda", 1)
    assert choose("cuda:0") == torch.device("cuda", 0)
    assert taken == [1, 1, 0]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="there is no GPU 2, torch finds 2"):
        choose("cuda")
