"""Routing and its slow twins: factorised votes and matrices, the network and Algorithm 1, a batch and an item."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from algorithm_one import Answer, algorithm_one
from capsule_worlds import VARIANTS, World, array, in_double, make_world, plain, scales, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from worlds import shared_prefixes

from capsid.tokenize.capsules import encoding
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork, Depth
from capsid.tokenize.capsules.votes import BiasPoses, FactorisedPoses, new_poses
from capsid.tokenize.stopping import CAUSES, SharedPrefixes, Stops, stop

CLOSE = {"rtol": 1e-7, "atol": 1e-9}
FACTORISED = [name for name, fields in VARIANTS.items() if fields.get("rank", 0)]
REAL = ("routed.weights_BK", "routed.consensus_BC", "mass_B", "confidence_B", "winner_BD", "soft_BD", "hard_BD")


def field(depth: Depth, name: str) -> Tensor:
    for part in name.split("."):
        depth = getattr(depth, part)
    return depth  # type: ignore[return-value]


def check_same(left: list[Depth], right: list[Depth], **tolerance: float) -> None:
    for one, other in zip(left, right, strict=True):
        assert one.code_B.tolist() == other.code_B.tolist()
        for name in REAL:
            torch.testing.assert_close(field(one, name), field(other, name), **tolerance)


def with_full_poses(network: CapsuleNetwork) -> CapsuleNetwork:
    twin = copy.deepcopy(network)
    for layer in twin.depths:
        if isinstance(layer.poses, FactorisedPoses | BiasPoses):
            layer.poses = layer.poses.full().requires_grad_(False)
    return twin


# --- factorised votes and matrices ---


def random_poses(seed: int, capsules: int, dim: int, rank: int, scale: float) -> FactorisedPoses | BiasPoses:
    rng = torch.Generator().manual_seed(seed)
    poses = new_poses(capsules, dim, 7, rank, rng).requires_grad_(False)
    assert isinstance(poses, FactorisedPoses | BiasPoses)
    for parameter in poses.parameters():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=rng))
    return poses


@settings(max_examples=15)
@given(seeds(), st.integers(1, 6), st.integers(1, 8), st.sampled_from([-1, 1, 2, 4]), scales())
@in_double()
def test_factorised_votes_are_the_votes(seed: int, capsules: int, dim: int, rank: int, scale: float) -> None:
    poses = random_poses(seed, capsules, dim, rank, scale)
    rng = torch.Generator().manual_seed(seed)
    r_BD, other_BC = torch.randn(4, 7, generator=rng), torch.randn(4, dim, generator=rng)
    weights_BK = torch.rand(4, capsules, generator=rng)
    code_B = torch.randint(capsules, (4,), generator=rng)
    quick, slow = poses(r_BD), poses.full().requires_grad_(False)(r_BD)
    own_KCD = np.zeros((capsules, dim, 7))
    if isinstance(poses, FactorisedPoses):
        own_KCD = np.einsum("kmc,kmd->kcd", array(poses.up), array(poses.down))
    by_hand = np.einsum("kcd,bd->bkc", array(poses.base) + own_KCD, array(r_BD)) + array(poses.bias)
    np.testing.assert_allclose(slow.votes_BKC.numpy(), by_hand, **CLOSE)
    torch.testing.assert_close(quick.dot(other_BC), slow.dot(other_BC), **CLOSE)
    torch.testing.assert_close(quick.norms(), slow.norms(), rtol=1e-5, atol=1e-7)  # a root of a difference
    torch.testing.assert_close(quick.mix(weights_BK), slow.mix(weights_BK), **CLOSE)
    torch.testing.assert_close(quick.pick(code_B), slow.pick(code_B), **CLOSE)
    scale_B1 = torch.rand(4, 1, generator=rng)
    for votes in (quick, slow):
        np.testing.assert_allclose(votes.mean().numpy(), by_hand.mean(1), **CLOSE)
        dots_BK = np.einsum("bkc,bc->bk", by_hand, by_hand.mean(1)) * array(scale_B1)
        np.testing.assert_allclose(votes.dot_mean(scale_B1).numpy(), dots_BK, **CLOSE)
    np.testing.assert_allclose(slow.norms().numpy(), np.linalg.norm(by_hand, axis=2), **CLOSE)
    np.testing.assert_allclose(slow.pick(code_B).numpy(), by_hand[np.arange(4), code_B], **CLOSE)


@pytest.mark.parametrize("variant", FACTORISED)
@settings(max_examples=4)
@given(seeds(), scales())
@in_double()
def test_a_network_of_factorised_poses_is_one_of_matrices(variant: str, seed: int, scale: float) -> None:
    world = make_world(variant, seed, scale=scale)
    twin = World(world.settings, with_full_poses(world.network), world.unit_ND)
    check_same(world.run(), twin.run(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("variant", ["default", "leaky"])
def test_both_agree_in_single_precision_too(variant: str) -> None:
    world = make_world(variant, 3, items=40)
    twin = World(world.settings, with_full_poses(world.network), world.unit_ND)
    check_same(world.run(), twin.run(), rtol=1e-3, atol=1e-4)


# --- the network and Algorithm 1 ---


def between(values: np.ndarray, share: float) -> float:
    """A threshold that splits the values, half way between two of them so that rounding cannot matter."""
    ordered = np.sort(values, axis=None)
    place = int(share * (len(ordered) - 2))
    return float(ordered[place] + ordered[place + 1]) / 2


def with_rules(world: World, shares: tuple[float, float], **fields: int) -> World:
    """The same network with thresholds that really end some ids early."""
    depths = world.run()
    left = [d.hard_BD if world.settings.residual_of == "hard" else d.soft_BD for d in depths]
    rules = {
        "confidence": between(np.stack([array(d.confidence_B) for d in depths]), shares[0]),
        "residual": between(np.stack([np.linalg.norm(array(r), axis=1) for r in left]), shares[1]),
    }
    return dataclasses.replace(world, settings=dataclasses.replace(world.settings, **rules, **fields))


def quick_stops(world: World, depths: list[Depth], codes_NL: np.ndarray) -> Stops:
    how = world.settings
    shared = SharedPrefixes.count(codes_NL, how.codebooks, how.max_sharing)
    left = [array(d.hard_BD if how.residual_of == "hard" else d.soft_BD) for d in depths]
    confidence_NL = np.stack([array(d.confidence_B) for d in depths], 1)
    residual_NL = np.stack([np.linalg.norm(r, axis=1) for r in left], 1)
    return stop(confidence_NL, residual_NL, shared.mask(codes_NL), how.rules)


def check_items(answers: list[Answer], depths: list[Depth]) -> None:
    for row, answer in enumerate(answers):
        check_item(answer, depths, row)


def check_item(answer: Answer, depths: list[Depth], row: int) -> None:
    for step, depth in zip(answer.steps, depths):
        assert step.token == int(depth.code_B[row])
        pairs = {
            "weights": (depth.routed.weights_BK, step.weights_K),
            "consensus": (depth.routed.consensus_BC, step.consensus_C),
            "mass": (depth.mass_B, step.weights_K[step.token]),
            "confidence": (depth.confidence_B, step.confidence),
            "output": (depth.output_BD, step.z_D),
            "winner": (depth.winner_BD, step.outputs_KD[step.token]),
            "soft": (depth.soft_BD, step.soft_D),
            "hard": (depth.hard_BD, step.hard_D),
        }
        for name, (quick, slow) in pairs.items():
            np.testing.assert_allclose(array(quick[row]), slow, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=5)
@given(
    seeds(),
    scales(),
    st.tuples(st.floats(0.2, 1), st.floats(0, 0.8)),
    st.integers(0, 2),
    st.integers(1, 3),
)
@in_double()
def test_the_network_is_algorithm_one(
    variant: str, seed: int, scale: float, shares: tuple[float, float], max_sharing: int, shortest: int
) -> None:
    world = with_rules(make_world(variant, seed, scale=scale), shares, max_sharing=max_sharing, shortest=shortest)
    depths = world.run()
    codes_NL = np.stack([d.code_B.numpy() for d in depths], 1)
    stops = quick_stops(world, depths, codes_NL)
    shared = shared_prefixes(codes_NL.tolist(), max_sharing)
    layers = plain(world.network)
    # Line 1 makes three times an item the same unit vector again.
    answers = [algorithm_one(3.0 * x_D, layers, world.settings, shared) for x_D in array(world.unit_ND)]
    check_items(answers, depths)
    assert [len(a.steps) for a in answers] == stops.lengths.tolist()
    assert [a.cause for a in answers] == [CAUSES[c] for c in stops.causes]


def test_every_cause_and_length_comes_up() -> None:
    """The comparison above would be empty if all ids ended alike."""
    seen = set()
    with in_double():
        for seed in range(6):
            world = with_rules(make_world("default", seed, items=30), (0.7, 0.2), max_sharing=1)
            layers, depths = plain(world.network), world.run()
            shared = shared_prefixes(np.stack([d.code_B.numpy() for d in depths], 1).tolist(), 1)
            answers = [algorithm_one(x_D, layers, world.settings, shared) for x_D in array(world.unit_ND)]
            seen |= {(a.cause, len(a.tokens)) for a in answers}
    assert {cause for cause, _ in seen} == set(CAUSES)
    assert {length for _, length in seen} == {1, 2, 3}


def step_forgotten(layer: CapsuleLayer) -> None:
    layer.step.fill_(1.0)


def one_round_less(layer: CapsuleLayer) -> None:
    layer.rounds = dataclasses.replace(layer.rounds, rounds=layer.rounds.rounds - 1)


def residual_not_direction(layer: CapsuleLayer) -> None:
    layer.on_direction = False


def other_agreement(layer: CapsuleLayer) -> None:
    layer.rounds = dataclasses.replace(layer.rounds, agreement="dot")


def winner_alone(layer: CapsuleLayer) -> None:
    layer.hard_winner = True


@pytest.mark.parametrize(
    "mistake", [step_forgotten, one_round_less, residual_not_direction, other_agreement, winner_alone]
)
@in_double()
def test_the_twin_notices(mistake: Callable[[CapsuleLayer], None]) -> None:
    world = make_world("leaky", 1)
    layers = plain(world.network)
    for layer in world.network.depths:
        mistake(layer)
    endless = dataclasses.replace(world.settings, confidence=1.0, residual=0.0)
    answers = [algorithm_one(x_D, layers, endless) for x_D in array(world.unit_ND)]
    depths = world.run()
    with pytest.raises(AssertionError):
        check_items(answers, depths)


# --- an item alone, in a batch, later ---


@pytest.mark.parametrize("variant", ["default", "literal", "leaky", "hard"])
def test_an_item_gets_the_same_bits_in_any_company(variant: str) -> None:
    items = encoding.BLOCK + 90  # two blocks, the second one padded
    # Products with fewer than nine columns depend on the row's place in some linear algebra libraries: none here.
    world = make_world(variant, 5, items=items, width=24, codebooks=(12, 12), dim=0 if variant == "literal" else 16)
    vectors = world.unit_ND.numpy()
    order = np.random.default_rng(0).permutation(items)
    rows = [0, 1, 17, encoding.BLOCK - 1, encoding.BLOCK, items - 1]
    whole = encoding.trace(world.network, vectors, strongest=3)
    later = encoding.trace(world.network, vectors[order], strongest=3)
    alone = {row: encoding.trace(world.network, vectors[row : row + 1], strongest=3) for row in rows}
    for f in dataclasses.fields(encoding.Trace):
        value = getattr(whole, f.name)
        np.testing.assert_array_equal(getattr(later, f.name), value[order], err_msg=f.name)
        for row in rows:
            np.testing.assert_array_equal(getattr(alone[row], f.name)[0], value[row], err_msg=f.name)
    assert len(encoding.trace(world.network, vectors[:0])) == 0


def test_a_trace_is_what_the_depths_say() -> None:
    world = make_world("half leaky", 2, items=20)
    depths, seen = world.run(), encoding.trace(world.network, world.unit_ND.numpy(), strongest=2)
    for number, depth in enumerate(depths):
        assert seen.codes[:, number].tolist() == depth.code_B.tolist()
        columns = {
            "confidence": depth.confidence_B,
            "mass": depth.mass_B,
            "soft": depth.soft_BD.norm(dim=1),
            "hard": depth.hard_BD.norm(dim=1),
        }
        for name, value in columns.items():
            np.testing.assert_allclose(getattr(seen, name)[:, number], value.numpy(), rtol=1e-4, atol=1e-5)
        order = np.argsort(-array(depth.routed.weights_BK), axis=1, kind="stable")[:, :2]
        assert seen.strongest[:, number].tolist() == order.tolist()
        np.testing.assert_array_equal(seen.strongest[:, number, 0], seen.codes[:, number])


# --- rounds and read-out ---


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_one_literal_round_gives_every_item_the_same_id(scale: float) -> None:
    """Weights are read before the first agreement: all equal, and the first capsule is the winner."""
    world = make_world("literal", 0, items=50, scale=scale, rounds=1)
    for depth, size in zip(world.run(), world.settings.codebooks):
        np.testing.assert_array_equal(depth.routed.weights_BK.numpy(), np.float32(1 / size))
        assert set(depth.code_B.tolist()) == {0}
    after = make_world("literal", 0, items=50, scale=scale, rounds=1, readout="post")
    assert len({tuple(row) for row in encoding.trace(after.network, after.unit_ND.numpy()).codes.tolist()}) > 5


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("variant", ["default", "literal", "hard and leaky"])
def test_post_is_pre_with_a_round_more(variant: str, rounds: int) -> None:
    post = make_world(variant, 4, rounds=rounds, readout="post")
    pre = make_world(variant, 4, rounds=rounds + 1, readout="pre")
    check_same(post.run(), pre.run(), rtol=0.0, atol=0.0)
    shorter = make_world(variant, 4, rounds=rounds, readout="pre").run()
    assert not torch.allclose(shorter[0].routed.weights_BK, post.run()[0].routed.weights_BK, atol=1e-4)


# --- variants ---


def test_shared_poses_are_one_thing() -> None:
    shared, own = make_world("shared", 1), make_world("default", 1)
    assert len({id(layer.poses) for layer in shared.network.depths}) == 1
    assert len({id(layer.poses) for layer in own.network.depths}) == 3
    first = sum(p.numel() for p in shared.network.depths[0].poses.parameters())
    numbers = [sum(p.numel() for p in world.network.parameters()) for world in (shared, own)]
    assert numbers[1] - numbers[0] == 2 * first
    before = shared.run()[2].routed.weights_BK
    shared.network.depths[0].poses.bias.add_(torch.randn(shared.network.depths[0].poses.bias.shape))
    votes = shared.network.depths[2].votes(shared.unit_ND)
    torch.testing.assert_close(votes.norms(), shared.network.depths[0].votes(shared.unit_ND).norms())
    assert not torch.allclose(before, shared.run()[2].routed.weights_BK, atol=1e-4)
    again = CapsuleNetwork(shared.settings, shared.network.inputs, torch.Generator())
    again.load_state_dict(shared.network.state_dict())
    check_same(again.requires_grad_(False)(shared.unit_ND), shared.run(), rtol=0.0, atol=0.0)


@in_double()
def test_a_hard_winner_is_subtracted_alone() -> None:
    world = make_world("hard", 6)
    before_BD = world.unit_ND
    for depth, layer in zip(world.run(), world.network.depths):
        expected_BD = before_BD - layer.step * layer.outputs[depth.code_B]
        torch.testing.assert_close(depth.soft_BD, expected_BD, rtol=0, atol=1e-14)
        assert float(depth.mass_B.max()) < 0.999  # so that the mixture would have been another vector
        before_BD = depth.soft_BD


# --- gradients ---


def gradients(world: World, unit_ND: Tensor) -> dict[str, Tensor]:
    world.network.requires_grad_(True)
    depths = world.network(unit_ND)
    total = sum(d.soft_BD.square().sum() + d.hard_BD.square().sum() + d.confidence_B.sum() for d in depths)
    total.backward()
    found = {name: p.grad for name, p in world.network.named_parameters()}
    world.network.requires_grad_(False)
    return {name: torch.zeros(0) if grad is None else grad for name, grad in found.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_reach_all_that_is_trained(variant: str) -> None:
    world = make_world(variant, 7)
    unused = "outputs" if world.settings.leak[0] == 1 else "never"  # the paper's outputs are the votes
    for name, grad in gradients(world, world.unit_ND).items():
        assert torch.isfinite(grad).all(), name
        assert unused in name or float(grad.abs().sum()) > 0, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_breaks_at_zero(variant: str) -> None:
    """A residual of zero, votes of zero, and both."""
    for scale in (1.0, 0.0):
        world = make_world(variant, 8, scale=scale)
        for unit_ND in (world.unit_ND, torch.zeros_like(world.unit_ND)):
            for name, grad in gradients(world, unit_ND).items():
                assert torch.isfinite(grad).all(), name
            world.network.zero_grad()
            for depth in world.network(unit_ND):
                for name in REAL:
                    assert torch.isfinite(field(depth, name)).all(), name


def test_a_residual_that_vanishes_on_the_way_is_harmless() -> None:
    world = make_world("default", 9, items=1)
    first = world.network.depths[0]
    first.outputs.copy_(world.unit_ND.expand_as(first.outputs) / first.step)
    depths = world.run()
    assert float(depths[0].soft_BD.norm()) < 1e-6
    for grad in gradients(world, world.unit_ND).values():
        assert torch.isfinite(grad).all()
        assert float(grad.abs().max()) < 1e6
