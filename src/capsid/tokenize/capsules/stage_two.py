"""Stage 2: low-rank adapters of the routing that a generator trains (CapsID, arXiv 2605.05096, section 3.4).

Every depth gets W_k + A B with one A B for all its capsules, zero at the start: the paper leaves the placement of the
adapters open. Centres, outputs and temperatures keep their stage-1 values. Trained adapters are folded into the poses,
so a stored tokenizer does not contain them. The generator was trained on the old ids, so few of them may change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from capsid.base.randomness import child_seed
from capsid.errors import ConfigError
from capsid.ids.order import SharedPrefixes
from capsid.ragged import Ragged
from capsid.tokenize.capsules.capsules import CapsuleNetwork, LowRank
from capsid.tokenize.capsules.catalogue import encode_catalogue
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.stage_one import drift_reference, reference_trace

# Bisection steps in the search for the largest allowed scale of the adapters.
HALVINGS = 6


def attach(network: CapsuleNetwork, rank: int, seed: int) -> nn.ModuleList:
    """Give every depth an adapter, or none with rank 0; only the adapters stay trainable."""
    if rank < 0:
        raise ConfigError(f"the rank of routing adapters must be at least 0, got {rank}")
    network.requires_grad_(False)
    if rank == 0:
        return nn.ModuleList()
    rng = torch.Generator().manual_seed(child_seed(seed, "capsules", "adapters"))
    adapters = nn.ModuleList()
    for capsules in network.depths:
        dim, width = capsules.poses.shared().shape
        capsules.adapter = LowRank(dim, width, rank, rng)
        adapters.append(capsules.adapter)
    return adapters


def settle(
    settings: CapsuleSettings, network: CapsuleNetwork, vectors_NI: np.ndarray, codes: Ragged, most: float
) -> tuple[SharedPrefixes, np.ndarray]:
    """Scale the adapters until at most a share `most` of the items has other codes, and make them permanent. Every
    trial encodes the whole catalogue, because an id's length also depends on the codes of other items."""

    def changed() -> float:
        new = encode_catalogue(settings, network, vectors_NI)[0][0]
        return float(np.mean([not np.array_equal(a, b) for a, b in zip(codes, new)]))

    limit(network, changed, most)
    fold(network)
    shared = encode_catalogue(settings, network, vectors_NI)[1]
    return shared, drift_reference(reference_trace(network, vectors_NI))


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


def fold(network: CapsuleNetwork) -> None:
    """Fold the adapters into the poses and remove them."""
    for capsules in network.depths:
        if capsules.adapter is not None:
            capsules.poses.absorb(capsules.adapter.matrix().detach())
        capsules.adapter = None
    network.requires_grad_(False)


def _scale(network: CapsuleNetwork, value: float) -> None:
    for capsules in network.depths:
        if capsules.adapter is not None:
            capsules.adapter.scale.fill_(value)
