"""Small capsule networks with arbitrary weights, nothing trained, and their numbers as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from capsid.recipes import RECIPES
from capsid.tokenize.capsules import reference
from capsid.tokenize.capsules.algorithm import Step, algorithm_one
from capsid.tokenize.capsules.capsules import CapsuleNetwork, Capsules
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.capsules.votes import FullPoses

WIDTH = 6
# Overrides of the default settings; "paper" overrides the recipe of that name.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "narrow": {"dim": 3},
    "hard": {"winner": "hard"},
    "one round": {"rounds": 1},
    "calibrated, full": {"poses": "full", "dim": 5},
    "dot": {"routing": "dot", "poses": "full", "dim": 4},
    "dot, shared": {"routing": "dot"},
    "unit": {"routing": "unit", "poses": "full"},
    "unit, shared, hard": {"routing": "unit", "winner": "hard", "dim": 4},
    "paper": {"dim": 4},
}


@dataclass(frozen=True, eq=False)
class World:
    """A network with its settings, and items of length one."""

    settings: CapsuleTokenizer
    network: CapsuleNetwork
    unit_ND: Tensor

    def run(self) -> list[Step]:
        """All depths of all items."""
        with torch.no_grad():
            return all_depths(self.network, self.unit_ND)

    def hard(self, steps: list[Step]) -> list[Tensor]:
        """What the tokens' centres leave of each item, by depth."""
        left, out = self.unit_ND, []
        for capsules, step in zip(self.network.depths, steps):
            left = left - capsules.centres[step.code_B]
            out.append(left)
        return out


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
    base = RECIPES["capsid-paper"].tokenizer if variant == "paper" else CapsuleTokenizer()
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
        parameter.copy_(size * torch.randn(parameter.shape, generator=rng) / (parameter.shape or (1,))[-1] ** 0.5)
        parameter.mul_(torch.rand(parameter.shape, generator=rng) >= zeros)
    for capsules in network.depths:
        if settings.form.unit_votes:
            capsules.set_kappa(float(torch.rand((), generator=rng)) * 20 + 0.5)
        capsules.step.fill_(float(torch.rand((), generator=rng)) * 0.7 + 0.3)
    unit_ND = torch.randn(items, width, generator=rng)
    return World(settings, network, unit_ND / unit_ND.norm(dim=1, keepdim=True))


def opposite_centres(*, kappa: float = 3.0) -> World:
    """Two capsules whose outputs are their centres and point away from each other: 2 C is how far they are apart."""
    world = make_world("default", 0, items=6, codebooks=(2, 2))
    for capsules in world.network.depths:
        capsules.set_kappa(kappa)
        capsules.step.fill_(1.0)
        capsules.centres[1] = -capsules.centres[0]
        capsules.outputs.copy_(capsules.centres)
    return world


def all_depths(network: CapsuleNetwork, unit_ND: Tensor) -> list[Step]:
    """The steps of all depths; no row leaves."""
    nobody = lambda _depth, rows, _step: rows < 0  # noqa: E731
    return [step for _, step in algorithm_one(network.depths, unit_ND, nobody)]


def unit_votes(seed: int, capsules: int = 4, dim: int = 3, rows: int = 3) -> Tensor:
    votes_BKC = torch.randn(rows, capsules, dim, generator=torch.Generator().manual_seed(seed))
    return votes_BKC / votes_BKC.norm(dim=2, keepdim=True)


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


def scales() -> st.SearchStrategy[float]:
    """From nearly silent to saturated votes."""
    return st.sampled_from([0.05, 0.5, 1.0, 4.0])


def plain(network: CapsuleNetwork) -> list[reference.Capsules]:
    """The network's numbers, one entry per depth, poses written out as matrices."""
    return [_plain(capsules) for capsules in network.depths]


def _plain(capsules: Capsules) -> reference.Capsules:
    poses = capsules.poses
    full = isinstance(poses, FullPoses)
    return reference.Capsules(
        pose_KCD=array(poses.weight) if full else np.stack([array(poses.base)] * len(poses.bias)),
        bias_KC=array(poses.bias),
        kappa=float(capsules.kappa),
        step=float(capsules.step),
        outputs_KD=None if capsules.outputs is None else array(capsules.outputs),
        lift_DC=None if capsules.lift is None else array(capsules.lift),
    )


def outputs_of(world: World, steps: list[Step], row: int) -> list[np.ndarray]:
    """Every capsule's output for an item, in item space, times the step."""
    before = [world.unit_ND, *(s.r_BD for s in steps[:-1])]
    depths = plain(world.network)
    return [
        capsules.step * reference.one_depth(array(r[row]), capsules, world.settings).outputs_KD
        for r, capsules in zip(before, depths)
    ]


def array(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)
