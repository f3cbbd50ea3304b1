"""Parameters that share a learning rate or a clipped norm, buffers that belong to the weights, and lent weights."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from torch import Tensor, nn


def kept_buffers(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that are saved with a network."""
    kept = network.state_dict().keys()
    return {n: b for n, b in network.named_buffers() if n in kept}


def rate_groups(parameters: dict[str, nn.Parameter], weight_decay: float, rates: Mapping[str, float]) -> list[dict]:
    """Matrices decay; biases and norms do not. Each learning-rate factor has its own groups."""
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        factor = next((rate for pattern, rate in rates.items() if fnmatch.fnmatchcase(name, pattern)), 1.0)
        by_factor.setdefault(factor, []).append(parameter)
    groups = []
    for factor, own in by_factor.items():
        groups.append({"params": [p for p in own if p.dim() >= 2], "weight_decay": weight_decay, "factor": factor})
        groups.append({"params": [p for p in own if p.dim() < 2], "weight_decay": 0.0, "factor": factor})
    return groups


def clipped_together(parameters: dict[str, nn.Parameter], apart: tuple[nn.Module, ...]) -> list[list[nn.Parameter]]:
    """Lists of parameters whose gradients are clipped by one norm: one per module in `apart`, one for the rest."""
    own = [{id(p) for p in module.parameters()} for module in apart]
    groups = [[p for p in parameters.values() if id(p) in ids] for ids in own]
    rest = [p for p in parameters.values() if not any(id(p) in ids for ids in own)]
    return [group for group in (*groups, rest) if group]


class Lent:
    """Temporarily give parameters and buffers of the network other values."""

    def __init__(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        self.tensors, self.values = tensors, values

    def __enter__(self) -> None:
        self.own = {n: t.data for n, t in self.tensors.items()}
        for name, tensor in self.tensors.items():
            tensor.data = self.values[name]

    def __exit__(self, *_: object) -> None:
        for name, tensor in self.tensors.items():
            tensor.data = self.own[name]
