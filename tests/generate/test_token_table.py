"""Merged tokens made of their members, and scores by cosine: against loops, and every way to run against plain rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from worlds import (
    GENERATORS,
    MakeGenerator,
    first_scores,
    loss_of,
    make_ids,
    random_codes,
    random_generator,
    random_histories,
)

from capsid.errors import ConfigError
from capsid.generate.generator import TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.shape import TokenTable
from capsid.ids.merges import MergeTable

PLAIN = make_ids(random_codes(3, items=15, sizes=(4, 3, 3), variable=True), (4, 3, 3))
FIRST = PLAIN.layout.plain.vocabulary
HISTORIES = random_histories(1, len(PLAIN), [1, 4, 6, 2, 9])
KINDS = pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)


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
def test_the_table_is_own_rows_and_those_of_the_parts(kind: MakeGenerator) -> None:
    assert [len(m) for m in IDS.layout.merges.members] == [2, 2, 2, 2, 3]
    generator = random_generator(IDS, 1, kind=kind)
    token = generator.network.token
    torch.nn.init.normal_(token.weight, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(token.vectors().enter_VD, slow_table(generator))
    weights = torch.randn(token.weight.shape, generator=torch.Generator().manual_seed(1))
    slopes = [
        torch.autograd.grad((t * weights).sum(), token.weight)[0]
        for t in (token.vectors().enter_VD, slow_table(generator))
    ]
    torch.testing.assert_close(*slopes)


@KINDS
def test_everything_runs_as_with_these_rows_for_embeddings(kind: MakeGenerator) -> None:
    """Twin: a network that knows of no members and has the finished table for its embeddings."""
    composed, twin = random_generator(IDS, 2, kind=kind), random_generator(IDS, 2, kind=kind, compose=False)
    state = composed.state()
    state["token.weight"] = composed.network.token.vectors().enter_VD.detach()
    twin.load_state(IDS, state)
    assert torch.equal(twin.network.token.vectors().enter_VD, twin.network.token.weight)
    batch = IDS.read(HISTORIES, last=6)
    lesson = IDS.lesson(HISTORIES, last=6)
    losses = [loss_of(NextToken(), IDS, g, lesson) for g in (composed, twin)]
    torch.testing.assert_close(*losses)
    (a, first), (b, again) = composed.start(batch), twin.start(batch)
    torch.testing.assert_close(first, again)
    parents = torch.zeros(len(HISTORIES), 2, dtype=torch.long)
    tokens = torch.tensor([[FIRST, 2]]).expand(len(HISTORIES), 2)
    torch.testing.assert_close(composed.step(a, parents, tokens)[1], twin.step(b, parents, tokens)[1])
    assert (first - random_generator(IDS, 2, kind=kind, compose=False).start(batch)[1]).abs().max() > 1e-3


@KINDS
@pytest.mark.parametrize("warm", [False, True])
def test_a_fresh_subword_is_its_parts_as_warm_started_tokens_are(kind: MakeGenerator, warm: bool) -> None:
    vectors = np.random.default_rng(0).normal(size=(IDS.layout.vocabulary, 8)).astype(np.float32)
    vectors[:1] = np.nan
    made = kind(layers=1, heads=2, width=8, feedforward=12, warm_start=warm)
    network = made.build(IDS, np.ones(len(IDS)), seed=0, vectors=vectors).network
    assert not network.token.weight[FIRST:].any()
    given, table = torch.from_numpy(vectors[1:FIRST]), network.token.vectors().enter_VD.detach()
    assert torch.allclose(table[1:FIRST] / table[1:FIRST].norm(), given / given.norm()) == warm
    members = IDS.layout.merges.members[4]
    torch.testing.assert_close(table[FIRST + 4], table[torch.from_numpy(members.astype(np.int64))].sum(0) / 3**0.5)


def test_without_merges_and_temperature_the_rows_are_the_vectors() -> None:
    token = random_generator(PLAIN, 0).network.token
    assert token.vectors().enter_VD is token.weight
    assert token.vectors().score_VS is token.weight


@KINDS
def test_scores_are_cosines_over_the_temperature(kind: MakeGenerator) -> None:
    generator = random_generator(IDS, 3, kind=kind, cosine_temperature=0.07)
    if kind is not TransformerGenerator:
        generator.network.repeats.start()
    batch = IDS.read(HISTORIES, last=6)
    found = generator.network.predict(IDS.lesson(HISTORIES, last=6))
    with torch.no_grad():
        generator.network.norm.weight.fill_(1.0)
        if hasattr(generator.network.norm, "bias"):
            generator.network.norm.bias.zero_()
        hidden = generator.network.norm(found.hidden_ND)
        cosine = F.cosine_similarity(hidden[:, None], slow_table(generator)[None], dim=-1)
        torch.testing.assert_close(
            loss_of(NextToken(), IDS, generator, IDS.lesson(HISTORIES, last=6)),
            F.cross_entropy(cosine / 0.07, found.targets_N),
            rtol=1e-3,
            atol=1e-3,
        )
        _, logits = first_scores(generator, batch)
        again = found.scores_NV
    torch.testing.assert_close(again, cosine / 0.07, rtol=1e-3, atol=1e-3)
    assert float(logits.abs().max()) <= 1 / 0.07 + 1e-3


def test_a_longer_row_scores_no_higher_by_cosine() -> None:
    token = TokenTable(5, 4, temperature=0.1)
    before = token.vectors().score_VS.detach().clone()
    with torch.no_grad():
        token.weight[3] *= 10
    torch.testing.assert_close(token.vectors().score_VS, before)


def test_a_temperature_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="cosine_temperature"):
        TransformerGenerator(cosine_temperature=-0.1)
