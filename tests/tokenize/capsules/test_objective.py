"""The terms of the objective and their schedule, against a slow twin in plain NumPy; rows leave without a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from capsule_worlds import World, all_depths, array, in_double, make_world, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.tokenize.capsules.algorithm import SMALL_WIDTH, SURE_WIDTH, Step
from capsid.tokenize.capsules.objective import objective

RIVALS = ["strongest", "mean", "sum"]


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def twin_spread(weights_K: np.ndarray, margin: float, rivals: str) -> float:
    """max(0, m - (c_winner - c_k))^2 for one item."""
    winner = int(np.argmax(weights_K))
    gaps = [max(0.0, margin - (weights_K[winner] - c)) ** 2 for k, c in enumerate(weights_K) if k != winner]
    return {"strongest": max(gaps), "mean": sum(gaps) / len(gaps), "sum": sum(gaps)}[rivals]


def end_of(steps: list[Step], item: int, tau: float, epsilon: float) -> int:
    """How many depths the item goes through."""
    for depth, step in enumerate(steps, start=1):
        if float(step.confidence_B[item]) >= tau or float(step.r_BD[item].norm()) <= epsilon:
            return depth
    return len(steps)


def twin(world: World, steps: list[Step], margins: list[float]) -> dict[str, float]:
    """Every term, item by item and depth by depth."""
    s, items = world.settings, len(world.unit_ND)
    leaves = s.max_sharing == 0
    lengths = [end_of(steps, i, s.confidence, s.residual) if leaves else len(steps) for i in range(items)]
    hard = world.hard(steps)
    out = dict.fromkeys(["route", "codes", "spread", "length", "balance"], 0.0)
    out["length"] = float(np.mean(lengths))
    out["route"] = float(np.mean([(array(steps[n - 1].r_BD[i]) ** 2).sum() for i, n in enumerate(lengths)]))
    reached = [(i, depth) for i, n in enumerate(lengths) for depth in range(n)]
    out["codes"] = float(np.mean([(array(hard[depth][i]) ** 2).sum() for i, depth in reached]))
    deepest = max(lengths)
    for depth in range(deepest):
        rows = [i for i, n in enumerate(lengths) if n > depth]
        weights_RK = array(steps[depth].weights_BK)[rows]
        out["spread"] += np.mean([twin_spread(w_K, margins[depth], s.rivals) for w_K in weights_RK]) / deepest
        mean_K = weights_RK.mean(0)
        out["balance"] += sum(p * np.log(p * len(mean_K)) for p in mean_K) / deepest
    return out


@pytest.mark.parametrize("rivals", RIVALS)
@pytest.mark.parametrize(("share", "margins"), [(0.0, [0.2] * 3), (0.5, [0.25, 0.5, 0.5]), (1.0, [0.3, 0.8, 0.8])])
@settings(max_examples=4, deadline=None)
@given(seeds(), st.sampled_from([0, 1]))
@in_double()
def test_terms_and_their_sum_are_those_of_the_slow_twin(
    rivals: str, share: float, margins: list[float], seed: int, max_sharing: int
) -> None:
    weights = {"codes": 0.7, "spread": 0.5, "length": 0.3, "balance": 0.1}
    more: dict[str, Any] = {f"{name}_weight": weight for name, weight in weights.items()}
    more |= {"confidence": 0.45, "residual": 0.8, "max_sharing": max_sharing, "margin": (0.2, 0.3, 0.8)}
    world = make_world("unit", seed, rivals=rivals, **more)
    wanted = twin(world, world.run(), margins)
    found = objective(world.settings, world.network, world.unit_ND, share)
    for name, value in wanted.items():
        assert float(found.terms[name]) == pytest.approx(value, rel=1e-6, abs=1e-9), name
    total = wanted["route"] + sum(weight * wanted[name] for name, weight in weights.items())
    assert float(found.loss) == pytest.approx(total, rel=1e-6)


@in_double()
def test_the_length_has_the_gradient_of_both_rules() -> None:
    world = make_world("unit", 3, confidence=0.5, residual=0.7, max_sharing=0, length_weight=1.0)
    world.network.requires_grad_(True)
    steps = objective(world.settings, world.network, world.unit_ND, 0.0)
    grads = torch.autograd.grad(
        steps.terms["length"], [s.confidence_B for _, s in steps.steps[:1]] + [s.r_BD for _, s in steps.steps[:1]]
    )
    first = steps.steps[0][1]
    sure = torch.sigmoid((first.confidence_B - 0.5) / SURE_WIDTH)
    small = torch.sigmoid((0.7 - first.r_BD.norm(dim=1)) / SMALL_WIDTH)
    assert float(grads[0].max()) <= 0.0, "more confidence makes ids shorter"
    along = (grads[1] * first.r_BD).sum(1)
    along = along.detach()
    assert float(along.min()) >= 0.0, "a larger residual makes ids longer"
    assert float(grads[0].abs().sum()) > 0, (sure, small)
    assert float(along.abs().sum()) > 0


def test_a_term_of_weight_zero_is_not_built() -> None:
    none = {"codes_weight": 0.0, "spread_weight": 0.0, "length_weight": 0.0, "balance_weight": 0.0}
    world = make_world("unit", 1, **none)
    found = objective(world.settings, world.network, world.unit_ND, 0.5)
    assert found.terms.keys() == {"route"}


@in_double()
def test_rows_that_left_change_nothing_for_the_others() -> None:
    """Ended rows are not routed further, and the others' steps are what they would be alone."""
    world = make_world("unit", 5, items=30, confidence=0.4, residual=0.6, max_sharing=0)
    steps = objective(world.settings, world.network, world.unit_ND, 0.0).steps
    counts = [len(rows) for rows, _ in steps]
    assert counts[0] == 30
    assert counts[-1] < 30
    for (rows, step), whole in zip(steps, all_depths(world.network, world.unit_ND)):
        torch.testing.assert_close(step.r_BD, whole.r_BD[rows])
