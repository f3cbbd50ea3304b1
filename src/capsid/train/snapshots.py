"""The best weights so far by validation, and their mean. Knows names and tensors, no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
# Metric of weights that were not validated; the next offer replaces them.
NEVER_VALIDATED = -math.inf


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Weights after a step, with their validation metric."""

    step: int
    metric: float
    weights: Weights


class Snapshots:
    """At most `most` snapshots, best first; ties keep the earlier one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: list[Snapshot] = []

    def offer(self, step: int, metric: float, weights: Callable[[], Weights]) -> None:
        """Keep the weights if they are among the best; `weights` is called only then."""
        self.kept = [s for s in self.kept if s.metric > NEVER_VALIDATED]
        place = sum(metric <= snapshot.metric for snapshot in self.kept)
        if place < self.most:
            self.kept.insert(place, Snapshot(step, metric, weights()))
            del self.kept[self.most :]

    def mean(self) -> Weights:
        """The mean of all snapshots; tensors that are not floats come from the best one."""
        best = self.kept[0].weights
        return {
            name: torch.stack([s.weights[name] for s in self.kept]).mean(0) if own.is_floating_point() else own
            for name, own in best.items()
        }

    def tensors(self) -> Weights:
        """All tensors, named for a file."""
        return {f"{_group(i)}/{n}": t.clone() for i, s in enumerate(self.kept) for n, t in s.weights.items()}

    def values(self) -> list[tuple[int, float]]:
        """Steps and metrics, for a file."""
        return [(s.step, s.metric) for s in self.kept]

    def restore(self, values: list[tuple[int, float]], group: Callable[[str], Mapping[str, Tensor]]) -> None:
        """Restore the snapshots of a file; `group` returns the tensors with a name prefix."""
        self.kept = [Snapshot(step, metric, dict(group(_group(i)))) for i, (step, metric) in enumerate(values)]


def _group(number: int) -> str:
    return "best" if number == 0 else f"best-{number}"
