"""Gradients of a batch that is cut into a fixed number of lanes; which parameters share a rate or a clipped norm.

The lanes' gradients are added in a fixed order, neighbours first. However many processes share the lanes, they add the
same numbers in the same order, so the weights are equal to the bit. Dropout depends on seed, step and lane only.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsid.base.randomness import child_seed
from capsid.base.run_options import Team
from capsid.errors import ConfigError


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


@dataclass(frozen=True)
class Loss:
    """Mean loss of a batch over its `predictions`, and how many tokens (without padding) the network read."""

    value: Tensor
    tokens: int
    predictions: int = 1


# Gives the loss of a lane; None for a lane without rows.
LaneLoss = Callable[[], Loss] | None


class TreeSum:
    """Adds tensors pairwise: neighbours, then neighbouring sums. Keeps one tensor for each level of the tree. Sums of
    1, 2, 4, ... neighbours may be made elsewhere and added in their stead: the total has the same bits."""

    def __init__(self) -> None:
        self._open: list[tuple[int, Tensor]] = []

    def add(self, tensor: Tensor) -> None:
        """Add the next tensor, which may be changed later."""
        count = 1
        while self._open and self._open[-1][0] == count:
            tensor = self._open.pop()[1].add_(tensor)
            count *= 2
        self._open.append((count, tensor))

    def value(self) -> Tensor:
        total = self._open.pop()[1]
        while self._open:
            total = self._open.pop()[1].add_(total)
        return total


@dataclass(frozen=True, eq=False)
class Lanes:
    """This process's share of `count` lanes."""

    count: int
    team: Team
    seed: int
    parameters: Sequence[nn.Parameter]

    def __post_init__(self) -> None:
        check_lanes(self.count, self.team.size)

    def gradients(self, parts: Sequence[LaneLoss], step: int) -> tuple[float, int]:
        """Set the gradients of the whole batch; its loss and tokens. Of its lanes, `parts`, only this process's own are
        called."""
        each = self.count // self.team.size
        total = TreeSum()
        for lane in range(self.team.rank * each, (self.team.rank + 1) * each):
            total.add(self._lane(parts[lane], step, lane))
        flat = self.team.sum(total.value())
        # The loss travels with the gradients, so every process notices a NaN.
        loss, predictions, tokens = flat[-3:].tolist()
        flat = flat[:-3].div_(max(predictions, 1.0))
        sizes = [p.numel() for p in self.parameters]
        for parameter, gradient in zip(self.parameters, flat.split(sizes)):
            parameter.grad = gradient.view_as(parameter)
        return loss / max(predictions, 1.0), int(tokens)

    def _lane(self, part: LaneLoss, step: int, lane: int) -> Tensor:
        """Gradients, loss, predictions and tokens in one row; means are multiplied by the number of predictions."""
        for parameter in self.parameters:
            parameter.grad = None
        like = self.parameters[0]
        numbers = like.new_zeros(3)
        if part is not None:
            torch.manual_seed(child_seed(self.seed, "dropout", step, lane))
            loss = part()
            total = loss.value * loss.predictions
            total.backward()
            numbers = torch.stack([total.detach(), *like.new_tensor([loss.predictions, loss.tokens])])
        grads = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in self.parameters]
        return torch.cat([*grads, numbers])


def check_lanes(lanes: int, processes: int) -> None:
    """Every process needs the same number of lanes, a power of two, for sums to have the same bits."""
    each, rest = divmod(lanes, processes)
    if rest or (processes > 1 and each & (each - 1)) or not each:
        raise ConfigError(
            f"training.lanes must be the number of processes ({processes}) times 1, 2, 4, 8, ..., got {lanes}",
            hint=f"--set schedule.0.training.lanes={lanes_for(processes)}",
        )


def lanes_for(processes: int) -> int:
    """The fewest lanes, and at least 4, that this many processes can share: the same 4 for 1, 2 and 4 processes."""
    lanes = processes
    while lanes < 4:
        lanes *= 2
    return lanes
