"""Soft targets of first tokens: against torch, against exact probabilities of items, and as before without softness."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ids_of_form, loss_of, random_generator, reader_of

from capsid.base.blocks import cross_entropy as module
from capsid.base.blocks.cross_entropy import Added, GroupTargets, group_cross_entropy
from capsid.decode.exact import exact_scores
from capsid.errors import ConfigError
from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.ids.mixtures import Mixtures
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.recipes import get_recipe

PIECES = [[0, 3, 1, 3], [5, 6]]


def mixed(ids: SemanticIds, strongest: int, seed: int) -> SemanticIds:
    """The id's code first, then others, with falling weights."""
    rng = np.random.default_rng(seed)
    codes = np.zeros((len(ids), 3, strongest), dtype=np.int64)
    for item, row in enumerate(ids.codes):
        for depth, size in enumerate((4, 3, 3)):
            own = int(row[depth]) if depth < len(row) else 0
            others = rng.permutation([c for c in range(size) if c != own])[: strongest - 1]
            codes[item, depth] = [own, *others]
    weights = -np.sort(-rng.random(codes.shape), axis=2)
    return dataclasses.replace(ids, mixtures=Mixtures.of(codes, weights))


def lesson_of(ids: SemanticIds) -> Lesson:
    return ids.lesson(Ragged.from_rows(PIECES, np.int64), last=7)


@pytest.mark.parametrize("chunk", [1, 60, 10_000])
def test_value_and_slopes_are_torchs(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "GROUP_CHUNK", chunk)
    source = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=source).requires_grad_() for n in (23, 11))
    group_V = torch.tensor([0, 2, 1, 1, 0, 3, 3, 3, 2, 0, 1])
    where = torch.rand(23, 4, generator=source) < 0.5
    where[:, 2] = True
    shares_NG = torch.rand(23, 4, generator=source) * where
    shares_NG = shares_NG / shares_NG.sum(1, keepdim=True)
    targets = GroupTargets(group_V, *where.nonzero(as_tuple=True), shares_NG[where])
    plus = (torch.rand(23, 11, generator=source) < 0.2).nonzero(as_tuple=True)
    values = torch.randn(len(plus[0]), generator=source).requires_grad_()
    fast = group_cross_entropy(hidden, weight, targets, added=Added(*plus, values))
    odds = (hidden @ weight.T).index_put(plus, values, accumulate=True).softmax(-1)
    slow = -(shares_NG * torch.zeros(23, 4).index_add(1, group_V, odds).log()).sum()
    torch.testing.assert_close(fast, slow)
    inputs = (hidden, weight, values)
    for a, b in zip(torch.autograd.grad(2.5 * fast, inputs), torch.autograd.grad(2.5 * slow, inputs)):
        torch.testing.assert_close(a, b)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["variable", "fixed", "merged"]))
def test_the_target_is_the_probability_of_all_items_with_a_code(seed: int, form: str) -> None:
    """Items of the history may come again, so that what `repeats` adds is there too."""
    ids = mixed(ids_of_form(seed, form), 3, seed)
    generator, lesson = random_generator(ids, seed, kind=TimelineGenerator), lesson_of(ids)
    tokens = len(lesson.tokens.values)
    hard, soft = (
        float(loss_of(NextToken(soft_target=share), ids, generator, lesson, over="children").detach()) * tokens
        for share in (0.0, 1.0)
    )
    reader, total = reader_of(generator, ids, over="children"), 0.0
    first_N = np.array([int(row[0]) for row in ids.codes])
    for piece in PIECES:
        for at in range(1, len(piece)):
            item = piece[at]
            probability_N = np.exp(exact_scores(reader, Ragged.from_rows([piece[:at]], np.int64))[0].numpy())
            # What the first token costs is replaced: that of all items whose ids begin with the same token.
            same = [i for i in range(len(ids)) if ids.prefix_free[i][0] == ids.prefix_free[item][0]]
            total += float(np.log(probability_N[same].sum()))
            assert ids.mixtures is not None
            codes, shares = ids.mixtures.codes_NLK[item, 0], ids.mixtures.weights_NLK[item, 0]
            there = np.isin(codes, first_N)
            for code, share in zip(codes[there], shares[there] / shares[there].sum()):
                total -= share * float(np.log(probability_N[first_N == code].sum()))
    assert soft - hard == pytest.approx(total, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("form", ["fixed", "variable", "merged"])
def test_without_a_share_it_is_as_before_to_the_bit(form: str) -> None:
    ids = ids_of_form(1, form)
    generator = random_generator(ids, 1, kind=TimelineGenerator)
    found = loss_of(NextToken(soft_target=0.0), mixed(ids, 3, 1), generator, lesson_of(ids), over="children")
    assert torch.equal(found, loss_of(NextToken(), ids, generator, lesson_of(ids), over="children"))


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("form", ["fixed", "variable"])
def test_one_code_is_the_hard_target(form: str, share: float) -> None:
    """Unmerged ids whose items are one code each: value and slopes are those of the next-token loss."""
    ids = mixed(ids_of_form(2, form), 1, 2)
    generator = random_generator(ids, 2, kind=TimelineGenerator)
    losses = [loss_of(NextToken(soft_target=s), ids, generator, lesson_of(ids), over="children") for s in (share, 0.0)]
    torch.testing.assert_close(losses[0], losses[1])
    weight = generator.network.token.weight
    found, expected = (torch.autograd.grad(loss, weight)[0] for loss in losses)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_code_that_a_policy_put_there_stays_hard_and_unused_codes_get_nothing() -> None:
    ids = ids_of_form(3, "fixed")
    codes = np.stack([np.array([[c, (c + 1) % 3] for c in row]) for row in ids.codes])
    soft = Mixtures.of(codes, np.broadcast_to([0.6, 0.4], codes.shape))
    first_M = np.array([int(row[0]) for row in ids.prefix_free])
    swapped = np.array([(codes[0, 0, 0] + 2) % 4 + int(ids.layout.bases[0])])
    tokens, shares = soft.first_shares(ids.layout, np.array([0]), swapped)
    assert tokens.values.tolist() == swapped.tolist()
    assert shares.tolist() == [1.0]
    tokens, shares = soft.first_shares(ids.layout, np.array([0]), first_M[:1])
    assert tokens.lengths.tolist() == [2]
    np.testing.assert_allclose(shares, [0.6, 0.4], rtol=1e-6)


def test_what_cannot_be_asked() -> None:
    ids = ids_of_form(4, "fixed")
    generator = random_generator(ids, 4, kind=TimelineGenerator)
    with pytest.raises(ConfigError, match=r"needs the weights of items' codes.*soft_input=8"):
        loss_of(NextToken(soft_target=0.5), ids, generator, lesson_of(ids), over="children")
    for settings_, wrong in (
        (("over=children",), "generator.soft_input"),
        (("generator.soft_input=8",), "over=children"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            get_recipe("capsid-bpe").with_settings((*settings_, "objective.0.soft_target=0.2"))
