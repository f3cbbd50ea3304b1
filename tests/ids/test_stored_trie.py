"""Tries out of files: arrays that are no tree of ids are refused, whatever number was changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worlds import make_ids, random_codes

from capsid.errors import ArtifactError
from capsid.ids.trie import Trie

ARRAYS = ("first_child", "token", "low", "high", "items", "positions")


def stored(folder: Path) -> Trie:
    codes = random_codes(0, items=30, sizes=(4, 4, 4), variable=True, distinct=False)
    trie = Trie.build(make_ids(codes, (4, 4, 4)).prefix_free)
    trie.save(folder)
    return trie


@pytest.mark.parametrize("mapped", [False, True])
def test_a_trie_comes_back(tmp_path: Path, mapped: bool) -> None:
    trie = stored(tmp_path)
    back = Trie.load(tmp_path, memory_map=mapped)
    assert all(np.array_equal(getattr(back, name), getattr(trie, name)) for name in (*ARRAYS[:-1], "slots"))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("how", ["longer", "shorter", "float", "flat", "large", "reverse"])
def test_what_is_no_trie_is_refused(tmp_path: Path, name: str, how: str) -> None:
    stored(tmp_path)
    array = np.load(tmp_path / f"{name}.npy")
    changed = {
        "longer": lambda: np.append(array, array[-1:]),
        "shorter": lambda: array[:-1],
        "float": lambda: array.astype(np.float64),
        "flat": lambda: array[None],
        "large": lambda: np.where(np.arange(len(array)) == len(array) // 2, np.iinfo(array.dtype).max, array),
        "reverse": lambda: array[::-1],
    }[how]()
    np.save(tmp_path / f"{name}.npy", changed.astype(array.dtype) if how != "float" else changed)
    if name == "token" and how in ("large", "reverse"):
        Trie.load(tmp_path)  # other ids, and still a tree; a run compares them with its layout
        return
    with pytest.raises(ArtifactError) as caught:
        Trie.load(tmp_path)
    assert caught.value.hint


def test_a_node_is_never_its_own_parent(tmp_path: Path) -> None:
    trie = stored(tmp_path)
    loop = trie.first_child.copy()
    loop[1:-1] = 1
    np.save(tmp_path / "first_child.npy", loop)
    with pytest.raises(ArtifactError, match="does not hold a tree"):
        Trie.load(tmp_path)


def test_a_trie_holds_its_ids_and_no_others(tmp_path: Path) -> None:
    codes = random_codes(0, items=30, sizes=(4, 4, 4), variable=True, distinct=False)
    ids = make_ids(codes, (4, 4, 4))
    trie = Trie.build(ids.prefix_free)
    assert trie.holds(ids.prefix_free)
    others = make_ids([*codes[1:], codes[0]], (4, 4, 4))
    assert not trie.holds(others.prefix_free)
    assert not trie.holds(make_ids(codes[:-1], (4, 4, 4)).prefix_free)
    assert not trie.holds(make_ids([*codes[:-1], [3, 3, 3]], (4, 4, 4)).prefix_free)
