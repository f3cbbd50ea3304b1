"""What the paper proves, over arbitrary weights. Every check takes the claim as an argument, and catches wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from capsule_worlds import (
    VARIANTS,
    World,
    array,
    in_double,
    make_world,
    opposite_centres,
    outputs_of,
    plain,
    scales,
    seeds,
    unit_votes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from capsid.tokenize.capsules import catalogue, reference
from capsid.tokenize.capsules.algorithm import Step, agree
from capsid.tokenize.capsules.catalogue import stop
from capsid.tokenize.capsules.settings import Form, StopRules
from capsid.tokenize.capsules.votes import FullVotes

ROUNDING = 1e-9

# --- Proposition 1: soft and hard reconstruction ---

DepthBound = Callable[[float, float, float], float]  # of delta, C and the winner's weight


def bound(delta: float, size: float, mass: float) -> float:
    """One depth's share of the bound (CapsID, Eq. 11), with this depth's own delta and C."""
    return delta + 2 * size * (1 - mass)


def excess(world: World, steps: list[Step], claim: DepthBound = bound, hard: list[Tensor] | None = None) -> float:
    """By how much the claim is broken at worst, over all items and all prefixes of their ids; 0 where it holds."""
    worst = 0.0
    centres = [array(capsules.centres) for capsules in world.network.depths]
    hard = hard or world.hard(steps)
    for row in range(len(world.unit_ND)):
        total = 0.0
        for number, outputs_KD in enumerate(outputs_of(world, steps, row)):
            delta = np.linalg.norm(outputs_KD - centres[number], axis=1).max()
            size = np.linalg.norm(centres[number], axis=1).max()
            total += claim(float(delta), float(size), float(steps[number].mass_B[row]))
            soft_D, hard_D = array(steps[number].r_BD[row]), array(hard[number][row])
            # x - soft is the sum of the z, x - hard the sum of the centres.
            apart = np.linalg.norm(soft_D - hard_D)
            further = np.linalg.norm(soft_D) - np.linalg.norm(hard_D)
            worst = max(worst, apart - total, further - total)
    return worst


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=4)
@given(seeds(), scales(), st.sampled_from([0.0, 0.5, 1.0]))
@in_double()
def test_soft_and_hard_reconstruction_stay_together(variant: str, seed: int, scale: float, zeros: float) -> None:
    world = make_world(variant, seed, items=4, scale=scale, zeros=zeros)
    assert excess(world, world.run()) < ROUNDING


@in_double()
def test_the_bound_is_attained() -> None:
    """At delta 0 a single depth's bound is met exactly, whatever the winner's weight; at weight 1 both sides are 0."""
    world = opposite_centres()
    steps = world.run()
    first = steps[0]
    apart_B = (first.r_BD - world.hard(steps)[0]).norm(dim=1)
    size = float(world.network.depths[0].centres[0].norm())
    torch.testing.assert_close(apart_B, 2 * size * (1 - first.mass_B))
    assert 0.5 < float(first.mass_B.min()) < 0.95
    sure = opposite_centres(kappa=1e5)
    steps = sure.run()
    for step, hard_BD in zip(steps, sure.hard(steps)):
        assert float(step.mass_B.min()) == 1.0
        torch.testing.assert_close(step.r_BD, hard_BD)


@pytest.mark.parametrize("variant", ["default", "unit"])
@in_double()
def test_the_distance_of_outputs_and_centres_is_all_that_is_left_of_a_sure_winner(variant: str) -> None:
    """At weight 1 the bound is delta, and a depth whose capsules are all equally far from their centres attains it."""
    world = make_world(variant, 1, items=1, codebooks=(4,), rounds=9)
    capsules = world.network.depths[0]
    capsules.set_kappa(1e5)
    outputs_KD = outputs_of(world, world.run(), 0)[0]
    capsules.centres.copy_(torch.from_numpy(outputs_KD) + torch.tensor([0.3, 0, 0, 0, 0, 0.4]))
    steps = world.run()
    assert float(steps[0].mass_B[0]) == 1.0
    assert float((steps[0].r_BD - world.hard(steps)[0]).norm()) == pytest.approx(0.5)


WRONG_BOUNDS: dict[str, DepthBound] = {
    "no delta": lambda delta, size, mass: 2 * size * (1 - mass),
    "C once": lambda delta, size, mass: delta + size * (1 - mass),
    "the winner's weight": lambda delta, size, mass: delta + 2 * size * (1 - mass) * mass,
    "delta for the winner alone": lambda delta, size, mass: delta * mass + 2 * size * (1 - mass),
}


def shifted(world: World) -> World:
    """The same, with every output off its centre by one vector."""
    for capsules in world.network.depths:
        capsules.outputs.add_(capsules.centres[0])
    return world


@pytest.mark.parametrize("claim", WRONG_BOUNDS)
@in_double()
def test_a_wrong_bound_is_caught(claim: str) -> None:
    worlds = [opposite_centres(), shifted(opposite_centres()), shifted(opposite_centres(kappa=0.1))]
    # Several, since delta and the rivals' share may point against each other and leave room for a wrong bound.
    assert max(excess(w, w.run(), WRONG_BOUNDS[claim]) for w in worlds) > 0.01
    assert max(excess(w, w.run()) for w in worlds) < ROUNDING


def tokens_of_the_weakest(world: World, step: Step) -> tuple[Step, Tensor]:
    """The hard track follows another token than the one whose weight is reported."""
    first = world.network.depths[0]
    return step, world.unit_ND - first.centres[step.weights_BK.argmin(1)]


def weights_beyond_one(world: World, step: Step) -> tuple[Step, Tensor]:
    return dataclasses.replace(step, r_BD=world.unit_ND - 2 * step.z_BD), world.hard([step])[0]


def half_a_step(world: World, step: Step) -> tuple[Step, Tensor]:
    return dataclasses.replace(step, r_BD=world.unit_ND - 0.5 * step.z_BD), world.hard([step])[0]


@pytest.mark.parametrize("mistake", [tokens_of_the_weakest, weights_beyond_one, half_a_step])
@in_double()
def test_a_wrong_network_is_caught(mistake: Callable[[World, Step], tuple[Step, Tensor]]) -> None:
    world = opposite_centres(kappa=30.0)
    one = World(dataclasses.replace(world.settings, codebooks=(2,)), world.network, world.unit_ND)
    first = one.run()[:1]
    step, hard_BD = mistake(one, first[0])
    assert excess(one, [step], hard=[hard_BD]) > 0.01
    assert excess(one, first) < ROUNDING


# --- Proposition 2: expected length ---

LengthBound = Callable[[Fraction, int], Fraction]


def length_bound(g: Fraction, cap: int) -> Fraction:
    """1 + sum over l from 2 to the cap of (1 - g)^(l - 2) (CapsID, Eq. 12)."""
    return 1 + sum(((1 - g) ** (depth - 2) for depth in range(2, cap + 1)), Fraction(0))


def lengths_of(fires_NL: np.ndarray, shared_NL: np.ndarray) -> list[int]:
    rules = StopRules(confidence=0.5, residual=-1.0, max_sharing=1)
    return stop(fires_NL.astype(float), np.ones(fires_NL.shape), shared_NL, rules).lengths.tolist()


def least_stopping_share(fires_NL: np.ndarray, lengths: list[int], pick: Callable = min) -> Fraction:
    """g: the least share, over the depths from 2 that ids reach, of those that a rule ends there."""
    shares = []
    for depth in range(2, fires_NL.shape[1] + 1):
        reached = [row for row, length in enumerate(lengths) if length >= depth]
        if reached:
            ended = sum(bool(fires_NL[row, depth - 1]) for row in reached)
            shares.append(Fraction(ended, len(reached)))
    return pick(shares) if shares else Fraction(1)


def holds_for_lengths(
    fires_NL: np.ndarray,
    shared_NL: np.ndarray,
    claim: LengthBound = length_bound,
    pick: Callable = min,
    ends: Callable[[np.ndarray, np.ndarray], list[int]] = lengths_of,
) -> bool:
    """Whether the mean length is below the claim, and the claim below the paper's looser form; no rounding."""
    lengths, cap = ends(fires_NL, shared_NL), fires_NL.shape[1]
    g = least_stopping_share(fires_NL & ~shared_NL, lengths, pick)
    looser = Fraction(cap) if g == 0 else min(Fraction(cap), 1 + 1 / g)
    return Fraction(sum(lengths), len(lengths)) <= claim(g, cap) <= looser


@st.composite
def stop_tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(st.tuples(st.integers(1, 10), st.integers(1, 6)))
    return draw(hnp.arrays(bool, shape)), draw(hnp.arrays(bool, shape))


@settings(max_examples=120)
@given(stop_tables())
def test_mean_length_is_bounded(tables: tuple[np.ndarray, np.ndarray]) -> None:
    assert holds_for_lengths(*tables)


# Nobody ends at depth 1, one of two at depths 2 and 3, the rest at the cap.
HALVING = np.array([[0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=bool)


def test_the_length_bound_is_attained() -> None:
    lengths = lengths_of(HALVING, np.zeros_like(HALVING))
    g = least_stopping_share(HALVING, lengths)
    assert g == Fraction(1, 2)
    assert Fraction(sum(lengths), 4) == length_bound(g, 4) == Fraction(11, 4)
    assert length_bound(Fraction(0), 5) == 5  # no stop at all: the cap


@pytest.mark.parametrize(
    ("claim", "pick"),
    [
        (
            lambda g, cap: 1 + sum(((1 - g) ** (d - 1) for d in range(2, cap + 1)), Fraction(0)),
            min,
        ),  # a stop at depth 1
        (lambda g, cap: length_bound(g, cap) - 1, min),
        (lambda g, cap: length_bound(g, cap - 1), min),  # one depth less
        (length_bound, max),  # the best depth instead of the worst
        (lambda g, cap: 1 + 1 / g, min),  # not below the cap
    ],
)
def test_a_wrong_length_bound_is_caught(claim: LengthBound, pick: Callable) -> None:
    uneven = np.array([[0, 0, 1, 1]] * 3 + [[0, 1, 1, 1]], dtype=bool)
    assert not all(holds_for_lengths(t, np.zeros_like(t), claim, pick) for t in (HALVING, uneven))
    assert all(holds_for_lengths(t, np.zeros_like(t)) for t in (HALVING, uneven))


def test_ids_that_stop_too_late_are_caught() -> None:
    surely = np.array([[0, 1, 1, 1]] * 4, dtype=bool)

    def a_depth_late(fires_NL: np.ndarray, shared_NL: np.ndarray) -> list[int]:
        return [min(length + 1, fires_NL.shape[1]) for length in lengths_of(fires_NL, shared_NL)]

    assert holds_for_lengths(surely, np.zeros_like(surely))
    assert not holds_for_lengths(surely, np.zeros_like(surely), ends=a_depth_late)


# --- the condition for a shrinking residual (CapsID, Eq. 15) ---

Condition = Callable[[Fraction, Fraction], bool]  # of <r, z> and |z|^2


def shrinks(rz: Fraction, zz: Fraction) -> bool:
    return 2 * rz >= zz


def dot(left: list[Fraction], right: list[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(left, right)), Fraction(0))


def equivalent(r: list[Fraction], z: list[Fraction], condition: Condition = shrinks) -> bool:
    """Without rounding: the residual's norm does not grow if, and only if, the condition holds."""
    after = [a - b for a, b in zip(r, z)]
    return (dot(after, after) <= dot(r, r)) == condition(dot(r, z), dot(z, z))


def exact(values_D: np.ndarray | Tensor) -> list[Fraction]:
    return [Fraction(float(v)) for v in values_D]


@given(st.lists(st.tuples(*[st.fractions(-3, 3, max_denominator=20)] * 2), min_size=1, max_size=5))
def test_the_condition_is_exact_for_any_vectors(pairs: list[tuple[Fraction, Fraction]]) -> None:
    r, z = [a for a, _ in pairs], [b for _, b in pairs]
    assert equivalent(r, z)
    assert equivalent(r, [2 * a for a in r])  # a tie: reflected, as long as before


@pytest.mark.parametrize("variant", ["default", "dot", "unit"])
@settings(max_examples=5)
@given(seeds(), scales())
def test_the_condition_is_exact_for_what_routing_subtracts(variant: str, seed: int, scale: float) -> None:
    world = make_world(variant, seed, items=4, scale=scale)
    before_BD = world.unit_ND
    for step in world.run():
        assert all(equivalent(exact(r_D), exact(z_D)) for r_D, z_D in zip(before_BD, step.z_BD))
        before_BD = step.r_BD


@pytest.mark.parametrize(
    "condition",
    [
        lambda rz, zz: rz >= zz,  # the 2 forgotten
        lambda rz, zz: rz >= 0,  # an acute angle is not enough
        lambda rz, zz: 2 * rz > zz,  # a tie does not grow
    ],
)
def test_a_wrong_condition_is_caught(condition: Condition) -> None:
    one, zero = Fraction(1), Fraction(0)
    outputs = [[Fraction(3, 2), zero], [Fraction(5, 2), zero], [2 * one, zero]]
    assert not all(equivalent([one, zero], z, condition) for z in outputs)
    assert all(equivalent([one, zero], z) for z in outputs)


@pytest.mark.parametrize("variant", ["default", "dot", "hard"])
def test_the_trace_names_growing_residuals(variant: str) -> None:
    world = make_world(variant, 11, items=40)
    for capsules in world.network.depths:
        capsules.step.fill_(1.0)
    seen = catalogue.trace(world.network, world.unit_ND.numpy())
    depths, met = plain(world.network), set()
    for row, x_D in enumerate(array(world.unit_ND)):
        r_D = reference.unit(x_D)
        for number, capsules in enumerate(depths):
            step = reference.one_depth(r_D, capsules, world.settings)
            margin = 2 * r_D @ step.z_D - step.z_D @ step.z_D
            if abs(margin) > 1e-4:
                assert bool(seen.grew[row, number]) == (margin < 0)
                met.add(margin < 0)
            r_D = step.r_D
    assert met == {True, False}


# --- Proposition 3: routing and a mixture of Gaussians ---


def routed(votes_BKC: Tensor, updates: int, kappa: float, agreement: str) -> tuple[Tensor, Tensor]:
    """Weights and consensus after so many updates of the logits."""
    form = Form(updates, agreement == "cosine", agreement == "cosine", False, False, False)
    consensus = agree(_Given(votes_BKC), votes_BKC.shape[1], form, kappa)
    assert consensus[1] is not None
    return consensus[0], consensus[1]


class _Given(FullVotes):
    """Votes that are given as they are."""

    def __init__(self, votes_BKC: Tensor) -> None:
        rows, capsules, dim = votes_BKC.shape
        super().__init__(
            votes_BKC.new_zeros(rows, 1), votes_BKC.new_zeros(capsules, dim, 1), votes_BKC.new_zeros(capsules, dim)
        )
        self._factors.u_BKC = votes_BKC


def targets(votes_BKC: Tensor, updates: int, kappa: float, agreement: str) -> list[Tensor]:
    """What votes were compared with in each update: the consensus, for cosines its direction."""
    seen = [routed(votes_BKC, t, kappa, agreement)[1] for t in range(updates)]
    return [o / o.norm(dim=1, keepdim=True) if agreement == "cosine" else o for o in seen]


def posterior(votes_BKC: Tensor, mean_BC: Tensor, kappa: float) -> Tensor:
    """p(k) of equal mixing weights and variance 1 / kappa: exp(-kappa |u_k - mean|^2 / 2), normalised (Eq. 13)."""
    return (-kappa / 2 * (votes_BKC - mean_BC[:, None]).square().sum(2)).softmax(1)


def off(
    votes_BKC: Tensor, updates: int, kappa: float, agreement: str, means: Callable[[list[Tensor]], Tensor]
) -> float:
    """How far the weights are from the posterior of a mixture with that mean."""
    weights_BK = routed(votes_BKC, updates, kappa, agreement)[0]
    mean_BC = means(targets(votes_BKC, updates, kappa, agreement))
    return float((weights_BK - posterior(votes_BKC, mean_BC, kappa)).abs().max())


def sum_of_all(earlier: list[Tensor]) -> Tensor:
    return torch.stack(earlier).sum(0)


def last_alone(earlier: list[Tensor]) -> Tensor:
    return earlier[-1]


@pytest.mark.parametrize("agreement", ["dot", "cosine"])
@given(seeds(), st.integers(1, 5), st.integers(1, 8), st.floats(0.1, 20))
@in_double()
def test_weights_are_the_posterior_around_the_sum_of_earlier_consensus(
    agreement: str, seed: int, updates: int, capsules: int, kappa: float
) -> None:
    assert off(unit_votes(seed, capsules), updates, kappa, agreement, sum_of_all) < 1e-9


@pytest.mark.parametrize("agreement", ["dot", "cosine"])
@in_double()
def test_the_last_consensus_alone_is_not_the_mean(agreement: str) -> None:
    """The paper's identification holds for the first update only, where the last consensus is all there is."""
    votes_BKC = unit_votes(0)
    assert off(votes_BKC, 1, 2.0, agreement, last_alone) < 1e-12
    for updates in (2, 3):
        assert off(votes_BKC, updates, 2.0, agreement, last_alone) > 0.05
        assert off(votes_BKC, updates, 2.0, agreement, lambda earlier: sum_of_all(earlier) / len(earlier)) > 0.05


@in_double()
def test_votes_must_be_of_one_length() -> None:
    """Of longer votes the mixture knows that they are far away; agreement does not."""
    longer = unit_votes(0) * torch.tensor([1.0, 2.0, 0.5, 1.5])[:, None]
    assert off(longer, 2, 2.0, "dot", sum_of_all) > 0.05
    assert off(2.0 * unit_votes(0), 2, 2.0, "dot", sum_of_all) < 1e-12
