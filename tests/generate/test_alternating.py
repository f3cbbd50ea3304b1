"""Turns of tokenizer and generator: which part learns what, and what the two alignments measure."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from worlds import make_table, random_generator

from capsid.errors import ConfigError
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.joint_rivals import Alternating, BoundSides, Side, preference_alignment, sequence_alignment
from capsid.generate.terms import Objective, Part, Prepared, Step, TermContext
from capsid.ids.collisions import Suffix
from capsid.ids.reading import Lesson
from capsid.ids.trie import Trie
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.recipe import Phase, Recipe
from capsid.recipes import RECIPES
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.train.options import Training

ITEMS = 30
VECTORS = np.random.default_rng(0).normal(size=(ITEMS, 6)).astype(np.float32)
# Items 3, 7 and 9 are targets more than once.
PIECES = Ragged.from_rows([[3, 7, 1, 12], [5, 3], [0, 9, 9, 7, 2], [11, 3, 5]], np.int64)


@cache
def tokenizer(**settings: Any) -> ItemTokenizer:
    few = Training(steps=6, batch_size=16, validate_every=3)
    rqvae = RQVAE(codebooks=(4, 4, 4), hidden=(8,), latent=5, training=few, **settings)
    return ItemTokenizer(tokenizer=rqvae, collisions=Suffix(capacity=ITEMS)).fit(make_table(VECTORS))


def context(of: ItemTokenizer | None = None) -> TermContext:
    of = of or tokenizer()
    return TermContext(of.ids, (Trie.build(of.ids.prefix_free),), "vocabulary", of, 16, 5)


def bound(learns: str, *, aligned: bool = True, **settings: Any) -> BoundSides:
    return Side(Alternating(**settings), learns, aligned).bind(context())  # type: ignore[return-value]


def lesson() -> Lesson:
    return tokenizer().ids.lesson(PIECES, last=6)


def loss(term: BoundSides, kind: type[TransformerGenerator] = TimelineGenerator) -> tuple[Tensor, TransformerGenerator]:
    objective = Objective((), context())
    objective.terms["alternating"] = term
    generator = random_generator(tokenizer().ids, 3, kind=kind)
    return objective.loss(lesson(), generator.network), generator


def learnt(module: torch.nn.Module) -> set[str]:
    """Parameters that a loss has reached."""
    return {n for n, p in module.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}


def test_a_phase_is_a_warm_up_then_turns_then_the_generator_alone() -> None:
    turns = Alternating(cycles=2, share=0.7, warm=0.2, training=Training(steps=10))
    stretches = Phase(training=Training(steps=100), adapt=turns).stretches()
    assert [(s.name, s.steps) for s in stretches] == [
        ("generator with alternating", range(20)),
        ("generator with alternating", range(20, 45)),
        ("tokenizer with alternating", range(5)),
        ("generator with alternating", range(45, 70)),
        ("tokenizer with alternating", range(5, 10)),
        ("generator", range(70, 100)),
    ]
    assert [s.freezes for s in stretches] == [False, False, True, False, True, False]
    assert [s.part is not None and s.part.settles for s in stretches] == [s.freezes for s in stretches]
    assert [len(s.terms(("the next token",))) for s in stretches] == [2, 2, 1, 2, 1, 1]  # type: ignore[arg-type]


@given(st.integers(1, 60), st.integers(0, 9), st.integers(1, 20), st.floats(0, 0.5), st.floats(0.51, 0.99))
def test_every_step_is_in_one_part(steps: int, cycles: int, own: int, warm: float, share: float) -> None:
    parts = Alternating(cycles=cycles, share=share, warm=warm, training=Training(steps=own)).parts(steps)

    def made(of: list[Part]) -> list[int]:
        return [step for part in of for step in part.steps]

    generator = [p for p in parts if not p.freezes]
    assert made(generator) == list(range(min(round(steps * share), steps - 1)))
    turns = [p for p in parts if p.freezes]
    aligned = [p for p in generator if isinstance(p.term, Side) and p.term.aligned]
    assert made(turns) == (list(range(own)) if cycles and aligned else [])
    assert all(parts)


def test_the_generators_turn_teaches_heads_and_generator_and_never_the_tokenizer() -> None:
    term = bound("generator")
    total, generator = loss(term)
    total.backward()
    assert learnt(term.heads) == {n for n, _ in term.heads.named_parameters()}
    assert learnt(term.tokenizer) == set()
    assert "token.weight" in learnt(generator.network)


def test_the_tokenizers_turn_teaches_all_of_it_and_nothing_else() -> None:
    term = bound("tokenizer")
    objective = Objective((), context())
    objective.terms["alternating"] = term
    network = random_generator(tokenizer().ids, 3, kind=TimelineGenerator).network.requires_grad_(False)
    objective.loss(lesson(), network).backward()
    assert learnt(term.tokenizer) == {n for n, _ in term.tokenizer.named_parameters()}
    assert learnt(term.heads) == set()


def test_without_alignment_the_generator_has_nothing_to_learn_and_the_tokenizer_its_own_loss() -> None:
    none = {"sequence_weight": 0.0, "preference_weight": 0.0}
    for term in (bound("generator", aligned=False), bound("generator", **none)):
        assert loss(term)[0].tolist() == 0
    unique = np.unique(lesson().item_M)
    network = tokenizer().tokenizer_.network_
    entered = network.enter(torch.from_numpy(VECTORS[unique]))
    own = network.loss_of(entered, network.quantize(network.encoder(entered)))
    assert loss(bound("tokenizer", **none))[0].item() == pytest.approx(own.item(), rel=1e-6)


@given(st.integers(0, 10_000))
def test_the_divergence_is_zero_where_distributions_are_equal_and_positive_elsewhere(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    ours = [torch.randn(3, 4, generator=source) for _ in range(2)]
    shifted = [scores + 2.5 for scores in ours]  # The softmax does not see what is added to all scores of a row.
    assert sequence_alignment(ours, shifted).item() == pytest.approx(0, abs=1e-6)
    other = [ours[0], ours[1].clone()]
    other[1][0, 0] += 0.5
    found = sequence_alignment(ours, other)
    assert found > 1e-4
    twin = [
        sum(torch.nn.functional.kl_div(a, b, reduction="batchmean", log_target=True) for a, b in ((p, q), (q, p)))
        for p, q in ((x.log_softmax(1), y.log_softmax(1)) for x, y in zip(ours, other))
    ]
    assert found.item() == pytest.approx((sum(twin) / 2).item(), rel=1e-3, abs=1e-6)


def test_sequence_alignment_falls_as_a_head_comes_to_copy_the_latent() -> None:
    """And codes are scored by minus the distance: the nearest code is the likeliest."""
    network = bound("generator").tokenizer
    x_UI = torch.from_numpy(VECTORS)
    latent_UC = network.encoder(network.enter(x_UI))
    far_UC = torch.randn(latent_UC.shape, generator=torch.Generator().manual_seed(1))
    read = network.read(x_UI)
    found = [
        sequence_alignment(read.scores, network.scores(torch.lerp(far_UC, latent_UC, share))).item()
        for share in (0.0, 0.5, 0.9, 1.0)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(0, abs=1e-6)
    nearest_NL = torch.stack([scores_UK.argmax(1) for scores_UK in read.scores], 1)
    assert nearest_NL.tolist() == tokenizer().ids.encoded.dense().tolist()


def test_a_few_steps_of_the_head_bring_both_alignments_down() -> None:
    term = bound("generator", sequence_weight=1.0, preference_weight=1.0)
    optimizer = torch.optim.Adam(term.heads.parameters(), lr=0.05)
    losses = []
    for _ in range(15):
        total, _ = loss(term)
        losses.append(total.item())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert losses[-1] < 0.6 * losses[0]


def test_partners_find_each_other_both_ways() -> None:
    near = torch.eye(4)
    assert preference_alignment(near, 3 * near).item() == pytest.approx(0, abs=1e-4)
    assert preference_alignment(near, near.roll(1, 0)).item() == pytest.approx(2 / 0.07, rel=1e-2)
    # One row is near all of the other side: its own direction tells nothing, the others' does.
    one_sided = torch.stack([torch.ones(4)] * 4)
    assert preference_alignment(one_sided, near).item() == pytest.approx(2 * np.log(4), rel=1e-5)


def test_preference_alignment_row_by_row_and_in_both_directions() -> None:
    """Rows that are nearer to another's partner than that partner is to them: the two directions differ."""
    source = torch.Generator().manual_seed(4)
    ours, theirs = (torch.randn(5, 3, generator=source) for _ in range(2))
    there, back = torch.zeros(()), torch.zeros(())
    for row in range(5):
        forth_U = torch.nn.functional.cosine_similarity(ours[row], theirs) / 0.07
        from_U = torch.nn.functional.cosine_similarity(theirs[row], ours) / 0.07
        there = there + (forth_U.logsumexp(0) - forth_U[row]) / 5
        back = back + (from_U.logsumexp(0) - from_U[row]) / 5
    assert abs(there.item() - back.item()) > 0.05, "or one direction would do for both"
    assert preference_alignment(ours, theirs).item() == pytest.approx((there + back).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("setting", "aligned", "other"),
    [("sequence_weight", "starts_MD", "hidden_ND"), ("preference_weight", "hidden_ND", "starts_MD")],
)
def test_histories_are_aligned_by_their_last_row_and_preferences_by_the_row_of_the_first_token(
    setting: str, aligned: str, other: str
) -> None:
    term = bound("generator", **{"sequence_weight": 0.0, "preference_weight": 0.0, setting: 1.0})
    network, given = random_generator(tokenizer().ids, 3, kind=TimelineGenerator).network, lesson()
    found = network.predict(given)
    rows = {name: getattr(found, name).detach().requires_grad_(True) for name in (aligned, other)}
    term.loss(Step(given, network, dataclasses.replace(found, **rows)), Prepared()).backward()
    assert rows[aligned].grad is not None
    reached = np.flatnonzero(rows[aligned].grad.abs().amax(1).numpy())
    # Rows are of predicted items, or of all their tokens; each different target is read where it comes first.
    of_items = np.arange(len(given.item_M)) if aligned == "starts_MD" else given.tokens.offsets[:-1]
    assert reached.tolist() == of_items[np.sort(np.unique(given.item_M, return_index=True)[1])].tolist()
    assert rows[other].grad is None


def test_targets_that_come_twice_count_once() -> None:
    """A batch whose targets are all one item has no wrong answers."""
    term = bound("generator", sequence_weight=0.0, preference_weight=1.0)
    objective = Objective((), context())
    objective.terms["alternating"] = term
    network = random_generator(tokenizer().ids, 3, kind=TimelineGenerator).network
    same = tokenizer().ids.lesson(Ragged.from_rows([[1, 4], [2, 4], [3, 4, 4]], np.int64), last=6)
    assert objective.loss(same, network).item() == pytest.approx(0, abs=1e-6)


def test_one_position_per_token_can_be_aligned_too() -> None:
    total, _ = loss(bound("generator", sequence_weight=1.0), TransformerGenerator)
    assert total > 0


def test_settled_ids_are_those_of_the_network_as_it_has_become() -> None:
    term, table = bound("tokenizer"), make_table(VECTORS)
    assert term.settle(table, silent).ids == tokenizer().ids, "a network that did not move gives the same ids"
    before = {name: array.copy() for name, array in tokenizer().tokenizer_.state().items()}
    with torch.no_grad():
        for parameter in term.tokenizer.encoder.parameters():
            parameter.mul_(-1.5)
    moved = term.settle(table, silent)
    assert moved.ids.codes != tokenizer().ids.codes
    assert moved.ids.layout == tokenizer().ids.layout
    assert moved.tokenizer_.encode(table) == moved.ids.codes
    for name, array in before.items():
        np.testing.assert_array_equal(tokenizer().tokenizer_.state()[name], array)


def test_what_cannot_learn_in_turns() -> None:
    plain = ItemTokenizer(tokenizer=ResidualKMeans(codebooks=(4, 4))).fit(make_table(VECTORS))
    with pytest.raises(ConfigError, match="'residual-kmeans' has no network to train"):
        Side(Alternating(), "tokenizer").bind(context(plain))
    with pytest.raises(ConfigError, match="ids of varying length"):
        Side(Alternating(), "tokenizer").bind(context(tokenizer(crowd=2)))


def test_the_warm_up_ends_before_the_turns_do() -> None:
    def with_warm(value: float) -> Recipe:
        return RECIPES["etegrec"].with_settings([f"schedule.0.adapt.warm={value}"])

    assert with_warm(0.69).schedule[0].adapt.warm == 0.69  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"warm must be below share, got 0\.7 and 0\.7"):
        with_warm(0.7)
