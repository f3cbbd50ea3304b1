"""Ids from counts alone: sorting the codes sorts by popularity, whatever the counts, and nothing else matters."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import Watcher

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.ragged import Ragged
from capsid.tokenize.rivals.lookup import Frequency


def table(counts: list[int], names: list[str] | None = None) -> ItemTable:
    items = Vocabulary(names or [f"i{n:03d}" for n in range(len(counts))])
    return ItemTable(items, pl.DataFrame(), np.array(counts, dtype=np.int64), Ragged.from_rows([]))


COUNTS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 5000)), min_size=1, max_size=60)


@given(counts=COUNTS, codebook=st.integers(2, 9), growth=st.sampled_from([1.1, 2.0, 3.0, 10.0]))
def test_codes_in_order_are_items_by_popularity(counts: list[int], codebook: int, growth: float) -> None:
    tokenizer = Frequency(codebook=codebook, growth=growth).fit(table(counts))
    codes_NL = tokenizer.encode(table(counts)).dense()
    found = sorted(range(len(counts)), key=lambda n: tuple(codes_NL[n]))
    assert found == sorted(range(len(counts)), key=lambda n: (-counts[n], n))
    assert len({tuple(c) for c in codes_NL.tolist()}) == len(counts), "no two items share an id"
    assert (codes_NL < np.array(tokenizer.sizes)).all()
    assert max(tokenizer.sizes[1:]) <= codebook


@given(counts=COUNTS, growth=st.sampled_from([2.0, 3.0, 10.0]))
def test_a_bucket_spans_less_than_a_factor(counts: list[int], growth: float) -> None:
    bucket_N = Frequency(growth=growth).fit(table(counts)).encode(table(counts)).dense()[:, 0]
    for bucket in np.unique(bucket_N):
        inside = np.array(counts)[bucket_N == bucket]
        assert inside.max() < growth * max(inside.min(), 1)
        assert inside.min() > 0 or inside.max() == 0, "never taken is a bucket of its own"


def test_powers_begin_a_bucket() -> None:
    counts = [0, 1, 2, 3, 4, 7, 8, 1000]
    codes_NL = Frequency().fit(table(counts)).encode(table(counts)).dense()
    assert codes_NL[:, 0].tolist() == [10, 9, 8, 8, 7, 7, 6, 0]
    assert codes_NL[:, 1].tolist() == [0, 0, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(("growth", "power"), [(10.0, 1000), (3.0, 243)])
def test_rounding_splits_no_power(growth: float, power: int) -> None:
    """The logarithm of a power comes out a little too small."""
    counts = [power - 1, power, power + 1]
    bucket_N = Frequency(growth=growth).fit(table(counts)).encode(table(counts)).dense()[:, 0]
    assert bucket_N.tolist() == [1, 0, 0]


def test_ranks_are_written_in_digits() -> None:
    counts = [1] * 30
    tokenizer = Frequency(codebook=3).fit(table(counts))
    assert tokenizer.sizes == (2, 3, 3, 3, 3)
    assert tokenizer.encode(table(counts))[29].tolist() == [0, 1, 0, 0, 2]


@pytest.mark.parametrize("counts", [[5, 3, 0, 0, 1], [4, 4, 4]])
def test_new_items_have_a_count_of_nothing(counts: list[int]) -> None:
    tokenizer = Frequency(codebook=3).fit(table(counts))
    new = tokenizer.encode(table([99, 7], names=["new", "newer"]))
    assert new[0].tolist() == new[1].tolist(), "what they will be taken is not known"
    codes = [c.tolist() for c in tokenizer.encode(table(counts))]
    assert new[0].tolist() > max(codes), "behind all others, in an id of their own"
    assert new[0][0] == tokenizer.sizes[0] - 1
    assert tokenizer.encode(table([0] * len(counts))).dense().tolist() == codes, "counts of the fit, not of the table"


def test_ties_go_by_item_id() -> None:
    codes = Frequency().fit(table([2, 2, 2], names=["c", "a", "b"])).encode(table([0] * 3, names=["a", "b", "c"]))
    assert codes.dense()[:, 1].tolist() == [0, 1, 2]


def test_progress_and_seed() -> None:
    watcher = Watcher()
    first = Frequency().fit(table([9, 0, 1]), seed=1, progress=watcher).encode(table([9, 0, 1]))
    assert first == Frequency().fit(table([9, 0, 1]), seed=2).encode(table([9, 0, 1]))
    assert watcher.lines == ["frequency: items by bucket, most frequent first: 1, 0, 0, 1, 1"]


@pytest.mark.parametrize(
    ("field", "value"), [("codebook", 1), ("growth", 1.0), ("growth", float("nan")), ("growth", float("inf"))]
)
def test_impossible_settings(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"frequency.{field} must be"):
        dataclasses.replace(Frequency(), **{field: value})
