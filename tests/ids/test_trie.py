"""A trie is a set of tuples: everything it answers is asked of plain Python as well."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids, ragged_codes

from capsid.data.planted import planted_codes
from capsid.errors import DataError
from capsid.ids.layout import END
from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged

Rows = list[tuple[int, ...]]


def prefix_free_rows(codes: list[list[int]]) -> Rows:
    return [tuple(r.tolist()) for r in make_ids(codes, (4, 4, 4, 4)).prefix_free]


def build(rows: Rows, priority: np.ndarray | None = None) -> Trie:
    return Trie.build(Ragged.from_rows(rows), priority)


def prefixes(rows: Rows) -> set[tuple[int, ...]]:
    return {row[:n] for row in rows for n in range(len(row) + 1)}


@given(codes=ragged_codes(absent=True))
def test_nodes_are_the_prefixes(codes: list[list[int]]) -> None:
    rows = prefix_free_rows(codes)
    trie = build(rows)
    paths = [tuple(trie.path(n)) for n in range(trie.nodes)]
    assert len(trie) == len(rows)
    assert sorted(paths) == sorted(prefixes(rows))
    assert paths == sorted(paths, key=lambda p: (len(p), p)), "level by level, each in lexicographic order"


@given(codes=ragged_codes())
def test_children_are_the_prefixes_one_longer(codes: list[list[int]]) -> None:
    rows = prefix_free_rows(codes)
    trie = build(rows)
    nodes = np.arange(trie.nodes)[::-1].copy()
    edges = trie.children(nodes)
    found: dict[tuple[int, ...], list[int]] = {}
    for parent, token, node in zip(edges.parent, edges.token, edges.node):
        assert trie.path(int(node)) == [*trie.path(int(nodes[parent])), token]
        found.setdefault(tuple(trie.path(int(nodes[parent]))), []).append(int(token))
    wanted = {p: sorted(q[-1] for q in prefixes(rows) if q and q[:-1] == p) for p in prefixes(rows)}
    assert found == {p: tokens for p, tokens in wanted.items() if tokens}


@given(codes=ragged_codes(), data=st.data())
def test_walk_finds_exactly_the_edges(codes: list[list[int]], data: st.DataObject) -> None:
    rows = prefix_free_rows(codes)
    trie = build(rows)
    nodes = np.array(data.draw(st.lists(st.integers(0, trie.nodes - 1), min_size=1, max_size=30)))
    tokens = np.array(data.draw(st.lists(st.integers(0, 20), min_size=len(nodes), max_size=len(nodes))))
    known = prefixes(rows)
    for node, token, child in zip(nodes, tokens, trie.walk(nodes, tokens)):
        path = (*trie.path(int(node)), int(token))
        assert (child >= 0) == (path in known)
        assert child < 0 or tuple(trie.path(int(child))) == path


@given(codes=ragged_codes())
def test_leaves_buckets_and_rows(codes: list[list[int]]) -> None:
    rows = prefix_free_rows(codes)
    trie = build(rows)
    leaves = [tuple(trie.path(int(leaf))) for leaf in trie.leaves]
    assert leaves == sorted(set(rows))
    assert trie.is_leaf(np.arange(trie.nodes)).tolist() == [tuple(trie.path(n)) in rows for n in range(trie.nodes)]
    for row, leaf in enumerate(trie.leaf_of(np.arange(len(rows)))):
        assert tuple(trie.path(int(leaf))) == rows[row]
        assert trie.bucket(int(leaf)).tolist() == [i for i, other in enumerate(rows) if other == rows[row]]
    assert trie.rows() == Ragged.from_rows(rows)
    some = np.arange(len(rows))[::-2]
    assert trie.rows_of(some) == trie.rows().take(some)
    assert trie.items[trie.slots].tolist() == trie.slots[trie.items].tolist() == list(range(len(rows)))


@given(codes=ragged_codes())
def test_every_node_covers_its_items(codes: list[list[int]]) -> None:
    rows = prefix_free_rows(codes)
    trie = build(rows)
    for node in range(trie.nodes):
        path = tuple(trie.path(node))
        below = {i for i, row in enumerate(rows) if row[: len(path)] == path}
        assert set(trie.items[trie.low[node] : trie.high[node]].tolist()) == below


@given(codes=ragged_codes(size=2, depths=2), data=st.data())
def test_buckets_are_in_order_of_priority(codes: list[list[int]], data: st.DataObject) -> None:
    rows = prefix_free_rows(codes)
    priority = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))))
    trie = build(rows, priority)
    for leaf in trie.leaves:
        bucket = trie.bucket(int(leaf)).tolist()
        assert bucket == sorted(bucket, key=lambda i: (priority[i], i))


ARRAYS = ("first_child", "token", "low", "high", "items")


def same_trie(a: Trie, b: Trie) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        assert getattr(a, name).dtype == getattr(b, name).dtype, name


def tail(rows: Ragged, old: int) -> Ragged:
    return rows.take(np.arange(old, len(rows)))


@given(old=ragged_codes(absent=True), new=ragged_codes(absent=True))
def test_extending_is_building_anew(old: list[list[int]], new: list[list[int]]) -> None:
    both = Ragged.from_rows(prefix_free_rows(old + new))
    before = build(prefix_free_rows(old))
    copy = [getattr(before, name).copy() for name in ARRAYS]
    same_trie(before.extend(tail(both, len(old))), Trie.build(both, old_order(before, len(both))))
    assert all((getattr(before, name) == array).all() for name, array in zip(ARRAYS, copy)), "the old one is left alone"
    assert before.extend(tail(both, len(both))) is before


@given(codes=ragged_codes(most=40), data=st.data())
def test_extending_one_by_one_is_extending_at_once(codes: list[list[int]], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(codes)), max_size=6)) | {1, len(codes)})
    trie = build(prefix_free_rows(codes[:1]))
    for before, after in itertools.pairwise(cuts):
        trie = trie.extend(tail(Ragged.from_rows(prefix_free_rows(codes[:after])), before))
    same_trie(trie, build(prefix_free_rows(codes)))


@given(old=ragged_codes(size=2, depths=2), new=ragged_codes(size=2, depths=3), data=st.data())
def test_extending_keeps_the_order_inside_buckets(
    old: list[list[int]], new: list[list[int]], data: st.DataObject
) -> None:
    priority = np.array(data.draw(st.permutations(range(len(old)))))
    both = Ragged.from_rows(prefix_free_rows(old + new))
    after = np.concatenate([priority, np.arange(len(old), len(old) + len(new))])
    same_trie(build(prefix_free_rows(old), priority).extend(tail(both, len(old))), Trie.build(both, after))


def old_order(trie: Trie, items: int) -> np.ndarray:
    """Priorities that put the old items as they stand, then the new ones."""
    return np.concatenate([trie.slots, np.arange(len(trie), items)])


def test_extending_with_open_ids_is_refused() -> None:
    trie = build([(2, 3), (4, 5)])
    for row in [(2,), ()]:
        with pytest.raises(DataError):
            trie.extend(Ragged.from_rows([row]))
    with pytest.raises(DataError, match="prefix"):
        trie.extend(Ragged.from_rows([(2, 3), (2, 3, 4)]))
    assert trie.extend(Ragged.from_rows([(2, 3, 4)])).rows() == Ragged.from_rows([(2, 3, END), (4, 5), (2, 3, 4)])


@pytest.mark.parametrize("memory_map", [False, True])
def test_saved_and_loaded_is_the_same(tmp_path: Path, memory_map: bool) -> None:
    codes = [[0], [0, 1], [0, 1, 2], [3, 3, 3, 3], [0, 1], [2]]
    trie = build(prefix_free_rows(codes))
    trie.save(tmp_path / "trie")
    loaded = Trie.load(tmp_path / "trie", memory_map=memory_map)
    same_trie(loaded, trie)
    for name in (*ARRAYS, "slots"):
        array = getattr(loaded, name)
        assert type(array) is np.ndarray
        assert isinstance(array.base, np.memmap) == memory_map, name
    np.testing.assert_array_equal(loaded.slots, trie.slots)
    assert loaded.nbytes == trie.nbytes
    assert loaded.rows() == trie.rows()
    bigger = Ragged.from_rows(prefix_free_rows([*codes, [1, 1], [0, 1, 2, 3]]))
    same_trie(loaded.extend(tail(bigger, len(codes))), Trie.build(bigger))


@given(seed=st.integers(0, 99), base=st.sampled_from([2, 40_000, 70_000, 2_000_000_000]), depths=st.integers(1, 6))
def test_wide_tokens_and_wide_keys(seed: int, base: int, depths: int) -> None:
    """Tokens above 2^16, and rows whose sort key needs more than 64 bits."""
    rng = np.random.default_rng(seed)
    rows = [tuple(int(base + rng.integers(0, [9, 60_000][d % 2])) for d in range(depths)) for _ in range(40)]
    trie = build(rows)
    assert trie.rows() == Ragged.from_rows(rows)
    assert [rows[i] for i in trie.items] == sorted(rows)
    nodes = np.full(len(rows), ROOT)
    for depth in range(depths):
        nodes = trie.walk(nodes, np.array([r[depth] for r in rows]))
        assert (nodes >= 0).all()
    np.testing.assert_array_equal(nodes, trie.leaf_of(np.arange(len(rows))))


def test_token_arrays_are_narrow_where_tokens_are() -> None:
    assert build([(2**16 - 1,)]).token.dtype == np.uint16
    assert build([(2**16,)]).token.dtype == np.int32


def test_many_items_at_once() -> None:
    codes = planted_codes(30_000, (64, 64, 64), seed=2).astype(np.int32) + np.array([2, 66, 130], dtype=np.int32)
    trie = Trie.build(Ragged.from_dense(codes))
    assert trie.nodes == 1 + sum(len(np.unique(codes[:, :d], axis=0)) for d in (1, 2, 3))
    assert trie.rows() == Ragged.from_dense(codes)
    half = Trie.build(Ragged.from_dense(codes[:15_000]))
    same_trie(half.extend(Ragged.from_dense(codes[15_000:])), trie)


def test_an_open_id_is_refused() -> None:
    with pytest.raises(DataError, match="prefix of another"):
        build([(2, 3), (2,)])
    with pytest.raises(DataError, match="no tokens"):
        build([(2,), ()])
    assert build([(2, 3), (2, END)]).leaves.tolist() == [2, 3]


def test_no_items() -> None:
    trie = Trie.build(Ragged.from_rows([]))
    assert (len(trie), trie.nodes) == (0, 1)
    assert len(trie.children(np.array([ROOT])).node) == 0
    assert len(trie.rows()) == 0
    same_trie(trie.extend(Ragged.from_rows([(2, 3)])), build([(2, 3)]))
    same_trie(trie.extend(Ragged.from_rows([])), trie)
