"""The last step asks the model in waves: the same result as asking about every hypothesis, with fewer questions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import TableModel, make_ids, random_codes, random_generator, random_histories, retriever_of

from capsid.decode import beam
from capsid.decode.ranked import RankedItems
from capsid.ids.collisions import Suffix
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged


def ranked(model: object, ids: SemanticIds, histories: Ragged, k: int, width: int, wave_rows: int) -> RankedItems:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "_WAVE_ROWS", wave_rows)
        return retriever_of(model, ids, width=width).rank(histories, k, filter_history=True)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["fixed", "variable", "suffix"]), k=st.integers(1, 4))
def test_waves_find_what_one_step_finds(seed: int, form: str, k: int) -> None:
    codes = random_codes(seed, items=60, sizes=(4, 4, 4), variable=form == "variable", distinct=form != "suffix")
    ids = make_ids(codes, (4, 4, 4), Suffix() if form == "suffix" else None)
    histories = random_histories(seed, len(ids), [1, 3, 9])
    model = random_generator(ids, seed)
    one, waves = (ranked(model, ids, histories, k, 24, rows) for rows in (10_000, 1))
    np.testing.assert_array_equal(waves.items_UK, one.items_UK)
    np.testing.assert_allclose(waves.scores_UK, one.scores_UK, rtol=1e-5)


def test_ties_with_the_bound_are_asked_too() -> None:
    """One item gets to 1/4 for certain, item 2 from 1/2: equal, and item 2 is the later one in the trie. It is asked
    first, and leaves a bound at which the other, if it is item 1 of the second wave, just stands.
    """
    ids = make_ids([[0, 0], [1, 0], [2, 0], [3, 0]], (4, 2))
    first, halves = {2: 0.25, 3: 0.25, 4: 0.5}, {6: 0.5, 7: 0.5}
    tables = {(): first, (2,): {6: 1.0}, (3,): halves, (4,): halves}
    for swap in (False, True):
        # Which of the equal hypotheses is asked in the first wave must not matter either.
        tables[2,], tables[3,] = (halves, {6: 1.0}) if swap else ({6: 1.0}, halves)
        model = TableModel(ids.layout.vocabulary, lambda user, prefix: tables.get(prefix, {}))
        one, waves = (ranked(model, ids, Ragged.from_rows([[3]]), 1, 4, rows) for rows in (10_000, 1))
        assert waves.items_UK.tolist() == one.items_UK.tolist() == [[1 if swap else 0]]


def test_what_cannot_win_is_not_asked() -> None:
    ids = make_ids([[i, 0] for i in range(12)], (12, 1))
    first = {2 + i: 0.5 ** (i + 1) for i in range(12)}
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {14: 0.9, 2: 0.1} if prefix else first)
    found = ranked(model, ids, Ragged.from_rows([[11]]), 2, 12, 1)
    assert found.items_UK.tolist() == [[0, 1]]
    assert {prefix for _, prefix in model.asked} == {(), *((2 + i,) for i in range(4))}
