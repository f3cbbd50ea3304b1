"""Small capsule networks with arbitrary weights, nothing trained, and their numbers as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from algorithm_one import Capsules, one_depth
from hypothesis import strategies as st
from torch import Tensor

from capsid.recipes import RECIPES
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork, Depth
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.capsules.votes import BiasPoses, FullPoses

WIDTH = 6
LEAKY = {"leak": (1.0, 1.0), "dim": 4, "rank": 2}
# Overrides of the default settings; "literal" overrides the recipe of that name.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"rank": 2},
    "biases": {"rank": -1},
    "biases, narrow": {"rank": -1, "dim": 3},
    "biases, dot": {"rank": -1, "agreement": "dot", "on_direction": False},
    "biases that leak": {**LEAKY, "rank": -1},
    "narrow": {"rank": 2, "dim": 3},
    "literal": {},
    "full": {"rank": 0, "dim": 5},
    "pre": {"rank": 2, "readout": "pre"},
    "dot": {"rank": 1, "agreement": "dot"},
    "no direction": {"rank": 2, "on_direction": False, "dim": 4},
    "hard": {"rank": 2, "winner": "hard"},
    "leaky": LEAKY,
    "leaky, no direction": {**LEAKY, "on_direction": False},
    "half leaky": {**LEAKY, "leak": (0.5, 0.5), "residual_of": "soft"},
    "hard and leaky": {**LEAKY, "winner": "hard"},
    "shared": {"rank": 2, "shared_poses": True},
    "one round": {"rank": 2, "rounds": 1},
}


@dataclass(frozen=True, eq=False)
class World:
    """A network with its settings, and items of length one."""

    settings: CapsuleTokenizer
    network: CapsuleNetwork
    unit_ND: Tensor

    def run(self) -> list[Depth]:
        """All depths of all items."""
        with torch.no_grad():
            return self.network(self.unit_ND)


@contextmanager
def in_double() -> Iterator[None]:
    """Networks made and run in here have no rounding errors to speak of. Also a decorator."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_settings(variant: str, **fields: Any) -> CapsuleTokenizer:
    """Settings of a variant, with small codebooks."""
    base = RECIPES["capsid-literal"].tokenizer if variant == "literal" else CapsuleTokenizer()
    assert isinstance(base, CapsuleTokenizer)
    return dataclasses.replace(base, **{"codebooks": (5, 5, 5), **VARIANTS[variant], **fields})


def make_world(
    variant: str = "default",
    seed: int = 0,
    *,
    items: int = 8,
    width: int = WIDTH,
    scale: float = 1.0,
    zeros: float = 0.0,
    **fields: Any,
) -> World:
    """Random everything: poses and biases `scale` large, a share `zeros` of all numbers zero."""
    settings = make_settings(variant, **fields)
    rng = torch.Generator().manual_seed(seed)
    network = CapsuleNetwork(settings, width, rng).requires_grad_(False)
    for name, parameter in network.named_parameters():
        size = scale if ".poses." in name else 0.7
        parameter.copy_(size * torch.randn(parameter.shape, generator=rng) / parameter.shape[-1] ** 0.5)
        parameter.mul_(torch.rand(parameter.shape, generator=rng) >= zeros)
    for layer in network.depths:
        calibrated = bool(settings.winner_mass)
        layer.kappa.fill_(float(torch.rand((), generator=rng)) * 20 + 0.5 if calibrated else 1.0)
        layer.step.fill_(float(torch.rand((), generator=rng)) * 0.7 + 0.3)
    unit_ND = torch.randn(items, width, generator=rng)
    return World(settings, network, unit_ND / unit_ND.norm(dim=1, keepdim=True))


def opposite_centres(*, kappa: float = 3.0) -> World:
    """Two capsules whose outputs are their centres and point away from each other: 2 C is how far they are apart."""
    world = make_world("default", 0, items=6, codebooks=(2, 2))
    for layer in world.network.depths:
        layer.kappa.fill_(kappa)
        layer.step.fill_(1.0)
        layer.centres[1] = -layer.centres[0]
        layer.outputs.copy_(layer.centres)
    return world


def unit_votes(seed: int, capsules: int = 4, dim: int = 3, rows: int = 3) -> Tensor:
    votes_BKC = torch.randn(rows, capsules, dim, generator=torch.Generator().manual_seed(seed))
    return votes_BKC / votes_BKC.norm(dim=2, keepdim=True)


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


def scales() -> st.SearchStrategy[float]:
    """From nearly silent to saturated votes."""
    return st.sampled_from([0.05, 0.5, 1.0, 4.0])


def plain(network: CapsuleNetwork) -> list[Capsules]:
    """The network's numbers, one entry a depth, poses written out as matrices."""
    return [_plain(layer) for layer in network.depths]


def _plain(layer: CapsuleLayer) -> Capsules:
    poses = layer.poses
    if isinstance(poses, FullPoses):
        pose_KCD = array(poses.weight)
    elif isinstance(poses, BiasPoses):
        pose_KCD = np.stack([array(poses.base)] * len(poses.bias))
    else:
        # W_k = P + sum over m of a_km (outer) b_km, spelled differently from `FactorisedPoses.full`.
        own_KCD = np.einsum("kmc,kmd->kcd", array(poses.up), array(poses.down))
        pose_KCD = array(poses.base) + own_KCD
    return Capsules(
        pose_KCD=pose_KCD,
        bias_KC=array(poses.bias),
        outputs_KD=array(layer.outputs),
        centres_KD=array(layer.centres),
        lift_DC=None if layer.lift is None else array(layer.lift),
        kappa=float(layer.kappa),
        step=float(layer.step),
        leak=float(layer.leak),
    )


def outputs_of(world: World, depths: list[Depth], row: int) -> list[np.ndarray]:
    """Every capsule's output for an item, in item space: lifted, as long as the residual, times the step."""
    soft = [world.unit_ND, *(d.soft_BD for d in depths[:-1])]
    hard = [world.unit_ND, *(d.hard_BD for d in depths[:-1])]
    layers = plain(world.network)
    return [
        one_depth(array(r[row]), array(h[row]), layer, world.settings).outputs_KD
        for r, h, layer in zip(soft, hard, layers)
    ]


def array(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)
