"""Low-rank adapters of the routing, trained in stage 2 (CapsID, arXiv 2605.05096, section 3.4).

Every depth gets W_k + A B with one A B for all its capsules, zero at the start: the paper leaves the placement of the
adapters open. Centres, outputs and temperatures keep their stage-1 values. The trained adapters are folded into the
poses afterwards, so a stored tokenizer does not contain them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from capsid.base.randomness import child_seed
from capsid.errors import ConfigError
from capsid.tokenize.capsules.low_rank import LowRank
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork

# Bisection steps in the search for the largest allowed scale of the adapters.
HALVINGS = 6


def attach(network: CapsuleNetwork, rank: int, seed: int) -> nn.ModuleList:
    """Give every depth an adapter (depths that share poses share it); only the adapters stay trainable."""
    if rank < 1:
        raise ConfigError(f"the rank of routing adapters must be at least 1, got {rank}")
    network.requires_grad_(False)
    rng = torch.Generator().manual_seed(child_seed(seed, "capsules", "adapters"))
    made: dict[int, LowRank] = {}
    for layer in network.depths:
        if id(layer.poses) not in made:
            dim, width = layer.poses.shared().shape  # type: ignore[operator]
            made[id(layer.poses)] = LowRank(dim, width, rank, rng)
        layer.adapter = made[id(layer.poses)]
    return nn.ModuleList(made.values())


def fold(network: CapsuleNetwork) -> None:
    """Fold the adapters into the poses and remove them."""
    for layer in _with_own_poses(network):
        if layer.adapter is not None:
            with torch.no_grad():
                layer.poses.absorb(layer.adapter.matrix())  # type: ignore[operator]
    for layer in network.depths:
        layer.adapter = None
    network.requires_grad_(False)


def limit(network: CapsuleNetwork, changed: Callable[[], float], most: float) -> float:
    """Scale the adapters down until at most a share `most` has `changed`; returns that share."""
    share = changed()
    if share <= most:
        return share
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        _scale(network, middle)
        low, high = (middle, high) if changed() <= most else (low, middle)
    _scale(network, low)
    return changed()


def _scale(network: CapsuleNetwork, value: float) -> None:
    for layer in network.depths:
        if layer.adapter is not None:
            layer.adapter.scale.fill_(value)


def _with_own_poses(network: CapsuleNetwork) -> list[CapsuleLayer]:
    """One layer per set of poses."""
    return list({id(layer.poses): layer for layer in reversed(network.depths)}.values())
