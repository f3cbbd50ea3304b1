"""Histories read in context: every code is read, permutations depend on the history alone, lessons do not leak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import pieces_of, random_codes

from capsid.ids.layout import PAD
from capsid.ids.reading import InContext, TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged

# Codes of one item, codes of two items, and tokens that hold both.
PAIRS = [(2, 6), (3, 7), (6, 11), (10, 13), (9, 22), (2, 26)]
IDS = pieces_of(random_codes(3, items=12, sizes=(4, 4, 4)), PAIRS).with_reading(InContext())
HISTORIES = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=7), min_size=1, max_size=5)


def rows_of(histories: list[list[int]]) -> Ragged:
    return Ragged.from_rows(histories, np.int64)


def tokens_read(batch: TokenBatch) -> list[list[int]]:
    return [row[row != PAD].tolist() for row in batch.tokens_BL]


@settings(max_examples=30, deadline=None)
@given(HISTORIES, st.integers(0, 3))
def test_every_code_of_a_history_is_read_once(histories: list[list[int]], variant: int) -> None:
    batch = IDS.read(rows_of(histories), last=5, variant=variant)
    for history, tokens in zip(histories, tokens_read(batch)):
        undone = IDS.layout.merges.undo(Ragged.from_rows([tokens]))[0]
        wanted = np.concatenate([IDS.unmerged[item] for item in history[-5:]])
        assert sorted(undone.tolist()) == sorted(wanted.tolist())
    assert batch.positions_B.tolist() == batch.lengths_B.tolist()
    assert [row.tolist() for row in batch.items] == [h[-5:] for h in histories]
    assert batch.own == IDS.tokens.take(batch.items.values)


@settings(max_examples=30, deadline=None)
@given(HISTORIES, HISTORIES, st.integers(0, 3))
def test_a_reading_depends_on_its_history_alone(
    histories: list[list[int]], others: list[list[int]], variant: int
) -> None:
    alone = tokens_read(IDS.read(rows_of(histories), last=6, variant=variant))
    together = tokens_read(IDS.read(rows_of([*others, *histories]), last=6, variant=variant))
    assert together[len(others) :] == alone


def test_variants_differ_and_variant_0_keeps_the_order() -> None:
    histories = rows_of([[n, (n + 1) % 12, (n + 5) % 12] for n in range(12)])
    plain = IDS.with_reading(InContext(permute=False))
    read = [tokens_read(IDS.read(histories, last=6, variant=v)) for v in range(4)]
    assert read[0] == tokens_read(plain.read(histories, last=6, variant=2))
    assert len({str(rows) for rows in read}) == 4
    assert [row.tolist() for row in IDS.layout.merges.segment(in_order(IDS, histories))] == read[0]


def in_order(ids: SemanticIds, histories: Ragged) -> Ragged:
    return Ragged.from_rows([np.concatenate([ids.unmerged[item] for item in h]) for h in histories])


def test_every_order_of_the_codes_is_drawn() -> None:
    """Four codes have 24 orders; 500 draws meet all of them, about equally often."""
    plain = pieces_of([[0, 1, 2]], []).with_reading(InContext())
    found = [tuple(tokens_read(plain.read(rows_of([[0]]), last=1, variant=v))[0]) for v in range(1, 501)]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert counts.max() < 45


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), min_size=2, max_size=8), min_size=1, max_size=5), st.integers(0, 99))
def test_a_lesson_predicts_the_last_item_of_each_piece(pieces: list[list[int]], seed: int) -> None:
    lesson = IDS.lesson(rows_of(pieces), last=7, rng=np.random.default_rng(seed))
    batch = lesson.batch
    assert lesson.row_M.tolist() == list(range(len(pieces)))
    for row, piece in enumerate(p[-7:] for p in pieces):
        before = len(piece) - 1
        assert lesson.before_M[row] == before
        assert batch.items[row].tolist() == piece[: before + 1]
        assert lesson.item_M[row] == piece[before]
        tokens = batch.tokens_BL[row, : batch.lengths_B[row]]
        read = tokens[: lesson.column_M[row]]
        wanted = np.concatenate([IDS.unmerged[item] for item in piece[:before]])
        assert sorted(IDS.layout.merges.undo(Ragged.from_rows([read]))[0].tolist()) == sorted(wanted.tolist())
        assert tokens[lesson.column_M[row] :].tolist() == IDS.tokens[piece[before]].tolist()
        assert lesson.tokens[row].tolist() == IDS.tokens[piece[before]].tolist()
        assert set(batch.positions_BL[row, lesson.column_M[row] : batch.lengths_B[row]]) == {lesson.position_M[row]}
        assert batch.positions_B[row] == lesson.position_M[row] + 1


def test_the_network_reads_a_lesson_as_it_reads_the_history() -> None:
    """What is read before the target must not depend on the target: that would be the leak of merges across items."""
    plain = IDS.with_reading(InContext(permute=False))
    for target in range(12):
        lesson = plain.lesson(rows_of([[4, 5, 9, target]]), last=9)
        history = plain.read(rows_of([[4, 5, 9]]), last=8)
        read = lesson.batch.tokens_BL[0, : lesson.column_M[0]]
        assert read.tolist() == history.tokens_BL[0].tolist()


@pytest.mark.parametrize("reading", [InContext(), InContext(permute=False)])
def test_positions_for_every_code(reading: InContext) -> None:
    assert IDS.with_reading(reading).positions_per_item == 4
    assert reading.varies == reading.permute
