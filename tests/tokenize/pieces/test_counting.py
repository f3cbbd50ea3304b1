"""Exact counts: after every merge they equal a new count of all sequences, with plain lists and fractions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.ragged import Ragged
from capsid.tokenize.rivals.actionpiece import Chains, Counts

FIRST = 20
Chain = list[set[int]]


def counted(chains: list[Chain]) -> dict[tuple[int, int], Fraction]:
    """2 / n for two tokens of a node, 1 / (n m) for tokens of neighbouring nodes."""
    out: dict[tuple[int, int], Fraction] = {}
    for chain in chains:
        for node in chain:
            for one, other in combinations(sorted(node), 2):
                out[one, other] = out.get((one, other), Fraction(0)) + Fraction(2, len(node))
        for left, right in pairwise(chain):
            for one in left:
                for other in right:
                    pair = (min(one, other), max(one, other))
                    out[pair] = out.get(pair, Fraction(0)) + Fraction(1, len(left) * len(right))
    return out


def merged(chain: Chain, pair: tuple[int, int], token: int) -> Chain:
    """Inside nodes first, then between neighbours from left to right."""
    a, b = pair
    chain = [(node - {a, b}) | {token} if a != b and {a, b} <= node else node for node in chain]
    at = 0
    while at + 1 < len(chain):
        left, right = chain[at], chain[at + 1]
        for one, other in ((a, b), (b, a)):
            if one in left and other in right:
                middle = [left - {one}, {token}, right - {other}]
                chain = [*chain[:at], *middle, *chain[at + 2 :]]
                at += 1
                break
        at += 1
    return [node for node in chain if node]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Ragged, Ragged]:
    """Items of two to four tokens out of nine, which keep to their depth, and short sequences of them."""
    depths = draw(st.integers(2, 4))
    codes = draw(st.lists(st.lists(st.integers(0, 2), min_size=depths, max_size=depths), min_size=2, max_size=5))
    tokens = [[2 + 3 * depth + code for depth, code in enumerate(row)] for row in codes]
    rows = draw(st.lists(st.lists(st.integers(0, len(codes) - 1), max_size=6), min_size=1, max_size=4))
    return Ragged.from_rows(tokens), Ragged.from_rows(rows, np.int64)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_counts_equal_a_new_count_after_every_merge(world: tuple[Ragged, Ragged]) -> None:
    tokens, sequences = world
    chains = Chains(tokens, sequences, FIRST, 25)
    counts = Counts(chains)
    plain = [[set(tokens[item].tolist()) for item in row] for row in sequences]
    for token in range(FIRST, FIRST + 25):
        wanted = counted(plain)
        assert {chains.pair(k): Fraction(w, chains.unit) for k, w in counts.weights.items()} == wanted
        learnt = counts.merge_heaviest(token, least=0.01)
        if not wanted:
            assert learnt is None
            break
        assert learnt is not None
        heaviest = max(wanted.values())
        pair, weight = learnt
        assert pair == min(pair for pair, weight in wanted.items() if weight == heaviest)
        assert weight == float(heaviest)
        plain = [merged(chain, pair, token) for chain in plain]


def test_weights_of_one_item_and_of_two() -> None:
    """The paper's example: each of the 10 pairs of 5 tokens weighs 2 / 5, each of the 25 between two items 1 / 25."""
    items = Ragged.from_rows([[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]])
    chains = Chains(items, Ragged.from_rows([[0, 1]], np.int64), FIRST, 5)
    weights = {chains.pair(k): w / chains.unit for k, w in Counts(chains).weights.items()}
    assert Counter(weights.values()) == {0.4: 20, 0.04: 25}
    assert weights[2, 6] == 0.4
    assert weights[6, 7] == 0.04


def test_the_first_merges_of_a_world_worked_out_by_hand() -> None:
    """Three users took item 0 = {2, 4} and then item 1 = {3, 5}; one took item 2 = {2, 5}.

    At first (2, 4) and (3, 5) weigh 3 (3 times 2 / 2), (2, 5) weighs 1 + 3 / 4, other pairs between items 3 / 4. So
    (2, 4) becomes 20. Now the nodes are {20} and {3, 5}: (3, 5) still weighs 3 and (20, 3), (20, 5) weigh 3 / 2. Then
    (3, 5) becomes 21, the nodes {20} and {21} are left, and (20, 21) weighs 3. Last is (2, 5) of weight 1.
    """
    items = Ragged.from_rows([[2, 4], [3, 5], [2, 5]])
    counts = Counts(Chains(items, Ragged.from_rows([[0, 1], [0, 1], [0, 1], [2]], np.int64), 20, 9))
    learnt = [counts.merge_heaviest(20 + n, least=1.0) for n in range(5)]
    assert learnt == [((2, 4), 3.0), ((3, 5), 3.0), ((20, 21), 3.0), ((2, 5), 1.0), None]


def test_a_token_across_two_items_stands_between_them() -> None:
    """{2, 4} and {3, 5} with (4, 5) merged: {2}, {20}, {3}, where 2 and 3 are no longer neighbours."""
    items = Ragged.from_rows([[2, 4], [3, 5]])
    chains = Chains(items, Ragged.from_rows([[0, 1]], np.int64), 20, 9)
    chains.merge(int(chains.key(np.array(4), np.array(5))), 20)
    found = chains.weights()
    assert {chains.pair(int(k)): w / chains.unit for k, w in zip(*found)} == {
        (2, 20): 1.0,
        (3, 20): 1.0,
    }


def test_nothing_to_merge() -> None:
    for rows in ([], [[]], [[0]]):
        counts = Counts(Chains(Ragged.from_rows([[2]]), Ragged.from_rows(rows, np.int64), 20, 3))
        assert counts.merge_heaviest(20, least=0.5) is None
