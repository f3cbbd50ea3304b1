"""Counts of transitions equal those found one by one, and a predicted pair does not count for itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids

import capsid.memory.memory as module
from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.base.storage.untrusted import interpreting
from capsid.errors import ArtifactError
from capsid.memory.memory import FILE, FittedMemory, Transitions
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
    transitions = Transitions.count(Ragged.from_rows(sequences), ITEMS, 3)
    found = transitions.following(Ragged.from_rows([[0], history[-5:]]), IDS.prefix_free)
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
    transitions = Transitions.count(Ragged.from_rows(sequences), ITEMS, 2)
    found = transitions.before(IDS.lesson(Ragged.from_rows(pieces), last=50), IDS.prefix_free, counted=True)
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


def test_saved_and_kept_for_new_items(tmp_path: Path) -> None:
    memory = FittedMemory(Transitions.count(Ragged.from_rows([[0, 1, 2], [0, 1]]), ITEMS, 2), (0.5, -1.0), 1.25)
    memory.save(tmp_path)
    loaded, mapped = (FittedMemory.load(tmp_path, ITEMS, checked=checked) for checked in (False, True))
    for again in (loaded, mapped, loaded.grown(ITEMS + 1, None)):
        assert (again.weights, again.temperature) == (memory.weights, memory.temperature)
        found = again.transitions.following(Ragged.from_rows([[0], [0, 1]]), IDS.prefix_free)
        assert [row.tolist() for row in found.items] == [[1], [2]]
        assert found.counts_EJ.tolist() == [[2, 0], [1, 1]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"transitions/items/0": np.array([ITEMS], np.int32)}, "outside 0 to 5"),
        ({"weights": np.array([1.0, 2.0])}, "1 finite weights"),
        ({"weights": np.array([np.nan])}, "1 finite weights"),
        ({"temperature": np.array(0.0)}, "temperature above 0"),
        ({"temperature": np.array(np.inf)}, "temperature above 0"),
    ],
)
def test_what_cannot_be_right_is_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    FittedMemory(Transitions.count(Ragged.from_rows([[0, 1]]), ITEMS, 1), (0.5,)).save(tmp_path)
    save_arrays(tmp_path / FILE, {**load_arrays(tmp_path / FILE), **arrays})
    with pytest.raises(ArtifactError, match=message):
        load_whole(tmp_path)


def test_no_transitions_are_refused(tmp_path: Path) -> None:
    save_arrays(tmp_path / FILE, {"weights": np.zeros(0), "temperature": np.array(1.0)})
    with pytest.raises(ArtifactError, match="no transitions"):
        load_whole(tmp_path)


def load_whole(folder: Path) -> FittedMemory:
    with interpreting(folder, "run"):
        return FittedMemory.load(folder, ITEMS)
