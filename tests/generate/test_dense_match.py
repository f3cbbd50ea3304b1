"""Item vectors beside ids: what they add to what is read, what is expected after an id, and the loss between them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worlds import make_ids, random_codes, random_generator

from capsid.errors import ConfigError
from capsid.generate.dense_items import DenseItems
from capsid.generate.dense_match import BoundMatch, DenseMatch
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, Step, TermContext
from capsid.ids.reading import Lesson
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

# Ids of one to three tokens, some of them shared, some beginning others.
IDS = make_ids(random_codes(3, items=20, sizes=(4, 3, 3), variable=True, distinct=False), (4, 3, 3))
PIECES = Ragged.from_rows([[3, 7, 1, 12], [5, 3], [0, 9, 9, 7, 2], [11, 3, 5]], np.int64)


def bound(term: DenseMatch, seed: int = 0, vectors: np.ndarray | None = None) -> BoundMatch:
    given = np.random.default_rng(seed).normal(size=(len(IDS), 5)) if vectors is None else vectors
    tokenizer = SimpleNamespace(blocks_={"item": given.astype(np.float32)})
    context = TermContext(IDS, (Trie.build(IDS.prefix_free),), "vocabulary", tokenizer, 16, seed)  # type: ignore[arg-type]
    return term.bind(context)  # type: ignore[return-value]


def timeline(seed: int = 0) -> TimelineGenerator:
    return random_generator(IDS, seed, kind=TimelineGenerator)  # type: ignore[return-value]


def lesson() -> Lesson:
    return IDS.lesson(PIECES, last=6)


def test_closing_rows_come_after_the_last_token_and_change_nothing_else() -> None:
    network = timeline().network
    plain, closing = network.predict(lesson()), network.predict(lesson(), closing=True)
    torch.testing.assert_close(closing.hidden_ND, plain.hidden_ND)
    assert plain.ends_MD is None
    assert closing.ends_MD is not None
    # The slow twin: read the history, step through the item's tokens, take the last row.
    given = lesson()
    for m, (row, before) in enumerate(zip(given.row_M, given.before_M)):
        history = Ragged.from_rows([PIECES[int(row)][: int(before)]], np.int64)
        state, rows = network.start(IDS.read(history, last=6))
        for token in given.tokens[m]:
            state, rows = network.step(state, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[int(token)]]))
        torch.testing.assert_close(closing.ends_MD[m], rows[0, 0], rtol=1e-4, atol=1e-4)


def test_the_loss_is_what_its_definition_says() -> None:
    term = bound(DenseMatch(hidden=6, dim=4, temperature=0.3))
    network = timeline().network
    given = lesson()
    prepared = term.prepare(given, network)
    predictions = network.predict(given, prepared.inputs_RD, closing=True)
    found = term.loss(Step(given, network, predictions), prepared)
    vectors = term.dense().vectors_NC
    expected = term.network.expected(predictions.ends_MD).detach()
    batch, wanted = {int(i) for i in PIECES.values}, []
    for m, (row, before, item) in enumerate(zip(given.row_M, given.before_M, given.item_M)):
        later = {int(i) for i in PIECES[int(row)][int(before) + 1 :]} - {int(item)}
        scores = {i: float(expected[m] @ vectors[i]) / 0.3 for i in sorted(batch - later)}
        total = np.logaddexp.reduce(list(scores.values()))
        wanted.append(total - scores[int(item)])
    assert float(found.detach()) == pytest.approx(np.mean(wanted), rel=1e-4)


def test_an_item_is_not_expected_from_its_own_vector() -> None:
    vectors = np.random.default_rng(0).normal(size=(len(IDS), 5))
    other = vectors.copy()
    # The last items of their pieces, read by nobody.
    other[[12, 2]] += 3.0
    ends = []
    for given in (vectors, other):
        term = bound(DenseMatch(hidden=6, dim=4), vectors=vectors)
        term._x_NI = given.astype(np.float32)
        network = timeline().network
        prepared = term.prepare(lesson(), network)
        ends.append(network.predict(lesson(), prepared.inputs_RD, closing=True).ends_MD)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)
    other[9] += 3.0
    term._x_NI = other.astype(np.float32)
    prepared = term.prepare(lesson(), network)
    third = network.predict(lesson(), prepared.inputs_RD, closing=True).ends_MD
    assert (third - ends[0]).abs().amax(1).gt(1e-3).tolist() == [i in (5, 6, 7) for i in range(len(third))]


def test_what_is_read_in_training_is_read_in_search() -> None:
    term, network = bound(DenseMatch(hidden=6, dim=4)), timeline().network
    given = lesson()
    inputs = term.prepare(given, network).inputs_RD
    torch.testing.assert_close(term.dense().inputs(given.batch), inputs)
    assert (network.start(given.batch)[1] - network.start(given.batch, inputs)[1]).abs().max() > 1e-3
    assert bound(DenseMatch(reads=False)).dense().inputs(given.batch) is None


def test_all_parts_learn() -> None:
    term, network = bound(DenseMatch(hidden=6, dim=4)), timeline().network
    given = lesson()
    prepared = term.prepare(given, network)
    term.loss(Step(given, network, network.predict(given, prepared.inputs_RD, closing=True)), prepared).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in term.parameters())
    assert network.depth_blocks[0].up.weight.grad.abs().max() > 0


def objective(*terms: object) -> Objective:
    tokenizer = SimpleNamespace(blocks_={"item": np.random.default_rng(0).normal(size=(len(IDS), 5))})
    return Objective(terms, TermContext(IDS, (Trie.build(IDS.prefix_free),), "vocabulary", tokenizer, 16))  # type: ignore[arg-type]


def test_terms_that_are_off_change_nothing() -> None:
    off = objective(NextToken(), DenseMatch(weight=0.0, reads=False))
    plain = objective(NextToken())
    network = timeline().network.train()
    losses = []
    for terms in (off, plain):
        torch.manual_seed(0)
        losses.append(terms.loss(lesson(), network))
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def test_the_next_stretch_goes_on_with_what_was_learnt() -> None:
    first, second = objective(NextToken(), DenseMatch()), objective(NextToken(), DenseMatch())
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1.0)
    second.carry(first.by_name)
    for a, b in zip(first.state_dict().values(), second.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_vectors_are_a_snapshot_and_grow() -> None:
    term = bound(DenseMatch(hidden=6, dim=4))
    before = term.dense()
    kept = before.vectors_NC.clone()
    with torch.no_grad():
        for parameter in term.parameters():
            parameter.mul_(-2.0)
    torch.testing.assert_close(before.vectors_NC, kept, rtol=0, atol=0)
    torch.testing.assert_close(DenseItems.of(before.network, term._x_NI).vectors_NC, kept, rtol=0, atol=0)
    assert (term.dense().vectors_NC - kept).abs().max() > 1e-2
    torch.testing.assert_close(kept.norm(dim=1), torch.ones(len(IDS)))
    grown = before.extended(term._x_NI[:3])
    torch.testing.assert_close(grown.vectors_NC, torch.cat([kept, kept[:3]]))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="item vectors 'text', which the recipe's encoder does not give"):
        bound(DenseMatch(block="text"))
    network = random_generator(IDS, kind=TransformerGenerator).network
    with pytest.raises(ConfigError, match="no row after an item's last token"):
        objective(DenseMatch()).loss(lesson(), network)
