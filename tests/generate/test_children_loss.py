"""The next-token loss over the children of a node is the negative log of what exact scoring gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from worlds import (
    GENERATORS,
    ID_FORMS,
    MakeGenerator,
    ids_of_form,
    loss_of,
    make_ids,
    objective_of,
    random_generator,
    reader_of,
)

from capsid.base.blocks.cross_entropy import ChildEdges, children_cross_entropy
from capsid.decode.exact import exact_scores
from capsid.generate.fit import fit_generator
from capsid.generate.generator import MaskedGenerator, TimelineGenerator, TransformerGenerator
from capsid.generate.next_token import NextToken, parent_nodes
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.train.options import Training

KINDS = pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)


@KINDS
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS))
def test_the_loss_is_minus_the_log_of_the_items_probability(kind: MakeGenerator, seed: int, form: str) -> None:
    """Items of the history may come again, so that what `repeats` adds is there too."""
    ids = ids_of_form(seed, form)
    generator = random_generator(ids, seed, kind=kind)
    rng = np.random.default_rng(seed)
    pieces = [rng.integers(0, len(ids), n).tolist() for n in (2, 5, 7)]
    lesson = ids.lesson(Ragged.from_rows(pieces, np.int64), last=7)
    mean = loss_of(NextToken(), ids, generator, lesson, over="children").detach()
    loss = float(mean) * len(lesson.tokens.values)
    reader, total = reader_of(generator, ids, over="children"), 0.0
    for piece in pieces:
        for at in range(1, len(piece)):
            scores = exact_scores(reader, Ragged.from_rows([piece[:at]], np.int64))
            total -= float(scores[0, piece[at]])
    assert loss == pytest.approx(total, rel=1e-4, abs=1e-3)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), smoothing=st.sampled_from([0.0, 0.2]))
def test_value_and_gradients_are_those_of_a_masked_softmax(seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    rows, vocabulary, width = 5, 9, 4
    allowed = rng.random((rows, vocabulary)) < 0.5
    targets = rng.integers(0, vocabulary, rows)
    allowed[np.arange(rows), targets] = True
    row, token = np.nonzero(allowed)
    own = np.array([np.flatnonzero((row == r) & (token == t))[0] for r, t in enumerate(targets)])
    plus = np.flatnonzero(rng.random(len(row)) < 0.3)
    edges = ChildEdges(*(torch.from_numpy(a) for a in (row, token, own, plus)))
    source = torch.Generator().manual_seed(seed)
    shapes = ((rows, width), (vocabulary, width), (len(plus),))
    leaves = [torch.randn(shape, generator=source, requires_grad=True) for shape in shapes]
    fast = children_cross_entropy(leaves[0], leaves[1], edges, leaves[2], label_smoothing=smoothing)
    found = torch.autograd.grad(fast, leaves)
    scores = (leaves[0] @ leaves[1].T).index_put((edges.row_E[plus], edges.token_E[plus]), leaves[2], accumulate=True)
    logs = scores.masked_fill(~torch.from_numpy(allowed), -torch.inf).log_softmax(-1)
    picked = logs[torch.arange(rows), torch.from_numpy(targets)]
    spread = torch.stack([logs[r][torch.from_numpy(allowed[r])].mean() for r in range(rows)])
    slow = -((1 - smoothing) * picked + smoothing * spread).sum()
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    for a, b in zip(found, torch.autograd.grad(slow, leaves)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@KINDS
def test_gradients_reach_all_that_the_loss_depends_on(kind: MakeGenerator) -> None:
    """Against differences: the gradient of the mean loss along a random direction of the token table."""
    ids = ids_of_form(3, "variable")
    generator = random_generator(ids, 3, kind=kind, scale=4.0)
    network = generator.network.double()
    lesson = ids.lesson(Ragged.from_rows([[0, 1, 2, 3, 0], [4, 5]], np.int64), last=7)
    objective = objective_of(ids, NextToken(label_smoothing=0.1, temperature=0.7), over="children")
    torch.set_default_dtype(torch.float64)
    try:
        objective.loss(lesson, network).backward()
        weight = network.token.weight
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        slope, values = float((weight.grad * direction).sum()), []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight += step * direction
                values.append(objective.loss(lesson, network).item())
                weight -= step * direction
    finally:
        torch.set_default_dtype(torch.float32)
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


def test_tokens_without_siblings_cost_nothing_and_touch_nothing() -> None:
    ids = make_ids([[0, 0, 0], [1, 2, 1]], (2, 3, 3))
    generator = random_generator(ids, 0, kind=TimelineGenerator)
    lesson = ids.lesson(Ragged.from_rows([[0, 1, 0]], np.int64), last=7)
    loss = loss_of(NextToken(), ids, generator, lesson, over="children")
    first = generator.network.predict(lesson)
    scores = first.scores_NV[[0, 3]][:, [2, 3]]
    wanted = F.cross_entropy(scores, torch.tensor([1, 0]), reduction="sum")
    torch.testing.assert_close(loss * 6, wanted, rtol=1e-4, atol=1e-4)


def test_parents_are_found_by_walking() -> None:
    ids = ids_of_form(1, "variable")
    trie = Trie.build(ids.prefix_free)
    nodes = parent_nodes(trie, ids.prefix_free)
    for item, row in enumerate(ids.prefix_free):
        own = nodes[ids.prefix_free.offsets[item] : ids.prefix_free.offsets[item + 1]]
        assert [trie.path(int(n)) for n in own] == [row[:d].tolist() for d in range(len(row))]


def test_masked_items_compete_with_the_catalogue() -> None:
    ids = make_ids([[i] for i in range(6)], (9,))
    generator = random_generator(ids, 1, kind=MaskedGenerator)
    lesson = ids.lesson(Ragged.from_rows([[0, 1, 2], [3, 4]], np.int64), last=7)
    found = generator.network.predict(lesson)
    scores = found.scores_NV[:, 2:8]
    expected = F.cross_entropy(scores, found.targets_N - 2)
    torch.testing.assert_close(loss_of(NextToken(), ids, generator, lesson, over="children"), expected)


@pytest.mark.parametrize("kind", [TransformerGenerator, TimelineGenerator])
def test_it_learns(kind: MakeGenerator) -> None:
    """Everybody goes round the catalogue: the probability of the next item becomes 1, and all sum to 1."""
    ids = make_ids([[i // 4, i % 4] for i in range(8)], (2, 4))
    made = kind(layers=1, heads=2, width=16, feedforward=16, history=6, dropout=0.0, embedding_dropout=0.0)
    generator = made.build(ids, np.ones(8), seed=0)
    rows = Ragged.from_rows([[(u + i) % 8 for i in range(6)] for u in range(8)], np.int64)
    options = Training(steps=400, batch_size=8, learning_rate=0.01, ema=0.9, validate_every=400)
    fit_generator(generator, ids, rows, objective_of(ids, over="children"), options, seed=0)
    reader = reader_of(generator, ids, over="children")
    scores = exact_scores(reader, Ragged.from_rows([[0, 1, 2], [4]], np.int64)).exp()
    assert scores[0, 3] > 0.9
    assert scores[1, 5] > 0.9
    torch.testing.assert_close(scores.sum(1), torch.ones(2), rtol=0, atol=1e-5)
