"""Accuracy by position: a slow count by hand, merged ids measured like plain ones, a model that knows the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids, ragged_codes, random_codes, random_generator, random_histories, reader_of

from capsid.data.split import Cases
from capsid.evaluate.evaluator import code_ranks, position_accuracy
from capsid.ids.merges import MergeTable
from capsid.ragged import Ragged


def slow_rank(scores: list[float], codes: list[list[int]], target: int, depth: int) -> tuple[int, int]:
    """Add up the probability of every item that continues the target's codes."""
    mass: dict[int, float] = {}
    for score, row in zip(scores, codes):
        if len(row) > depth and row[depth] >= 0 and row[:depth] == codes[target][:depth]:
            mass[row[depth]] = mass.get(row[depth], 0.0) + math.exp(score)
    own = mass[codes[target][depth]]
    return 1 + sum(m > own * (1 + 1e-12) for m in mass.values()), len(mass)


@given(codes=ragged_codes(absent=True), data=st.data())
def test_ranks_are_what_counting_gives(codes: list[list[int]], data: st.DataObject) -> None:
    users = data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    scores = rng.normal(scale=3, size=(users, len(codes)))
    targets = rng.integers(0, len(codes), users)
    ranks, choices = code_ranks(scores, Ragged.from_rows(codes), targets)
    for user, target in enumerate(targets):
        for depth in range(ranks.shape[1]):
            if depth >= len(codes[target]) or codes[target][depth] < 0:
                assert ranks[user, depth] == 0
                continue
            expected = slow_rank(scores[user].tolist(), codes, target, depth)
            assert (ranks[user, depth], choices[user, depth]) == expected


def test_merged_ids_are_measured_on_their_codes() -> None:
    rows = random_codes(5, items=12, sizes=(3, 3, 3), variable=True)
    plain = make_ids(rows, (3, 3, 3))
    first = plain.layout.vocabulary
    pair = next(tuple(int(t) for t in row[:2]) for row in plain.tokens if len(row) > 1)
    merged = plain.with_merges(MergeTable.of(first, [pair[0]], [pair[1]], [0.9], [1]))
    assert merged.tokens != plain.tokens
    for ids in (plain, merged):
        histories = random_histories(1, len(ids), [3, 4, 2, 5, 3])
        cases = Cases(np.arange(5), histories, np.array([0, 3, 5, 7, 11]))
        reader = reader_of(random_generator(ids, 2), ids)
        found = position_accuracy(reader, cases, users=5)
        lengths = ids.codes.lengths[cases.targets]
        assert found.users == tuple(int((lengths > d).sum()) for d in range(max(lengths)))
        assert all(a <= b <= 1 for a, b in zip(found.top1, found.top5))
        assert all(1 <= c <= 3 for c in found.choices)


def test_a_model_that_knows_is_always_right() -> None:
    codes = Ragged.from_rows([[0, 1], [0, 2], [1], [2, 0, 0], [2, 0, 1]])
    targets = np.arange(5)
    scores = np.full((5, 5), -9.0)
    scores[targets, targets] = -0.01
    ranks, _ = code_ranks(scores, codes, targets)
    assert ranks.tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    wrong, _ = code_ranks(scores[::-1], codes, targets)
    assert wrong[0].tolist() == [2, 1, 0], "the last item is thought likely: its first code is before ours"
    assert pytest.approx(float((wrong[:, 0] == 1).mean())) == 0.2
