"""Merges of unordered tokens: segmentation against a slow twin, undoing, ids of items."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import make_ids, pieces_of

from capsid.errors import ArtifactError, ConfigError, DataError
from capsid.ids.collisions import Hashed
from capsid.ids.merges import MergeTable, PieceTable
from capsid.ids.reading import InContext
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged

FIRST = 8


@st.composite
def tables(draw: st.DrawFn) -> PieceTable:
    """Merges of tokens 2 to 7, and of tokens that earlier merges made."""
    pairs: list[tuple[int, int]] = []
    for number in range(draw(st.integers(0, 8))):
        one, other = (draw(st.integers(2, FIRST + number - 1)) for _ in range(2))
        pair = (min(one, other), max(one, other))
        if pair not in pairs:
            pairs.append(pair)
        else:
            break
    return PieceTable.of_pairs(FIRST, pairs, [1.0] * len(pairs))


def slow_segment(table: PieceTable, row: list[int]) -> list[int]:
    """One merge after the other over the whole row, from left to right."""
    for number, pair in enumerate(zip(table.left, table.right)):
        at = 0
        while at + 1 < len(row):
            if (min(row[at : at + 2]), max(row[at : at + 2])) == pair:
                row = [*row[:at], FIRST + number, *row[at + 2 :]]
            at += 1
    return row


def slow_apply(table: PieceTable, row: list[int]) -> list[int]:
    for number, pair in enumerate(zip(table.left, table.right)):
        for one, other in combinations(range(len(row)), 2):
            if (min(row[one], row[other]), max(row[one], row[other])) == pair:
                row = [t for n, t in enumerate(row) if n not in (one, other)] + [FIRST + number]
                break
    return sorted(row, key=lambda t: t if t < FIRST else min(table.members[t - FIRST]))


PAIRS = st.tuples(st.integers(2, 21), st.integers(2, 21)).map(lambda pair: (min(pair), max(pair)))
ROWS = st.lists(st.lists(st.integers(2, FIRST - 1), max_size=12), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(tables(), ROWS)
def test_segmenting_equals_one_merge_after_the_other(table: PieceTable, rows: list[list[int]]) -> None:
    tokens = Ragged.from_rows(rows)
    found = table.segment(tokens)
    assert [row.tolist() for row in found] == [slow_segment(table, row) for row in rows]
    undone = table.undo(found)
    assert [sorted(row.tolist()) for row in undone] == [sorted(row) for row in rows]


@settings(max_examples=80, deadline=None)
@given(tables(), st.lists(st.sets(st.integers(2, FIRST - 1), min_size=1, max_size=6), min_size=1, max_size=8))
def test_tokens_of_items_equal_the_slow_twin(table: PieceTable, sets: list[set[int]]) -> None:
    rows = [sorted(row) for row in sets]
    found = table.apply(Ragged.from_rows(rows))
    assert [row.tolist() for row in found] == [slow_apply(table, row) for row in rows]
    assert [sorted(row.tolist()) for row in table.undo(found)] == rows


@settings(max_examples=40, deadline=None)
@given(tables(), ROWS, ROWS)
def test_rows_do_not_depend_on_each_other(table: PieceTable, rows: list[list[int]], more: list[list[int]]) -> None:
    alone = table.segment(Ragged.from_rows(rows))
    together = table.segment(Ragged.from_rows([*more, *rows]))
    assert together.take(np.arange(len(more), len(more) + len(rows))) == alone


def test_overlapping_pairs_are_merged_from_the_left() -> None:
    table = PieceTable.of_pairs(FIRST, [(2, 2), (2, 3)], [1.0, 1.0])
    assert table.segment(Ragged.from_rows([[2, 2, 2], [3, 2, 3], [2, 2, 2, 2]])).values.tolist() == [8, 2, 9, 3, 8, 8]


def test_a_later_merge_waits_for_an_earlier_one_further_left() -> None:
    """The pair (4, 5) is best among its neighbours, but (8, 4) comes first once (2, 3) is merged."""
    table = PieceTable.of_pairs(FIRST, [(2, 3), (4, 8), (4, 5)], [1.0, 1.0, 1.0])
    assert table.segment(Ragged.from_rows([[2, 3, 4, 5]])).values.tolist() == [9, 5]


@pytest.mark.parametrize(
    ("pairs", "number", "words"),
    [([(3, 2)], (1,), "smaller"), ([(2, 3), (4, 5)], (1, 1), "pass of its own"), ([(2, 9)], (1,), "no earlier")],
)
def test_tables_that_cannot_be_right(pairs: list[tuple[int, int]], number: tuple[int, ...], words: str) -> None:
    left, right = zip(*pairs)
    with pytest.raises(DataError, match=words):
        PieceTable(FIRST, left, right, (1.0,) * len(left), number)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=8),
    st.lists(
        st.tuples(st.integers(2, 21), st.integers(2, 21)).map(lambda p: (min(p), max(p))), max_size=6, unique=True
    ),
)
def test_ids_are_unique_and_give_their_codes_back(codes: list[list[int]], pairs: list[tuple[int, int]]) -> None:
    ids = pieces_of(codes, pairs)
    assert len({tuple(row) for row in ids.tokens}) == len(codes)
    assert [row.tolist() for row in ids.layout.codes(ids.tokens)] == codes
    assert ids.prefix_free == ids.tokens, "every id covers all depths, so none is a prefix of another"


def test_without_merges_ids_are_plain() -> None:
    codes = [[0, 1, 2], [3, 3, 3]]
    assert pieces_of(codes, []).tokens == make_ids(codes, (4, 4, 4), Hashed(capacity=8)).tokens


def test_a_token_of_two_items_names_all_its_codes() -> None:
    layout = pieces_of([[0, 1, 2]], [(2, 3), (7, 22)]).layout
    assert layout.codes_of(22) == (0, 1)
    assert layout.codes_of(23) == (0, 1, 1)
    assert layout.depth_of[22:].tolist() == [0, 0]


def test_ids_are_stored_with_their_table(tmp_path: Path) -> None:
    folder = tmp_path
    for pairs in ([(2, 7), (11, 22)], []):
        ids = pieces_of([[0, 1, 2], [3, 3, 3]], pairs).with_reading(InContext(permute=False))
        ids.save(folder)
        again = SemanticIds.load(folder)
        assert again == ids
        assert type(again.layout.merges) is PieceTable
        assert again.reading == ids.reading
    (folder / "ids.json").write_text((folder / "ids.json").read_text().replace('"any-order"', '"other"'))
    with pytest.raises(ArtifactError, match="merges must be one of neighbours, any-order, got 'other'"):
        SemanticIds.load(folder)


def test_neighbours_in_order_cannot_be_read_in_context() -> None:
    ids = make_ids([[0, 1, 2]], (4, 4, 4)).with_merges(MergeTable(14, (2,), (7,), (0.9,), (1,)))
    with pytest.raises(ConfigError, match="merges of tokens in any order"):
        ids.with_reading(InContext()).read(Ragged.from_rows([[0]], np.int64), last=3)


def test_hashes_differ_where_codes_are_equal_and_use_all_tokens() -> None:
    codes = Ragged.from_rows([[n // 40, n % 40] for n in range(1600) for _ in range(2)])
    found = Hashed(capacity=16).settle(codes, (40, 40)).suffixes
    assert found is not None
    assert (found[0::2] != found[1::2]).all()
    counts = np.bincount(found, minlength=16)
    assert counts.min() > 120
    assert counts.max() < 280


def test_a_new_item_gets_a_free_hash_and_old_ones_stay() -> None:
    ids = make_ids([[0, 1], [0, 1], [2, 2]], (4, 4), Hashed(capacity=3))
    grown = ids.extend(["late"], Ragged.from_rows([[0, 1]]), Hashed(capacity=3))
    assert grown.suffixes is not None
    assert grown.tokens.take(np.arange(3)) == ids.tokens
    assert sorted(grown.suffixes[[0, 1, 3]]) == [0, 1, 2]
    with pytest.raises(DataError, match="4 items share one code, but there are only 3 suffix tokens"):
        grown.extend(["later"], Ragged.from_rows([[0, 1]]), Hashed(capacity=3))
