"""What is read and what is predicted: the default goes item by item, and another reading can take its place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids

from capsid.ragged import Ragged

IDS = make_ids([[0], [0, 1], [0, 1, 2], [3, 3], [2], [0]], (4, 4, 4))


@given(pieces=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=7), max_size=6), last=st.integers(1, 5))
def test_every_item_but_the_first_is_predicted_where_it_stands(pieces: list[list[int]], last: int) -> None:
    lesson = IDS.lesson(Ragged.from_rows(pieces), last=last)
    wanted = [(row, item, at) for row, piece in enumerate(pieces) for at, item in enumerate(piece[-last:]) if at]
    assert list(zip(lesson.row_M, lesson.item_M, lesson.before_M)) == wanted
    assert lesson.position_M.tolist() == lesson.before_M.tolist()
    for (row, item, _), column, tokens in zip(wanted, lesson.column_M, lesson.tokens):
        assert tokens.tolist() == IDS.prefix_free[item].tolist()
        assert lesson.batch.tokens_BL[row, column : column + len(tokens)].tolist() == tokens.tolist()


@given(histories=st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=6), last=st.integers(1, 5))
def test_a_batch_knows_its_items_and_their_own_tokens(histories: list[list[int]], last: int) -> None:
    batch = IDS.read(Ragged.from_rows(histories), last=last)
    assert [row.tolist() for row in batch.items] == [h[-last:] for h in histories]
    assert [row.tolist() for row in batch.own] == [IDS.prefix_free[i].tolist() for h in histories for i in h[-last:]]
