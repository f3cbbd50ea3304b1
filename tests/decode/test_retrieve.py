"""Filters as counts over the trie, and buckets expanded into items."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import TableModel, make_ids, ragged_codes, random_codes, random_generator, retriever_of

from capsid.decode.filters import Filter, slots_of
from capsid.decode.ranked import Retriever, expand
from capsid.errors import DataError
from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged


@given(codes=ragged_codes(size=3, depths=3), data=st.data())
def test_a_node_is_open_while_an_allowed_item_is_below(codes: list[list[int]], data: st.DataObject) -> None:
    ids = make_ids(codes, (3, 3, 3))
    trie, n = Trie.build(ids.prefix_free), len(codes)
    numbers = st.lists(st.integers(0, n - 1), max_size=n)
    allow, deny, blocked = (data.draw(st.none() | numbers) for _ in range(3))
    seen = data.draw(st.none() | st.lists(numbers, min_size=2, max_size=2))
    everywhere = set(range(n)) if allow is None else set(allow)
    everywhere -= {*(deny or []), *(blocked or [])}
    options = {"allow": None if allow is None else np.array(allow), "deny": None if deny is None else np.array(deny)}
    options["blocked"] = None if blocked is None else slots_of(trie, np.array(blocked))
    rows = None if seen is None else Ragged.from_rows(seen, np.int64)
    if not everywhere:
        with pytest.raises(DataError, match="leave no item"):
            Filter.build(trie, 2, seen=rows, **options)
        return
    filtered = Filter.build(trie, 2, seen=rows, **options)
    root = trie.children(np.array([ROOT])).node
    expected = [filtered.open(np.full(len(root), user), root).tolist() for user in range(2)]
    assert filtered.open_first(2, root).tolist() == expected
    for user in range(2):
        allowed = everywhere - set(seen[user] if seen is not None else [])
        nodes = np.arange(trie.nodes)
        wanted = [bool(allowed & set(trie.items[trie.low[m] : trie.high[m]].tolist())) for m in nodes]
        assert filtered.open(np.full(trie.nodes, user), nodes).tolist() == wanted
        slots = np.arange(n)
        assert filtered.permits(np.full(n, user), slots).tolist() == [int(i) in allowed for i in trie.items]


# Items 0, 2, 4 share the id (0, 0); 1 and 3 the id (0, 1); 5 alone has (1, 0).
BUCKETS = make_ids([[0, 0], [0, 1], [0, 0], [0, 1], [0, 0], [1, 0]], (2, 2))
PRIORITY = np.array([2, 0, 1, 5, 0, 9])


def bucket_retriever() -> Retriever:
    tables = {(): {2: 0.7, 3: 0.3}, (2,): {4: 0.4, 5: 0.6}, (3,): {4: 1.0}}
    model = TableModel(BUCKETS.layout.vocabulary, lambda user, prefix: tables.get(prefix, {}))
    return retriever_of(model, BUCKETS, priority=PRIORITY)


def rank(k: int, **options: object) -> tuple[list[int], list[float]]:
    options = {"filter_history": False, **options}
    found = bucket_retriever().rank(Ragged.from_rows([[4]]), k, **options)
    return found.items_UK[0].tolist(), np.exp(found.scores_UK[0].astype(np.float64)).round(5).tolist()


def test_buckets_are_expanded_by_score_then_priority() -> None:
    """Bucket (0, 1) has 0.42, bucket (1, 0) 0.3, bucket (0, 0) 0.28; inside a bucket small priorities come first."""
    assert rank(6) == ([1, 3, 5, 4, 2, 0], [0.42, 0.42, 0.3, 0.28, 0.28, 0.28])


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_a_bucket_may_be_cut(k: int) -> None:
    assert rank(k)[0] == [1, 3, 5, 4, 2, 0][:k]


def test_more_than_there_is() -> None:
    items, scores = rank(8)
    assert items == [1, 3, 5, 4, 2, 0, -1, -1]
    assert scores[6:] == [0.0, 0.0]


def test_filtered_buckets_keep_their_other_items() -> None:
    assert rank(6, filter_history=True)[0] == [1, 3, 5, 2, 0, -1]
    assert rank(6, deny=np.array([1, 5]))[0] == [3, 4, 2, 0, -1, -1]
    assert rank(2, allow=np.array([0, 2, 3]))[0] == [3, 2]
    assert rank(3, allow=np.array([4, 5]), filter_history=True)[0] == [5, -1, -1]


def test_counts_before_and_inside_buckets() -> None:
    retriever, histories = bucket_retriever(), Ragged.from_rows([[4]])
    allowed = retriever.filter(histories, filter_history=True)
    leaves = retriever.ranker.leaves(retriever.model, histories, 6, allowed)
    found = expand(retriever.model.trie, leaves, 6, allowed)
    assert found.before_UF[0, :3].tolist() == [0, 2, 3]
    assert found.sizes_UF[0, :3].tolist() == [2, 1, 2]
    assert (found.sizes_UF[0, 3:] == 0).all()


def test_a_user_who_has_seen_everything_gets_nothing() -> None:
    found = bucket_retriever().rank(Ragged.from_rows([[0, 1, 2, 3, 4, 5], [1]]), 3, filter_history=True)
    assert found.items_UK.tolist() == [[-1, -1, -1], [3, 5, 4]]


def test_the_beam_is_wide_enough_that_k_allowed_items_remain() -> None:
    """The best leaf is blocked for this user: a search that filtered its result afterwards would return nothing."""
    codes = random_codes(0, items=40, sizes=(5, 8))
    ids = make_ids(codes, (5, 8))
    retriever = retriever_of(random_generator(ids, 3), ids, width=1, history=6)
    plain = retriever.rank(Ragged.from_rows([[0]]), 1, filter_history=False).items_UK
    best = int(plain[0, 0])
    found = retriever.rank(Ragged.from_rows([[best, 0]]), 1, filter_history=True).items_UK
    assert found[0, 0] >= 0
    assert found[0, 0] not in (best, 0)


def test_the_whole_history_is_filtered_though_only_its_end_is_read() -> None:
    ids = make_ids(random_codes(0, items=20, sizes=(5, 8)), (5, 8))
    retriever = retriever_of(random_generator(ids, 1), ids, history=6)
    long = np.arange(15)
    found = retriever.rank(Ragged.from_rows([long]), 20, filter_history=True).items_UK[0]
    assert sorted(found[found >= 0].tolist()) == [15, 16, 17, 18, 19]
    tail = retriever.rank(Ragged.from_rows([long[-6:]]), 20, filter_history=False)
    whole = retriever.rank(Ragged.from_rows([long]), 20, filter_history=False)
    np.testing.assert_array_equal(tail.items_UK, whole.items_UK)


def test_histories_that_cannot_be_read() -> None:
    with pytest.raises(DataError, match="a history is empty"):
        bucket_retriever().rank(Ragged.from_rows([[1], []]), 3, filter_history=False)
    assert bucket_retriever().rank(Ragged.from_rows([]), 3, filter_history=True).items_UK.shape == (0, 3)
