"""Algorithm 1 and its slow twins: fused votes and autograd, the network and the loop, a batch and an item."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capsule_worlds import VARIANTS, World, all_depths, array, in_double, make_world, plain, scales, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from worlds import make_table, shared_prefixes

from capsid.ids.order import SharedPrefixes
from capsid.tokenize.base import CAUSES, Trace
from capsid.tokenize.capsules import algorithm, catalogue
from capsid.tokenize.capsules.algorithm import Step
from capsid.tokenize.capsules.capsules import Capsules
from capsid.tokenize.capsules.reference import Answer, algorithm_one
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.capsules.votes import FullVotes, SharedPoses

CLOSE = {"rtol": 1e-7, "atol": 1e-9}
REAL = ("weights_BK", "mass_B", "confidence_B", "z_BD", "r_BD")
ROOM = Path(algorithm.__file__).parent


# --- votes ---


class PlainVotes:
    """The slow twin of `FullVotes`: a tensor, and plain autograd."""

    def __init__(self, r_BD: Tensor, weight_KCD: Tensor, bias_KC: Tensor, shift_BC: Tensor | None = None) -> None:
        self.u_BKC = torch.einsum("bd,kcd->bkc", r_BD, weight_KCD) + bias_KC
        if shift_BC is not None:
            self.u_BKC = self.u_BKC + shift_BC[:, None]

    def dot(self, other_BC: Tensor) -> Tensor:
        return torch.einsum("bkc,bc->bk", self.u_BKC, other_BC)

    def norms(self) -> Tensor:
        return self.u_BKC.norm(dim=2)

    def mean(self) -> Tensor:
        return self.u_BKC.mean(1)

    def dot_mean(self, scale_B1: Tensor) -> Tensor:
        return self.dot(scale_B1 * self.mean())

    def mix(self, weights_BK: Tensor) -> Tensor:
        return torch.einsum("bk,bkc->bc", weights_BK, self.u_BKC)


def used(votes: Any, other_BC: Tensor, weights_BK: Tensor, scale_B1: Tensor) -> Tensor:
    """One number that depends on every use of the votes, some of them twice and one through another."""
    mixed_BC = votes.mix(weights_BK)
    total = votes.dot(other_BC).sin().sum() + votes.dot(mixed_BC).cos().sum() + mixed_BC.square().sum()
    total = total + (votes.norms() * weights_BK).sum() + votes.dot_mean(scale_B1).tanh().sum()
    total = total + votes.mix(weights_BK * votes.norms()).sin().sum() + votes.mean().cos().sum()
    return total


@settings(max_examples=20, deadline=None)
@given(seeds(), st.integers(1, 5), st.integers(1, 6), st.booleans())
@in_double()
def test_fused_votes_have_the_values_and_gradients_of_autograd(seed: int, k: int, c: int, shifted: bool) -> None:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(4, 7), (k, c, 7), (k, c), (4, c), (4, c), (4, k), (4, 1)]
    leaves = [torch.randn(shape, generator=rng).requires_grad_() for shape in shapes]
    found = []
    for votes in (FullVotes, PlainVotes):
        r, weight, bias, shift, *others = leaves
        out = used(votes(r, weight, bias, shift if shifted else None), *others)
        grads = torch.autograd.grad(out, leaves, allow_unused=True)
        found.append([out, *(torch.zeros(()) if g is None else g for g in grads)])
    for fused, slow in zip(*found, strict=True):
        torch.testing.assert_close(fused, slow, **CLOSE)


@settings(max_examples=15)
@given(seeds(), st.integers(1, 6), st.integers(1, 8), scales())
@in_double()
def test_shared_votes_are_the_votes(seed: int, k: int, c: int, scale: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    poses = SharedPoses(k, c, 7, rng).requires_grad_(False)
    for parameter in poses.parameters():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=rng))
    r_BD, other_BC = torch.randn(4, 7, generator=rng), torch.randn(4, c, generator=rng)
    weights_BK, scale_B1 = torch.rand(4, k, generator=rng), torch.rand(4, 1, generator=rng)
    quick, slow = poses(r_BD), PlainVotes(r_BD, poses.base.expand(k, c, 7), poses.bias)
    torch.testing.assert_close(quick.dot(other_BC), slow.dot(other_BC), **CLOSE)
    torch.testing.assert_close(quick.norms(), slow.norms(), rtol=1e-5, atol=1e-7)  # a root of a difference
    torch.testing.assert_close(quick.mix(weights_BK), slow.mix(weights_BK), **CLOSE)
    torch.testing.assert_close(quick.mean(), slow.mean(), **CLOSE)
    torch.testing.assert_close(quick.dot_mean(scale_B1), slow.dot_mean(scale_B1), **CLOSE)


def test_training_steps_do_not_pile_up_votes() -> None:
    """A factor that remembered how it was made would keep the graph of every step alive."""
    import gc

    world = make_world("unit", 1, items=20, codebooks=(30, 30), width=20, dim=20)
    world.network.requires_grad_(True)

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(o, Tensor) for o in gc.get_objects())

    counts = []
    for _ in range(4):
        total = sum(s.r_BD.square().sum() + s.confidence_B.sum() for s in all_depths(world.network, world.unit_ND))
        total.backward()
        del total
        counts.append(tensors())
    assert counts[-1] <= counts[1]


# --- the network and the loop ---


def between(values: np.ndarray, share: float) -> float:
    """A threshold that splits the values, half way between two of them so that rounding cannot matter."""
    ordered = np.sort(values, axis=None)
    place = int(share * (len(ordered) - 2))
    return float(ordered[place] + ordered[place + 1]) / 2


def with_rules(world: World, shares: tuple[float, float], **fields: int) -> World:
    """The same network with thresholds that really end some ids early."""
    steps = world.run()
    rules = {
        "confidence": min(1.0, between(np.stack([array(s.confidence_B) for s in steps]), shares[0])),
        "residual": between(np.stack([np.linalg.norm(array(s.r_BD), axis=1) for s in steps]), shares[1]),
    }
    return dataclasses.replace(world, settings=dataclasses.replace(world.settings, **rules, **fields))


def check_items(answers: list[Answer], steps: list[Step]) -> None:
    for row, answer in enumerate(answers):
        for slow, quick in zip(answer.steps, steps):
            assert slow.token == int(quick.code_B[row])
            pairs = {
                "weights": (quick.weights_BK, slow.weights_K),
                "mass": (quick.mass_B, slow.weights_K[slow.token]),
                "confidence": (quick.confidence_B, slow.confidence),
                "z": (quick.z_BD, slow.z_D),
                "residual": (quick.r_BD, slow.r_D),
            }
            for name, (ours, theirs) in pairs.items():
                np.testing.assert_allclose(array(ours[row]), theirs, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=5)
@given(seeds(), scales(), st.tuples(st.floats(0.2, 1), st.floats(0, 0.8)), st.integers(0, 2))
@in_double()
def test_the_network_is_algorithm_one(
    variant: str, seed: int, scale: float, shares: tuple[float, float], max_sharing: int
) -> None:
    world = with_rules(make_world(variant, seed, scale=scale), shares, max_sharing=max_sharing)
    how, steps = world.settings, world.run()
    codes_NL = np.stack([s.code_B.numpy() for s in steps], 1)
    shared = SharedPrefixes.count(codes_NL, how.codebooks, how.max_sharing)
    confidence_NL = np.stack([array(s.confidence_B) for s in steps], 1)
    residual_NL = np.stack([np.linalg.norm(array(s.r_BD), axis=1) for s in steps], 1)
    stops = catalogue.stop(confidence_NL, residual_NL, shared.mask(codes_NL), how.rules)
    by_hand = shared_prefixes(codes_NL.tolist(), max_sharing)
    # Line 1 makes three times an item the same unit vector again.
    answers = [algorithm_one(3.0 * x_D, plain(world.network), how, by_hand) for x_D in array(world.unit_ND)]
    check_items(answers, steps)
    assert [len(a.steps) for a in answers] == stops.lengths.tolist()
    assert [a.cause for a in answers] == [CAUSES[c] for c in stops.causes]


def test_every_cause_and_length_comes_up() -> None:
    """The comparison above would be empty if all ids ended alike."""
    seen = set()
    with in_double():
        for seed in range(6):
            world = with_rules(make_world("default", seed, items=30), (0.7, 0.2), max_sharing=1)
            shared = shared_prefixes(np.stack([s.code_B.numpy() for s in world.run()], 1).tolist(), 1)
            depths = plain(world.network)
            answers = [algorithm_one(x_D, depths, world.settings, shared) for x_D in array(world.unit_ND)]
            seen |= {(a.cause, len(a.tokens)) for a in answers}
    assert {cause for cause, _ in seen} == set(CAUSES)
    assert {length for _, length in seen} == {1, 2, 3}


def step_forgotten(capsules: Capsules) -> None:
    capsules.step.fill_(1.0)


def changed_form(**fields: Any) -> Callable[[Capsules], None]:
    def change(capsules: Capsules) -> None:
        capsules.form = dataclasses.replace(capsules.form, **fields)

    return change


def winner_alone(capsules: Capsules) -> None:
    capsules.hard_winner = True


MISTAKES = {
    "step forgotten": step_forgotten,
    "an agreement less": changed_form(agreements=1),
    "length instead of direction": changed_form(on_direction=False),
    "votes of any length": changed_form(unit_votes=False),
    "consensus of any length": changed_form(unit_consensus=False),
    "winner alone": winner_alone,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@in_double()
def test_the_twin_notices(mistake: str) -> None:
    world = make_world("default", 1)
    depths = plain(world.network)
    for capsules in world.network.depths:
        MISTAKES[mistake](capsules)
    endless = dataclasses.replace(world.settings, confidence=1.0, residual=0.0)
    answers = [algorithm_one(x_D, depths, endless) for x_D in array(world.unit_ND)]
    with pytest.raises(AssertionError):
        check_items(answers, world.run())


# --- everybody runs the one algorithm ---

# In each line of Algorithm 1 a planted mistake; what it replaces must occur once.
PLANTED = {
    "squash": ("norms / (0.5 + norms.square())", "norms / (0.6 + norms.square())"),
    "logits": ("a_BK.addcmul_(dots_BK, inverse_BK)", "a_BK"),
    "token": ("mass_B, code_B = c_BK.max(1)", "mass_B, code_B = c_BK.min(1)"),
    "reconstruction": ("capsules.step * (c_BK @ capsules.outputs)", "0.9 * capsules.step * (c_BK @ capsules.outputs)"),
    "residual": ("z_BD, r_BD - z_BD)", "z_BD, r_BD + z_BD)"),
    "ends": ("confidence >= tau", "confidence > 2 * tau"),
    "rows": ("rows[stays], step.r_BD[stays]", "rows[~stays], step.r_BD[~stays]"),
}


def planted(name: str) -> dict[str, Any]:
    """The names of `algorithm.py` with one mistake."""
    source = Path(algorithm.__file__).read_text(encoding="utf-8")
    right, wrong = PLANTED[name]
    assert source.count(right) == 1, name
    space: dict[str, Any] = {"__name__": algorithm.__name__}
    exec(compile(source.replace(right, wrong), algorithm.__file__, "exec"), space)
    return space


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_any_line_changes_fit_encode_add_and_report(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(np.random.default_rng(0).normal(size=(120, 12)))
    kind = {"squash": {"routing": "unit", "poses": "full"}}.get(mistake, {})
    fields = {"codebooks": (6, 6, 6), "confidence": 0.35, "max_sharing": 0, "residual": 0.3, **kind}
    right = CapsuleTokenizer(**fields).fit(table)
    encoded, traced = right.encode(table), right.trace(table)
    space = planted(mistake)
    for module in (algorithm, catalogue, *_importers()):
        for name in ("squash_scale", "squash", "agree", "one_depth", "reconstruct", "ends", "algorithm_one"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, space[name])
    refitted = CapsuleTokenizer(**fields).fit(table).encode(table)
    assert refitted != encoded, "fit"
    assert right.encode(table) != encoded, "encode, which adds items too"
    seen = right.trace(table)
    same = all(np.array_equal(getattr(seen, f.name), getattr(traced, f.name)) for f in dataclasses.fields(Trace))
    stops = np.array_equal(right.stop(seen).lengths, right.stop(traced).lengths) and mistake != "ends"
    # Nobody leaves in a trace; where ids end there is said by `ends`.
    assert mistake == "rows" or not (same and stops), "report and explain"


def _importers() -> list[Any]:
    from capsid.tokenize.capsules import objective, start

    return [objective, start]


def test_there_is_no_other_loop_over_depths() -> None:
    """Only `algorithm_one` goes from depth to depth: elsewhere no loop over depths makes votes or residuals."""
    found = []
    for path in [*ROOM.rglob("*.py"), *(ROOM.parents[1] / "evaluate").glob("capsule*.py")]:
        if path.name == "reference.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            loop = isinstance(node, ast.For | ast.comprehension) and "depths" in ast.unparse(node.iter)
            calls = {ast.unparse(c.func) for c in ast.walk(node) if isinstance(c, ast.Call)} if loop else set()
            if calls & {"one_depth", "advance", "agree", "capsules.votes", "reconstruct", "algorithm.one_depth"}:
                found.append(path.name)
    assert found == ["algorithm.py"]


# --- an item alone, in a batch, later ---


@pytest.mark.parametrize("variant", ["default", "paper", "unit", "hard"])
def test_an_item_gets_the_same_bits_in_any_company(variant: str) -> None:
    items = catalogue.BLOCK + 90  # two blocks, the second one padded
    # Products with fewer than nine columns depend on the row's place in some linear algebra libraries: none here.
    world = make_world(variant, 5, items=items, width=24, codebooks=(12, 12), dim=0 if variant == "default" else 16)
    vectors = world.unit_ND.numpy()
    order = np.random.default_rng(0).permutation(items)
    rows = [0, 1, 17, catalogue.BLOCK - 1, catalogue.BLOCK, items - 1]
    whole = catalogue.trace(world.network, vectors, strongest=3)
    later = catalogue.trace(world.network, vectors[order], strongest=3)
    alone = {row: catalogue.trace(world.network, vectors[row : row + 1], strongest=3) for row in rows}
    for f in dataclasses.fields(Trace):
        value = getattr(whole, f.name)
        np.testing.assert_array_equal(getattr(later, f.name), value[order], err_msg=f.name)
        for row in rows:
            np.testing.assert_array_equal(getattr(alone[row], f.name)[0], value[row], err_msg=f.name)
    assert len(catalogue.trace(world.network, vectors[:0])) == 0


def test_a_trace_is_what_the_depths_say() -> None:
    world = make_world("unit", 2, items=20)
    steps, seen = world.run(), catalogue.trace(world.network, world.unit_ND.numpy(), strongest=2)
    for number, (step, hard_BD) in enumerate(zip(steps, world.hard(steps))):
        assert seen.codes[:, number].tolist() == step.code_B.tolist()
        columns = {
            "confidence": step.confidence_B,
            "mass": step.mass_B,
            "soft": step.r_BD.norm(dim=1),
            "hard": hard_BD.norm(dim=1),
        }
        for name, value in columns.items():
            np.testing.assert_allclose(getattr(seen, name)[:, number], value.numpy(), rtol=1e-4, atol=1e-5)
        order = np.argsort(-array(step.weights_BK), axis=1, kind="stable")[:, :2]
        assert seen.strongest[:, number].tolist() == order.tolist()
        np.testing.assert_array_equal(seen.strongest[:, number, 0], seen.codes[:, number])


# --- rounds ---


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_one_round_of_the_paper_gives_every_item_the_same_id(scale: float) -> None:
    """Weights are read before the first agreement: all equal, and the first capsule is the winner."""
    world = make_world("paper", 0, items=50, scale=scale, rounds=1)
    for step, size in zip(world.run(), world.settings.codebooks):
        np.testing.assert_array_equal(step.weights_BK.numpy(), np.float32(1 / size))
        assert set(step.code_B.tolist()) == {0}
    after = make_world("default", 0, items=50, scale=scale, rounds=1)
    assert len({tuple(row) for row in catalogue.trace(after.network, after.unit_ND.numpy()).codes.tolist()}) > 5


@in_double()
def test_a_hard_winner_is_subtracted_alone() -> None:
    world = make_world("hard", 6)
    before_BD = world.unit_ND
    for step, capsules in zip(world.run(), world.network.depths):
        expected_BD = before_BD - capsules.step * capsules.outputs[step.code_B]
        torch.testing.assert_close(step.r_BD, expected_BD, rtol=0, atol=1e-14)
        assert float(step.mass_B.min()) < 0.99  # so that the mixture would have been another vector
        before_BD = step.r_BD


# --- gradients ---


def gradients(world: World, unit_ND: Tensor) -> dict[str, Tensor]:
    world.network.requires_grad_(True)
    steps = all_depths(world.network, unit_ND)
    total = sum(s.r_BD.square().sum() + s.confidence_B.sum() for s in steps)
    total.backward()
    found = {name: p.grad for name, p in world.network.named_parameters() if "centres" not in name}
    world.network.zero_grad()
    world.network.requires_grad_(False)
    return {name: torch.zeros(1) if grad is None else grad for name, grad in found.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_reach_all_that_is_trained(variant: str) -> None:
    world = make_world(variant, 7)
    for name, grad in gradients(world, world.unit_ND).items():
        assert torch.isfinite(grad).all(), name
        assert float(grad.abs().sum()) > 0, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_breaks_at_zero(variant: str) -> None:
    """A residual of zero, votes of zero, and both."""
    for scale in (1.0, 0.0):
        world = make_world(variant, 8, scale=scale)
        for unit_ND in (world.unit_ND, torch.zeros_like(world.unit_ND)):
            for name, grad in gradients(world, unit_ND).items():
                assert torch.isfinite(grad).all(), name
            for step in all_depths(world.network, unit_ND):
                for name in REAL:
                    assert torch.isfinite(getattr(step, name)).all(), name


def test_a_residual_that_vanishes_on_the_way_is_harmless() -> None:
    world = make_world("default", 9, items=1)
    first = world.network.depths[0]
    first.outputs.copy_(world.unit_ND.expand_as(first.outputs) / first.step)
    assert float(world.run()[0].r_BD.norm()) < 1e-6
    for grad in gradients(world, world.unit_ND).values():
        assert torch.isfinite(grad).all()
        assert float(grad.abs().max()) < 1e6
