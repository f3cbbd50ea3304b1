"""Merged tokens that are made of their parts: the table against a loop, every way to run against plain embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import make_ids, random_codes, random_generator, random_histories

from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.objective import NextToken
from capsid.ids.flatten import flatten
from capsid.ids.merges import MergeTable

PLAIN = make_ids(random_codes(3, items=15, sizes=(4, 3, 3), variable=True), (4, 3, 3))
FIRST = PLAIN.layout.plain.vocabulary
HISTORIES = random_histories(1, len(PLAIN), [1, 4, 6, 2, 9])
KINDS = pytest.mark.parametrize("kind", [TransformerGenerator, TimelineGenerator])


def merged_ids():
    """Some pairs of the ids, and in a second pass one of them with what follows it."""
    pairs = sorted({(int(row[0]), int(row[1])) for row in PLAIN.tokens if len(row) > 1})[:4]
    once = MergeTable.of(FIRST, *zip(*pairs), [0.9] * 4, [1] * 4)
    (*_, left), right = next(
        (row[:1].tolist(), int(row[1])) for row in PLAIN.with_merges(once).tokens if row[0] >= FIRST and len(row) > 1
    )
    columns = zip(*pairs, (left, right))
    return PLAIN.with_merges(MergeTable.of(FIRST, *columns, [0.9] * 4 + [0.8], [1] * 4 + [2]))


IDS = merged_ids()


def slow_table(generator: TransformerGenerator) -> Tensor:
    rows = list(generator.network.token.weight)
    for number, members in enumerate(IDS.layout.merges.members):
        rows[FIRST + number] = rows[FIRST + number] + sum(rows[int(t)] for t in members) / len(members) ** 0.5
    return torch.stack(rows)


@KINDS
def test_the_table_is_own_rows_and_those_of_the_parts(kind: type[TransformerGenerator]) -> None:
    assert [len(m) for m in IDS.layout.merges.members] == [2, 2, 2, 2, 3]
    network = random_generator(IDS, 1, kind=kind).network
    torch.testing.assert_close(network.table(), slow_table(random_generator(IDS, 1, kind=kind)))
    weights = torch.randn(IDS.layout.vocabulary, network.shape.width)
    (network.table() * weights).sum().backward()
    slow = random_generator(IDS, 1, kind=kind)
    (slow_table(slow) * weights).sum().backward()
    torch.testing.assert_close(network.token.weight.grad, slow.network.token.weight.grad)


@KINDS
def test_everything_runs_as_with_these_rows_for_embeddings(kind: type[TransformerGenerator]) -> None:
    """Twin: a network that knows of no parts and has the finished table for its embeddings."""
    composed, twin = random_generator(IDS, 2, kind=kind), random_generator(IDS, 2, kind=kind, compose=False)
    state = composed.state()
    state["token.weight"] = composed.network.table().detach()
    twin.load_state(IDS.layout, state)
    assert torch.equal(twin.network.table(), twin.network.token.weight)
    batch = flatten(IDS, HISTORIES, last=6)
    losses = [NextToken().loss(g.network, g.network.predict(batch)) for g in (composed, twin)]
    torch.testing.assert_close(*losses)
    (a, first), (b, again) = composed.start(batch), twin.start(batch)
    torch.testing.assert_close(first, again)
    parents = torch.zeros(len(HISTORIES), 2, dtype=torch.long)
    tokens = torch.tensor([[FIRST, 2]]).expand(len(HISTORIES), 2)
    torch.testing.assert_close(composed.step(a, parents, tokens)[1], twin.step(b, parents, tokens)[1])
    assert (first - random_generator(IDS, 2, kind=kind, compose=False).start(batch)[1]).abs().max() > 1e-3


@KINDS
@pytest.mark.parametrize("warm", [False, True])
def test_a_fresh_subword_is_its_parts_as_warm_started_tokens_are(kind: type[TransformerGenerator], warm: bool) -> None:
    vectors = np.random.default_rng(0).normal(size=(IDS.layout.vocabulary, 8)).astype(np.float32)
    vectors[:1] = np.nan
    made = kind(layers=1, heads=2, width=8, feedforward=12, warm_start=warm)
    network = made.build(IDS, np.ones(len(IDS)), seed=0, vectors=vectors).network
    assert not network.token.weight[FIRST:].any()
    given, table = torch.from_numpy(vectors[1:FIRST]), network.table().detach()
    assert torch.allclose(table[1:FIRST] / table[1:FIRST].norm(), given / given.norm()) == warm
    members = IDS.layout.merges.members[4]
    torch.testing.assert_close(table[FIRST + 4], table[torch.from_numpy(members.astype(np.int64))].sum(0) / 3**0.5)


def test_ids_without_merges_are_composed_of_nothing() -> None:
    network = random_generator(PLAIN, 0).network
    assert network.table() is network.token.weight
