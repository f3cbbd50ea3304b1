"""Reassigned last codes: who moves, to where, at what cost, and what stays when items are added."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ragged_codes

from capsid.base.vocabulary import Vocabulary
from capsid.errors import ConfigError, DataError
from capsid.ids import collisions as reassign
from capsid.ids.collisions import Reassign, Settled, balanced_last_codes, cheapest_last_codes
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

SIZE = 3
SIZES = (SIZE,) * 3
CODES = ragged_codes(depths=3, size=SIZE, most=14, absent=True)
SEEDS = st.integers(0, 10_000)


class Table:
    """Costs of last codes by row, and which rows were asked for."""

    def __init__(self, seed: int, rows: int) -> None:
        self.costs = np.random.default_rng(seed).integers(0, 8, size=(rows, SIZE)).astype(np.float64)
        self.asked: list[int] = []

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.asked += rows.tolist()
        return self.costs[rows]


def tuples(codes: Ragged) -> list[tuple[int, ...]]:
    return [tuple(row.tolist()) for row in codes]


def moving(codes: list[tuple[int, ...]], fixed: int = 0) -> set[int]:
    count = Counter(codes)
    return {i for i, row in enumerate(codes) if count[row] > 1 and i >= fixed}


def available(codes: list[tuple[int, ...]], prefix: tuple[int, ...], movers: set[int]) -> list[int]:
    """Codes under a prefix that end no id of others and that no longer id goes through, and those that movers have."""
    n = len(prefix)
    below = [(i, row) for i, row in enumerate(codes) if row[:n] == prefix and len(row) > n]
    held = {row[n] for i, row in below if len(row) == n + 1 and i not in movers}
    passed = {row[n] for _, row in below if len(row) > n + 1}
    own = {codes[i][n] for i in movers if codes[i][:n] == prefix and len(codes[i]) == n + 1}
    return [c for c in range(SIZE) if c not in held and (c not in passed or c in own)]


def least(costs: np.ndarray, columns: list[int]) -> float:
    rows = len(costs)
    if rows <= len(columns):
        return min(sum(costs[i, c] for i, c in enumerate(p)) for p in itertools.permutations(columns, rows))
    return min(sum(costs[i, c] for i, c in zip(p, columns)) for p in itertools.permutations(range(rows), len(columns)))


@given(codes=CODES, seed=SEEDS, fixed=st.integers(0, 6))
def test_who_moves_where_and_at_what_cost(codes: list[list[int]], seed: int, fixed: int) -> None:
    before = [tuple(row) for row in codes]
    fixed = min(fixed, len(codes))
    table = Table(seed, len(codes) - fixed)
    after = tuples(cheapest_last_codes(Ragged.from_rows(codes), SIZES, table, fixed=fixed))
    movers = moving(before, fixed)
    assert sorted(table.asked) == sorted(i - fixed for i in movers), "each colliding row is asked about once"
    for i, (old, new) in enumerate(zip(before, after)):
        assert (len(new), new[:-1]) == (len(old), old[:-1])
        assert new == old or i in movers, "whoever is alone or settled keeps every code"
    groups = {before[i][:-1] for i in movers}
    for prefix in groups:
        rows = sorted(i for i in movers if before[i][:-1] == prefix)
        columns = available(before, prefix, movers)
        placed = [i for i in rows if after[i][-1] in columns]
        # Whoever found no code keeps its own; a code of a mover may be free, then one of them has it by right.
        used = Counter(after[i][-1] for i in rows)
        assert set(columns) <= set(used) or len(rows) <= len(columns)
        if len(rows) <= len(columns):
            assert len(used) == len(rows) == len(placed)
            assert sum(table.costs[i - fixed, after[i][-1]] for i in rows) == least(
                table.costs[[i - fixed for i in rows]], columns
            )


@given(codes=CODES, seed=SEEDS)
def test_no_collision_where_a_prefix_has_at_most_as_many_items_as_codes(codes: list[list[int]], seed: int) -> None:
    after = tuples(cheapest_last_codes(Ragged.from_rows(codes), SIZES, Table(seed, len(codes))))
    for row in after:
        below = sum(other[: len(row) - 1] == row[:-1] and len(other) >= len(row) for other in after)
        assert below > SIZE or after.count(row) == 1


@given(codes=CODES, seed=SEEDS)
def test_portions_change_nothing(codes: list[list[int]], seed: int) -> None:
    rows = Ragged.from_rows(codes)
    whole = cheapest_last_codes(rows, SIZES, Table(seed, len(codes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reassign, "ROWS_AT_ONCE", 1)
        assert cheapest_last_codes(rows, SIZES, Table(seed, len(codes))) == whole


def test_overflow_shares_buckets_and_the_rest_is_cheapest() -> None:
    costs = np.array([[0.0, 5, 5], [0, 1, 5], [0, 5, 2], [0, 9, 9], [0, 9, 9]])
    codes = Ragged.from_rows([[1, 0]] * 5)
    assert tuples(cheapest_last_codes(codes, SIZES, lambda rows: costs[rows])) == [
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 0),
        (1, 0),
    ]


@given(old=CODES, new=CODES, seed=SEEDS)
def test_the_policy_is_asked_again_for_new_items(old: list[list[int]], new: list[list[int]], seed: int) -> None:
    policy, first, later = Reassign(), Table(seed, len(old)), Table(seed + 1, len(new))
    items = Vocabulary(f"a{i}" for i in range(len(old)))
    ids = SemanticIds.assign(items, Ragged.from_rows(old), SIZES, policy, first)
    grown = ids.extend([f"b{i}" for i in range(len(new))], Ragged.from_rows(new), policy, later)
    assert all(grown[item] == ids[item] for item in ids.items)
    assert grown.encoded == Ragged.from_rows(old + new)
    settled = policy.settle(Ragged.from_rows(new), SIZES, old=Settled(ids.codes), costs=later).codes
    assert tuples(grown.codes) == tuples(ids.codes) + tuples(settled)
    known = set(tuples(ids.codes))
    for before, after in zip(new, tuples(settled)):
        if tuple(before) not in known and new.count(before) == 1:
            assert after == tuple(before)
    new_rows = grown.prefix_free.take(np.arange(len(old), len(grown)))
    assert Trie.build(ids.prefix_free).extend(new_rows).rows() == grown.prefix_free


def test_rates_before_and_after_and_in_files(tmp_path: Path) -> None:
    rows = Ragged.from_rows([[0, 0], [0, 0], [0, 1], [1, 2]])
    ids = SemanticIds.assign(Vocabulary("abcd"), rows, SIZES, Reassign(), Table(0, 4))
    found = ids.statistics()
    assert (found.collision_rate, found.collision_rate_final, found.largest_bucket) == (0.25, 0.0, 1)
    assert sorted(tuples(ids.codes)) == [(0, 0), (0, 1), (0, 2), (1, 2)]
    ids.save(tmp_path)
    loaded = SemanticIds.load(tmp_path)
    assert loaded == ids
    assert (loaded.codes, loaded.encoded) == (ids.codes, rows)
    assert loaded.statistics() == found
    alone = SemanticIds.assign(Vocabulary("ab"), Ragged.from_rows([[0, 0], [0, 1]]), SIZES, Reassign(), Table(0, 2))
    assert alone.unsettled is None


def test_what_it_cannot_do() -> None:
    twins = Ragged.from_rows([[0], [0]])
    with pytest.raises(ConfigError, match="needs a tokenizer with costs of last codes"):
        Reassign().settle(twins, SIZES)
    with pytest.raises(DataError, match=r"must be finite and of shape \(2, 3\)"):
        Reassign().settle(twins, SIZES, costs=lambda rows: np.zeros((len(rows), 2)))
    with pytest.raises(DataError, match="must be finite"):
        Reassign().settle(twins, SIZES, costs=lambda rows: np.full((len(rows), SIZE), np.inf))
    with pytest.raises(ConfigError, match="how must be one of cheapest, sinkhorn, got 'dearest'"):
        Reassign(how="dearest")  # type: ignore[arg-type]


def test_a_moved_id_is_no_prefix_of_another_but_one_that_is_may_stay() -> None:
    costs = np.array([[0.0, 1, 5], [0, 1, 5], [9, 9, 9]])
    inner = Ragged.from_rows([[0, 0], [0, 0], [0, 1, 2]])
    assert sorted(tuples(cheapest_last_codes(inner, SIZES, lambda rows: costs[rows]))[:2]) == [(0, 0), (0, 2)]
    own = Ragged.from_rows([[0, 0], [0, 0], [0, 0, 2]])
    assert sorted(tuples(cheapest_last_codes(own, SIZES, lambda rows: costs[rows]))[:2]) == [(0, 0), (0, 1)]


# --- balanced by Sinkhorn ---

SINKHORN = Reassign(how="sinkhorn")


def balanced(codes: list[list[int]], costs: np.ndarray, rounds: int = 20) -> list[tuple[int, ...]]:
    return tuples(balanced_last_codes(Ragged.from_rows(codes), SIZES, lambda rows: costs[rows], rounds=rounds))


@given(codes=CODES, seed=SEEDS, rounds=st.integers(1, 20))
def test_balancing_moves_last_codes_of_colliding_rows_only(codes: list[list[int]], seed: int, rounds: int) -> None:
    before = [tuple(row) for row in codes]
    costs = np.random.default_rng(seed).uniform(size=(len(codes), SIZE))
    after = balanced(codes, costs, rounds)
    assert [(len(r), r[:-1]) for r in after] == [(len(r), r[:-1]) for r in before]
    # Whoever is alone under a prefix can neither collide nor be run into.
    for old, new in zip(before, after):
        if sum(len(o) == len(old) and o[:-1] == old[:-1] for o in before) == 1:
            assert new == old
    if not moving(before):
        assert after == before
    one = balanced(codes, costs, 1)
    assert all(new == old for i, (old, new) in enumerate(zip(before, one)) if i not in moving(before))


@given(codes=CODES, seed=SEEDS)
def test_portions_do_not_change_balanced_codes(codes: list[list[int]], seed: int) -> None:
    costs = np.random.default_rng(seed).uniform(size=(len(codes), SIZE))
    whole = balanced(codes, costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reassign, "ROWS_AT_ONCE", 1)
        assert balanced(codes, costs) == whole


def test_near_twins_part_and_twins_share_to_the_end() -> None:
    costs = np.array([[0.0, 1, 2], [0, 0.999, 2.001], [0, 1, 2], [5, 0, 5]])
    assert len(set(balanced([[1, 0], [1, 0]], costs[:2]))) == 2
    assert len(set(balanced([[1, 0], [1, 0]], costs[[0, 2]]))) == 1
    rounded = costs[[0, 2]] + [[0, 0, 0], [1e-7, 0, -1e-7]]
    assert len(set(balanced([[1, 0], [1, 0]], rounded))) == 1, "rounding tells nobody apart"


def test_a_moved_row_that_runs_into_another_is_moved_again() -> None:
    """The first round sends a row to the code of an outsider, who then takes part in the second."""
    costs = np.array([[0.0, 1, 9], [0, 0.9, 9], [0.1, 0, 0.2]])
    codes = [[1, 0], [1, 0], [1, 1]]
    assert len(set(balanced(codes, costs, rounds=1))) == 2
    assert len(set(balanced(codes, costs))) == 3


def test_the_policy_balances_a_catalogue_and_takes_the_cheapest_for_whoever_comes_later() -> None:
    costs = np.array([[0.0, 1, 2], [0, 0.9, 2.1]])
    twins = Ragged.from_rows([[1, 0], [1, 0]])
    settled = SINKHORN.settle(twins, SIZES, costs=lambda rows: costs[rows])
    assert tuples(settled.codes) == balanced([[1, 0], [1, 0]], costs)
    alone = Ragged.from_rows([[1, 0]])
    later = SINKHORN.settle(alone, SIZES, old=Settled(alone), costs=lambda rows: costs[rows])
    assert tuples(later.codes) == [(1, 1)], "the cheapest code that nobody has"
    with pytest.raises(ConfigError, match="needs a tokenizer with costs"):
        SINKHORN.settle(twins, SIZES)
    with pytest.raises(DataError, match=r"must be finite and of shape \(2, 3\)"):
        SINKHORN.settle(twins, SIZES, costs=lambda rows: np.zeros((len(rows), 2)))
