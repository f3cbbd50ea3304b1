"""The terms of stage 1 and their schedule, against a slow twin in plain NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from capsule_worlds import array, in_double, make_world, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.tokenize.capsules.losses import SMALL_WIDTH, SURE_WIDTH, Terms, terms
from capsid.tokenize.capsules.network import Depth
from capsid.tokenize.capsules.routing import Routed
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.stage_one import routing_loss

RIVALS = ["strongest", "mean", "sum"]
ITEMS, CODES, WIDTH = 4, 5, 3


def random_depths(rng: np.random.Generator) -> list[Depth]:
    """Three depths whose numbers are those of no network."""
    return [random_depth(rng) for _ in range(3)]


def random_depth(rng: np.random.Generator) -> Depth:
    weights_BK = torch.as_tensor(rng.dirichlet(np.full(CODES, 0.5), size=ITEMS))
    nothing = torch.zeros(ITEMS, 0)
    mass_B, code_B = weights_BK.max(1)
    vectors = {name: torch.as_tensor(rng.normal(size=(ITEMS, WIDTH)) / 10) for name in ("output", "winner")}
    return Depth(
        routed=Routed(nothing, weights_BK, nothing),
        code_B=code_B,
        mass_B=mass_B,
        confidence_B=torch.as_tensor(rng.uniform(size=ITEMS)),
        output_BD=vectors["output"],
        winner_BD=vectors["winner"],
        soft_BD=torch.as_tensor(rng.normal(size=(ITEMS, WIDTH)) / 10),
        hard_BD=torch.as_tensor(rng.normal(size=(ITEMS, WIDTH)) / 10),
    )


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def twin_spread(weights_K: np.ndarray, margin: float, rivals: str) -> float:
    """max(0, m - (c_winner - c_k))^2 for one item."""
    winner = int(np.argmax(weights_K))
    gaps = [max(0.0, margin - (weights_K[winner] - c)) ** 2 for k, c in enumerate(weights_K) if k != winner]
    return {"strongest": max(gaps), "mean": sum(gaps) / len(gaps), "sum": sum(gaps)}[rivals]


def twin_survival(depths: list[Depth], item: int, s: CapsuleSettings) -> list[float]:
    """Probability that the id of one item reaches each depth."""
    alive = [1.0]
    for depth in depths[:-1]:
        norm = float(np.linalg.norm(array(getattr(depth, f"{s.residual_of}_BD"))[item]))
        sure = sigmoid((float(depth.confidence_B[item]) - s.confidence) / SURE_WIDTH)
        small = sigmoid((s.residual - norm) / SMALL_WIDTH)
        alive.append(alive[-1] * (1 - sure) * (1 - small))
    return alive


def twin(depths: list[Depth], centres: list[np.ndarray], margins: list[float], s: CapsuleSettings) -> dict[str, float]:
    """Every term, item by item and depth by depth."""
    items, count = len(depths[0].code_B), len(depths)
    out = dict.fromkeys(["soft", "hard", "spread", "length", "tie", "balance"], 0.0)
    for item in range(items):
        alive = twin_survival(depths, item, s)
        out["length"] += sum(alive) / count / items
        shares = alive if s.max_sharing == 0 and s.stops else [1.0] * count
        for depth, share, centres_KD, margin in zip(depths, shares, centres, margins, strict=True):
            for kind, left_BD in (("soft", depth.soft_BD), ("hard", depth.hard_BD)):
                out[kind] += share / sum(shares) * float((array(left_BD)[item] ** 2).sum()) / items
            out["spread"] += twin_spread(array(depth.routed.weights_BK)[item], margin, s.rivals) / count / items
            gap_D = array(depth.winner_BD)[item] - centres_KD[int(depth.code_B[item])]
            out["tie"] += float(depth.mass_B[item]) * float((gap_D**2).sum()) / count / items
    for depth in depths:
        mean_K = array(depth.routed.weights_BK).mean(0)
        out["balance"] += sum(p * np.log(p * len(mean_K)) for p in mean_K) / count
    return out


@pytest.mark.parametrize("rivals", RIVALS)
@settings(max_examples=8, deadline=None)
@given(seeds(), st.booleans(), st.sampled_from(["hard", "soft"]))
def test_terms_are_those_of_the_slow_twin(rivals: str, seed: int, alone: bool, of: str) -> None:
    rng = np.random.default_rng(seed)
    depths, margins = random_depths(rng), [0.3, 0.6, 0.9]
    centres = [rng.normal(size=(CODES, WIDTH)) for _ in depths]
    s = CapsuleSettings(rivals=rivals, confidence=0.5, residual=0.2, residual_of=of, max_sharing=0 if alone else 1)
    found = terms(
        depths,
        [torch.as_tensor(c) for c in centres],
        margins,
        rivals=rivals,
        confidence=s.confidence,
        residual=s.residual,
        residual_of=of,
        alone=alone,
    )
    wanted = twin(depths, centres, margins, s)
    assert wanted.keys() == {f.name for f in dataclasses.fields(Terms)}
    for name, value in wanted.items():
        assert float(getattr(found, name)) == pytest.approx(value, rel=1e-6, abs=1e-9), name


WEIGHTS = {
    "soft_weight": 0.9,
    "hard_weight": 0.7,
    "spread_weight": 0.5,
    "length_weight": 0.3,
    "tie_weight": 0.2,
    "balance_weight": 0.1,
}


@pytest.mark.parametrize(("rivals", "of"), [("strongest", "hard"), ("mean", "soft"), ("sum", "soft")])
@pytest.mark.parametrize(
    ("share", "winner_mass", "margins"),
    [
        (0.0, (), [0.2, 0.2, 0.2]),
        (0.5, (), [0.55, 0.55, 0.55]),
        (1.0, (), [0.9, 0.9, 0.9]),
        # No margin is above the target mass of its depth.
        (0.0, (0.1, 0.6), [0.1, 0.2, 0.2]),
        (1.0, (0.1, 0.6), [0.1, 0.6, 0.6]),
    ],
)
@in_double()
def test_the_loss_is_the_weighted_sum_with_the_margins_of_the_schedule(
    rivals: str, of: str, share: float, winner_mass: tuple[float, ...], margins: list[float]
) -> None:
    more: dict[str, Any] = {"confidence": 0.5, "residual": 0.3, "max_sharing": 0, "winner_mass": winner_mass}
    more["residual_of"] = of
    world = make_world("default", 3, rivals=rivals, margin=(0.2, 0.9), **WEIGHTS, **more)
    found, depths = routing_loss(world.settings, world.network, world.unit_ND, share)
    parts = twin(depths, [array(layer.centres) for layer in world.network.depths], margins, world.settings)
    wanted = sum(WEIGHTS[f"{name}_weight"] * value for name, value in parts.items())
    assert float(found) == pytest.approx(wanted, rel=1e-9)
    assert all(value > 1e-4 for value in parts.values()), "a term that is zero tests nothing"
