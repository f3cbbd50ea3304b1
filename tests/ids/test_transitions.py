"""Counts of transitions equal those found one by one, and a predicted pair does not count for itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids

import capsid.ids.transitions as module
from capsid.errors import ArtifactError
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.transitions import Transitions
from capsid.ragged import Ragged

ITEMS = 6
IDS = make_ids([[n] for n in range(ITEMS)], (ITEMS,))
sequences_of = st.lists(st.lists(st.integers(0, ITEMS - 1), min_size=1, max_size=8), min_size=1, max_size=8)


def counted(sequences: list[list[int]], distance: int) -> Counter[tuple[int, int]]:
    return Counter(pair for row in sequences for pair in zip(row, row[distance:]))


@given(sequences=sequences_of, distances=st.integers(1, 4))
def test_counts_are_those_of_all_pairs(sequences: list[list[int]], distances: int) -> None:
    transitions = Transitions.count(Ragged.from_rows(sequences), ITEMS, distances)
    assert transitions.distances == distances
    for number, (rows, counts) in enumerate(zip(transitions.followers, transitions.counts)):
        found = dict(zip(zip(rows.row_numbers.tolist(), rows.values.tolist()), counts.tolist()))
        assert found == counted(sequences, number + 1)


@given(sequences=sequences_of, history=st.lists(st.integers(0, ITEMS - 1), min_size=1, max_size=7))
def test_followers_of_a_history(sequences: list[list[int]], history: list[int]) -> None:
    ids = IDS.with_transitions(Transitions.count(Ragged.from_rows(sequences), ITEMS, 3))
    found = ids.read(Ragged.from_rows([[0], history]), last=5).followers
    got = {i: c.tolist() for i, c, row in zip(found.items.values, found.counts_EJ, found.items.row_numbers) if row == 1}
    recent = history[-5:][::-1]
    for item in range(ITEMS):
        wanted = [counted(sequences, j + 1)[recent[j], item] if j < len(recent) else 0 for j in range(3)]
        assert got.get(item, [0, 0, 0]) == wanted
    assert [row.tolist() for row in found.own] == [IDS.prefix_free[i].tolist() for i in found.items.values]


@given(sequences=sequences_of)
def test_a_predicted_pair_does_not_count_for_itself(sequences: list[list[int]]) -> None:
    pieces = [row for row in sequences if len(row) > 1]
    if not pieces:
        return
    ids = IDS.with_transitions(Transitions.count(Ragged.from_rows(sequences), ITEMS, 2))
    lesson = ids.lesson(Ragged.from_rows(pieces), last=50)
    found = lesson.followers
    case = 0
    for row in pieces:
        for at in range(1, len(row)):
            mine = found.items.row_numbers == case
            got = {int(i): c.tolist() for i, c in zip(found.items.values[mine], found.counts_EJ[mine])}
            for item in range(ITEMS):
                wanted = [
                    counted(sequences, j)[row[at - j], item] - (item == row[at]) if at >= j else 0 for j in (1, 2)
                ]
                assert got.get(item, [0, 0]) == wanted
            case += 1


def test_only_the_most_frequent_followers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWERS", 2)
    sequences = Ragged.from_rows([[0, 5], [0, 5], [0, 4], [0, 2], [0, 3], [0, 3], [1, 2]])
    transitions = Transitions.count(sequences, ITEMS, 1)
    assert [row.tolist() for row in transitions.followers[0]][:2] == [[3, 5], [2]]
    assert transitions.counts[0].tolist() == [2, 2, 1]


def test_saved_with_the_ids_and_kept_by_new_items(tmp_path: Path) -> None:
    ids = IDS.with_transitions(Transitions.count(Ragged.from_rows([[0, 1, 2], [0, 1]]), ITEMS, 2))
    ids.save(tmp_path)
    loaded = SemanticIds.load(tmp_path)
    grown = loaded.extend(["new"], Ragged.from_rows([[0]]))
    for again in (loaded, grown):
        found = again.read(Ragged.from_rows([[0], [0, 1]]), last=5).followers
        assert [row.tolist() for row in found.items] == [[1], [2]]
        assert found.counts_EJ.tolist() == [[2, 0], [1, 1]]
    assert len(grown.read(Ragged.from_rows([[ITEMS]]), last=5).followers.items.values) == 0


def test_transitions_to_unknown_items_are_refused(tmp_path: Path) -> None:
    wrong = Transitions((Ragged.from_rows([[ITEMS], [], [], [], [], []]),), (np.array([1], np.int32),))
    IDS.with_transitions(wrong).save(tmp_path)
    with pytest.raises(ArtifactError, match="outside 0 to 5"):
        SemanticIds.load(tmp_path)
