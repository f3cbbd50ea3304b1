from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capsid.data.augment import training_pieces
from capsid.ragged import Ragged

SEQUENCES = st.lists(st.lists(st.integers(0, 11), max_size=17), min_size=1, max_size=6)


@given(sequences=SEQUENCES, history=st.integers(1, 6))
def test_every_next_item_is_a_target_once(sequences: list[list[int]], history: int) -> None:
    numbered, number = [], 0
    for row in sequences:
        numbered.append(list(range(number, number + len(row))))
        number += len(row)
    pieces = [p.tolist() for p in training_pieces(Ragged.from_rows(numbered, np.int64), history)]
    targets = [event for piece in pieces for event in piece[1:]]
    assert sorted(targets) == [event for row in numbered for event in row[1:]]
    for piece in pieces:
        assert 2 <= len(piece) <= history + 1
        assert piece == list(range(piece[0], piece[-1] + 1)), "a piece is a stretch of one sequence"
        assert any(piece[0] in row and piece[-1] in row for row in numbered)
    for row in numbered:
        if len(row) > history:
            assert row[-history - 1 :] in pieces, "the latest items have the longest past"
