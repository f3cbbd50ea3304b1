from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids

from capsid.ids.layout import PAD
from capsid.ragged import Ragged

IDS = make_ids([[0], [0, 1], [0, 1, 2], [3, 3], [2], [0]], (4, 4, 4))


@given(histories=st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=6), last=st.integers(1, 5))
def test_histories_become_tokens_item_by_item(histories: list[list[int]], last: int) -> None:
    batch = IDS.read(Ragged.from_rows(histories), last=last)
    assert len(batch) == len(histories)
    for row, history in enumerate(histories):
        kept = history[-last:]
        wanted = [(int(t), place, depth) for place, i in enumerate(kept) for depth, t in enumerate(IDS.prefix_free[i])]
        length = int(batch.lengths_B[row])
        found = zip(batch.tokens_BL[row], batch.positions_BL[row], batch.depths_BL[row])
        assert list(found)[:length] == wanted
        assert length == len(wanted)
        assert batch.positions_B[row] == len(kept)
        assert (batch.tokens_BL[row, length:] == PAD).all()
        assert (batch.positions_BL[row, length:] == 0).all()


def test_a_batch_is_as_wide_as_its_longest_row() -> None:
    batch = IDS.read(Ragged.from_rows([[0], [2, 3]]), last=50)
    assert batch.tokens_BL.shape == (2, 5)
    assert batch.tokens_BL.dtype == np.int64
    assert IDS.read(Ragged.from_rows([]), last=5).tokens_BL.shape == (0, 1)
