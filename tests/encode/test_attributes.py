from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.factorised import AttributeEncoder
from capsid.errors import ConfigError, DataError
from encode.catalogue import make_table


def table_with(**columns: list) -> ItemTable:
    frame = pl.DataFrame(columns)
    return ItemTable.new_items(Vocabulary(f"i{n}" for n in range(frame.height)), frame, ())


def test_cosines_are_those_of_weighted_multi_hot_rows() -> None:
    table = table_with(tags=[["a", "b"], ["a", "c"], ["b", "c"], ["a", "d"], ["d", "e"], ["e"]])
    weight = {tag: np.log(6 / n) for tag, n in {"a": 3, "b": 2, "c": 2, "d": 2, "e": 2}.items()}
    rows = np.array([[weight[t] if t in tags else 0 for t in "abcde"] for tags in table.attributes["tags"]])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    vectors = AttributeEncoder().fit(table).transform(table)
    np.testing.assert_allclose(vectors @ vectors.T, rows @ rows.T, atol=1e-6)


def test_columns_that_look_like_attributes() -> None:
    encoder = AttributeEncoder().fit(make_table())
    assert encoder.columns_ == ("brand", "categories"), "neither titles nor prices"
    assert AttributeEncoder(columns=("brand",)).fit(make_table()).columns_ == ("brand",)


def test_values_of_one_item_or_of_all_say_nothing() -> None:
    table = table_with(tags=[["all", "x"], ["all", "x"], ["all", "y"], ["all", "only"]], kind=["k", "k", "m", "m"])
    encoder = AttributeEncoder().fit(table)
    assert set(encoder.values_ or ()) == {"tags=x", "kind=k", "kind=m"}


def test_items_without_known_values_are_zeros() -> None:
    encoder = AttributeEncoder(columns=("tags",)).fit(table_with(tags=[["a"], ["a"], ["b"], ["b"], []]))
    vectors = encoder.transform(table_with(tags=[["a"], ["new"], None]))
    assert np.any(vectors != 0, axis=1).tolist() == [True, False, False]
    assert not encoder.transform(table_with(other=["x"])).any(), "new items may lack a column"


def test_the_same_value_in_two_columns_is_two_features() -> None:
    table = table_with(a=["x", "x", "y", "y"], b=["y", "x", "y", "x"])
    assert len(AttributeEncoder().fit(table).values_ or ()) == 4


def test_bad_choices_are_explained() -> None:
    with pytest.raises(ConfigError, match="no attribute 'brnd'") as caught:
        AttributeEncoder(columns=("brnd",)).fit(make_table())
    assert "brand" in str(caught.value.hint)
    with pytest.raises(DataError, match="no value of kind is shared"):
        AttributeEncoder(columns=("kind",)).fit(table_with(kind=["a", "a"]))
    with pytest.raises(DataError, match="no attributes whose values repeat"):
        AttributeEncoder().fit(table_with(price=[1.0, 2.0]))
    with pytest.raises(ConfigError):
        AttributeEncoder(dim=0)
