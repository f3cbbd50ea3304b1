"""Weights from a file: they must be those of the network that the settings describe, and finite."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from torch import nn

from capsid.base.blocks.weights import load_weights
from capsid.errors import ArtifactError


class Small(nn.Module):
    def __init__(self, wide: int, table: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(3, wide)
        self.register_buffer("table", torch.zeros(table), persistent=False)


def test_they_come_back() -> None:
    state = Small(5).state_dict()
    network = load_weights(lambda: Small(5), state)
    assert not network.training
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("wide", [4, 10**9])
def test_other_shapes_are_refused_before_memory_is_taken(wide: int) -> None:
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=r"layer\.bias is 5 in the file and .* by the settings"):
        load_weights(lambda: Small(wide), Small(5).state_dict())
    tracemalloc.stop()


def test_missing_and_surplus_weights_are_refused() -> None:
    state = Small(5).state_dict()
    with pytest.raises(ArtifactError, match="is missing in the file"):
        load_weights(lambda: Small(5), {"layer.weight": state["layer.weight"]})
    with pytest.raises(ArtifactError, match="missing by the settings"):
        load_weights(lambda: Small(5), {**state, "more": torch.zeros(2)})


def test_tables_beside_the_weights_are_bounded() -> None:
    with pytest.raises(ArtifactError, match="tables of"):
        load_weights(lambda: Small(5, 10**12), Small(5).state_dict())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    state = Small(5).state_dict()
    state["layer.bias"][2] = value
    with pytest.raises(ArtifactError, match=r"layer\.bias are not all finite"):
        load_weights(lambda: Small(5), state)
