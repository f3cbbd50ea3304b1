from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.encode.factorised import SMOOTHING, CollaborativeEncoder, cooccurrence, positive_pmi
from capsid.errors import ConfigError, DataError
from capsid.ragged import Ragged
from encode.catalogue import COLD, make_table, new_items, permuted, table_of

ITEMS = 6
histories = st.lists(st.lists(st.integers(0, ITEMS - 1), max_size=7), max_size=6)


def counted_by_hand(rows: list[list[int]], window: int) -> np.ndarray:
    out = np.zeros((ITEMS, ITEMS))
    for row in rows:
        for a, left in enumerate(row):
            for b, right in enumerate(row):
                if 0 < abs(a - b) <= window and left != right:
                    out[left, right] += 1.0 / abs(a - b)
    return out


@settings(deadline=None, max_examples=60)
@given(histories, st.integers(1, 9))
def test_cooccurrence_equals_counting_by_hand(rows: list[list[int]], window: int) -> None:
    counts = cooccurrence(Ragged.from_rows(rows), ITEMS, window=window)
    np.testing.assert_allclose(counts.toarray(), counted_by_hand(rows, window))


@settings(deadline=None, max_examples=60)
@given(histories)
def test_pmi_equals_the_formula(rows: list[list[int]]) -> None:
    counts = cooccurrence(Ragged.from_rows(rows), ITEMS, window=5)
    if not counts.nnz:
        return
    dense = counts.toarray()
    joint, single, context = dense / dense.sum(), dense.sum(1) / dense.sum(), dense.sum(0) ** SMOOTHING
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log(joint / np.outer(single, context / context.sum()))
    expected = np.where(dense > 0, np.maximum(pmi, 0), 0)
    np.testing.assert_allclose(positive_pmi(counts).toarray(), expected, atol=1e-12)


def test_groups_are_found_from_histories_alone() -> None:
    table = make_table(items=40, users=200)
    vectors = CollaborativeEncoder(dim=8).fit(table).transform(table)
    warm = np.arange(40 - COLD)
    cosines = vectors[warm] @ vectors[warm].T
    np.fill_diagonal(cosines, -1)
    np.testing.assert_array_equal(cosines.argmax(axis=1) % 4, warm % 4)
    assert not vectors[40 - COLD :].any(), "items nobody took in training have no evidence"


def test_new_items_get_zeros_whatever_the_last_item_is() -> None:
    table = make_table()
    turned = permuted(table, np.arange(len(table))[::-1])
    encoder = CollaborativeEncoder(dim=4).fit(turned)
    assert encoder.transform(turned)[-1].any()
    assert not encoder.transform(new_items()).any()


def test_key_follows_the_histories() -> None:
    table, other = make_table(seed=0), make_table(seed=1)
    np.testing.assert_array_equal(table.sequences.offsets, other.sequences.offsets)
    assert CollaborativeEncoder().cache_key(table) != CollaborativeEncoder().cache_key(other)


def test_groups_beyond_the_leading_components_are_zeros_not_noise() -> None:
    # Forty pairs that only ever go together: two dimensions cannot hold them all.
    rows = [[2 * g, 2 * g + 1] for g in range(40) for _ in range(1 + g % 3)]
    table = make_table(items=80)
    table = table_of(table.items, table.attributes, Ragged.from_rows(rows))
    vectors = CollaborativeEncoder(dim=2).fit(table).transform(table)
    lengths = np.linalg.norm(vectors, axis=1)
    assert ((lengths == 0) | (lengths > 1e-4 * lengths.max())).all()


def test_window_limits_what_counts() -> None:
    rows = Ragged.from_rows([[0, 1, 2, 3]])
    assert cooccurrence(rows, 4, window=1).toarray()[0].tolist() == [0, 1, 0, 0]
    assert cooccurrence(rows, 4, window=3).toarray()[0].tolist() == [0, 1, 1 / 2, 1 / 3]


def test_histories_without_company_are_an_error() -> None:
    table = make_table()
    lonely = table_of(table.items, table.attributes, Ragged.from_rows([[0], [], [1, 1]]))
    with pytest.raises(DataError, match="no two items occur together"):
        CollaborativeEncoder().fit(lonely)


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"window": 0}])
def test_bad_numbers_are_config_errors(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        CollaborativeEncoder(**wrong)
