"""Merging neighbours and undoing it: against a walk item by item, and what must hold of every table."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids, ragged_codes

from capsid.errors import DataError
from capsid.ids.collisions import Bucket, Suffix
from capsid.ids.layout import END, TokenLayout
from capsid.ids.merges import MergeTable
from capsid.ids.order import group_numbers
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

SIZES = (4, 4, 4, 4)
SEEDS = st.integers(0, 10_000)


def random_table(seed: int, *, suffix: int = 0, passes: int = 2, share: float = 0.5) -> MergeTable:
    """Random pairs that could stand beside each other; few strengths, so that many are equal."""
    rng = np.random.default_rng(seed)
    plain = TokenLayout(SIZES, suffix)
    first = plain.vocabulary
    spans = {t: (d, d) for t, d in enumerate(plain.depth_of.tolist()) if 0 <= d < len(SIZES)}
    rows: list[tuple[int, int, float, int]] = []
    for number in range(1, passes + 1):
        pairs = [(a, b) for a in spans for b in spans if spans[a][1] + 1 == spans[b][0]]
        pairs = [p for p in pairs if p not in {r[:2] for r in rows} and rng.random() < share / number]
        new = sorted(((a, b, float(rng.integers(5, 9)) / 10, number) for a, b in pairs), key=lambda r: -r[2])[:40]
        for a, b, *_ in new:
            spans[first + len(rows) + new.index((a, b, *_))] = (spans[a][0], spans[b][1])
        rows += new
    return MergeTable.of(first, *(zip(*rows) if rows else ((), (), (), ())))


def slow_apply(table: MergeTable, row: list[int]) -> list[int]:
    for number in range(1, table.passes + 1):
        known = {(a, b): i for i, (a, b, n) in enumerate(zip(table.left, table.right, table.number)) if n == number}
        found = [(i, known[pair]) for i, pair in enumerate(pairwise(row)) if pair in known]
        taken: dict[int, int] = {}
        for place, merge in sorted(found, key=lambda f: (-table.strength[f[1]], f[0])):
            if not {place - 1, place, place + 1} & taken.keys():
                taken[place] = merge
        out = []
        for place, token in enumerate(row):
            if place in taken:
                out.append(table.first + taken[place])
            elif place - 1 not in taken:
                out.append(token)
        row = out
    return row


@given(codes=ragged_codes(absent=True), seed=SEEDS, suffix=st.integers(0, 2), passes=st.integers(1, 3))
def test_apply_is_the_walk_item_by_item_and_undo_takes_it_back(
    codes: list[list[int]], seed: int, suffix: int, passes: int
) -> None:
    table = random_table(seed, suffix=suffix, passes=passes)
    rng = np.random.default_rng(seed)
    tokens = TokenLayout(SIZES, suffix).tokens(
        Ragged.from_rows(codes), rng.integers(0, suffix, len(codes)) if suffix else None
    )
    merged = table.apply(tokens)
    assert [r.tolist() for r in merged] == [slow_apply(table, r.tolist()) for r in tokens]
    assert merged.values.dtype == tokens.values.dtype
    assert table.undo(merged) == tokens
    if suffix:
        assert (merged.values[merged.offsets[1:] - 1] == tokens.values[tokens.offsets[1:] - 1]).all()


@given(codes=ragged_codes(most=40), seed=SEEDS)
def test_merging_neither_joins_nor_parts_items(codes: list[list[int]], seed: int) -> None:
    tokens = TokenLayout(SIZES).tokens(Ragged.from_rows(codes))
    before, after = group_numbers(tokens), group_numbers(random_table(seed).apply(tokens))
    assert len(set(zip(before.tolist(), after.tolist()))) == len(set(before.tolist())) == len(set(after.tolist()))


@given(seed=SEEDS, size=st.integers(0, 60), codes=ragged_codes())
def test_the_first_merges_of_a_table_are_a_table(seed: int, size: int, codes: list[list[int]]) -> None:
    table = random_table(seed)
    cut = table.truncated(size)
    assert len(cut) == min(size, len(table))
    assert (cut.first, cut.left, cut.strength) == (table.first, table.left[:size], table.strength[:size])
    assert [m.tolist() for m in cut.members] == [m.tolist() for m in table.members][:size]
    tokens = TokenLayout(SIZES).tokens(Ragged.from_rows(codes))
    assert cut.undo(cut.apply(tokens)) == tokens
    assert table.truncated(-1) == MergeTable(table.first)


def test_by_hand() -> None:
    # Tokens 2, 3 | 4, 5 | 6, 7; merged ones from 8 on.
    table = MergeTable(8, (4, 2, 8), (6, 4, 7), (0.9, 0.8, 0.7), (1, 1, 2))
    with pytest.raises(DataError, match="not codes of neighbouring depths"):
        TokenLayout((2, 2, 2), 0, table)
    table = MergeTable(8, (4, 2, 2), (6, 4, 8), (0.9, 0.8, 0.7), (1, 1, 2))
    layout = TokenLayout((2, 2, 2), 0, table)
    tokens = layout.tokens(Ragged.from_rows([[0, 0, 0], [0, 0, 1], [0, 0], [1, 0, 0], [1, 1, 1], [0]]))
    assert [r.tolist() for r in tokens] == [[10], [9, 7], [9], [3, 8], [3, 5, 7], [2]]
    assert [r.tolist() for r in table.members] == [[4, 6], [2, 4], [2, 4, 6]]
    assert (layout.vocabulary, layout.depths) == (11, 3)
    assert layout.depth_of.tolist() == [-1, -1, 0, 0, 1, 1, 2, 2, 1, 0, 0]
    assert layout.first_code.tolist() == [-1, -1, 0, 1, -1, -1, -1, -1, -1, 0, 0]
    assert layout.codes(Ragged.from_rows([[9, 7, END], [10]])) == Ragged.from_rows([[0, 0, 1], [0, 0, 0]])
    assert layout.plain == TokenLayout((2, 2, 2))
    with pytest.raises(DataError, match="token 11 is not in the table"):
        layout.codes(Ragged.from_rows([[11]]))


def test_of_equal_strength_the_leftmost() -> None:
    # The pair on the right stands first in the table; strength alone decides, then place.
    table = MergeTable(8, (4, 2), (6, 4), (0.9, 0.9), (1, 1))
    assert table.apply(Ragged.from_rows([[2, 4, 6]]))[0].tolist() == [9, 6]


def test_pairs_lie_inside_one_row() -> None:
    table = MergeTable(8, (4,), (2,), (0.9,), (1,))
    rows = Ragged.from_rows([[2, 4], [], [2, 4], [], [4, 2]])
    assert [r.tolist() for r in table.apply(rows)] == [[2, 4], [], [2, 4], [], [8]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (((2,), (4,), (0.9, 0.8), (1,)), "different lengths"),
        (((2, 2), (4, 4), (0.9, 0.8), (1, 1)), "same pair twice"),
        (((2, 3), (4, 4), (0.8, 0.9), (1, 1)), "ordered by pass"),
        (((2, 3), (4, 4), (0.9, 0.9), (2, 1)), "ordered by pass"),
        (((2,), (4,), (0.9,), (0,)), "ordered by pass"),
        (((2, 8), (4, 6), (0.9, 0.8), (1, 1)), "which no earlier pass made"),
        (((2,), (9,), (0.9,), (1,)), "which no earlier pass made"),
    ],
)
def test_tables_that_cannot_be(columns: tuple, message: str) -> None:
    with pytest.raises(DataError, match=message):
        MergeTable(8, *columns)


@pytest.mark.parametrize(("left", "right"), [(4, 8), (1, 2), (2, 6), (4, 2)])
def test_only_codes_of_neighbouring_depths_merge(left: int, right: int) -> None:
    """Token 8 is a suffix, 1 the end token."""
    with pytest.raises(DataError, match="not codes of neighbouring depths"):
        TokenLayout((2, 2, 2), 2, MergeTable(10, (left,), (right,), (0.9,), (1,)))
    with pytest.raises(DataError, match="begin at 9"):
        TokenLayout((2, 2, 2), 2, MergeTable(9, (2,), (4,), (0.9,), (1,)))


@given(codes=ragged_codes(), seed=SEEDS)
def test_an_empty_table_changes_nothing(codes: list[list[int]], seed: int) -> None:
    tokens = TokenLayout(SIZES).tokens(Ragged.from_rows(codes))
    assert MergeTable().apply(tokens) is tokens
    assert MergeTable().undo(tokens) is tokens
    assert TokenLayout(SIZES, 2) == TokenLayout(SIZES, 2, MergeTable())
    assert hash(TokenLayout(SIZES, 0, random_table(seed))) == hash(TokenLayout(SIZES, 0, random_table(seed)))
    empty = Ragged.from_rows([])
    assert random_table(seed).apply(empty) == empty
    assert random_table(seed).undo(empty) == empty


@given(codes=ragged_codes(absent=True), more=ragged_codes(absent=True), seed=SEEDS, suffix=st.booleans())
def test_ids_with_merges(codes: list[list[int]], more: list[list[int]], seed: int, suffix: bool) -> None:
    plain = make_ids(codes, SIZES, Suffix(capacity=64) if suffix else Bucket())
    ids = plain.with_merges(random_table(seed, suffix=64 if suffix else 0))
    assert (ids.unmerged, ids.codes) == (plain.tokens, plain.codes)
    assert ids.layout.codes(ids.prefix_free) == plain.codes, "ids with end tokens too"
    told, before = ids.statistics(), plain.statistics()
    assert told.mean_tokens == pytest.approx(ids.tokens.lengths.mean())
    assert before.mean_tokens == pytest.approx(before.mean_length + suffix)
    assert {**vars(told), "mean_tokens": 0} == {**vars(before), "mean_tokens": 0}, "all else is of codes"
    grown = ids.extend([f"n{i}" for i in range(len(more))], Ragged.from_rows(more))
    assert grown.tokens.take(np.arange(len(codes))) == ids.tokens
    assert grown.layout == ids.layout
    new_rows = grown.prefix_free.take(np.arange(len(ids), len(grown)))
    assert Trie.build(ids.prefix_free).extend(new_rows).rows() == grown.prefix_free
    for item in grown.items:
        assert item in grown.lookup(grown[item])


def test_save_and_load(tmp_path: Path) -> None:
    codes = [[0, 1, 2], [3, 3], [1], [0, 1, 3, 0]]
    for name, table in (("with", random_table(3)), ("without", MergeTable())):
        ids = make_ids(codes, SIZES).with_merges(table)
        (tmp_path / name).mkdir()
        ids.save(tmp_path / name)
        loaded = SemanticIds.load(tmp_path / name)
        assert loaded == ids
        assert loaded.layout.merges == table
    assert SemanticIds.load(tmp_path / "with") != SemanticIds.load(tmp_path / "without")
    assert set(json.loads((tmp_path / "without" / "ids.json").read_text())) == {"sizes", "suffix"}
    assert not np.load(tmp_path / "without" / "ids.npz").files
