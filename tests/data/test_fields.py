"""Categorical fields: which values count, which number an item has, and what is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.data.fields import UNKNOWN, Field, FieldValues, field_numbers, learn_fields
from capsid.errors import ConfigError, DataError

PATHS = pl.DataFrame(
    {"categories": [["A", "x"], ["A", "y"], ["A", "x", "deep"], None, [], ["A", ""]], "size": [1, 2, 1, None, 2, 2]},
    schema={"categories": pl.List(pl.String), "size": pl.Int64},
)


def test_levels_of_a_path_and_numbers_as_names() -> None:
    assert Field(level=1).values(PATHS) == ["x", "y", "x", None, None, None]
    assert Field(level=2).values(PATHS) == [None, None, "deep", None, None, None]
    size = FieldValues.learn(Field(column="size", least=1), PATHS)
    assert size.names == ("1", "2")
    assert size.numbers(PATHS).tolist() == [1, 2, 1, 0, 2, 2]
    assert (Field(level=1).name, Field(column="brand").name) == ("categories[1]", "brand")


def test_rare_missing_and_new_values_are_unknown() -> None:
    values = FieldValues.learn(Field(level=1, least=2), PATHS)
    assert values.names == ("x",)
    assert len(values) == 2
    assert values.numbers(PATHS).tolist() == [1, 0, 1, 0, 0, 0]
    assert values.numbers(pl.DataFrame({"categories": [["B", "new"]]})).tolist() == [UNKNOWN]
    assert values.numbers(pl.DataFrame({"title": ["no such column"]})).tolist() == [UNKNOWN]


@given(st.lists(st.sampled_from("abcd") | st.none(), min_size=1, max_size=30), st.integers(1, 4))
def test_numbers_against_a_plain_count(column: list[str | None], least: int) -> None:
    frame = pl.DataFrame({"brand": column}, schema={"brand": pl.String})
    counts = Counter(v for v in column if v is not None)
    if not counts:
        with pytest.raises(DataError, match="no item has a value of the field brand"):
            FieldValues.learn(Field(column="brand", least=least), frame)
        return
    values = FieldValues.learn(Field(column="brand", least=least), frame)
    for value, number in zip(column, values.numbers(frame)):
        known = value is not None and counts[value] >= least
        assert (number > UNKNOWN) == known
        assert not known or values.names[number - 1] == value


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="no column 'catgories'") as caught:
        FieldValues.learn(Field(column="catgories"), PATHS)
    assert "'categories'" in (caught.value.hint or "")
    with pytest.raises(DataError, match=r"no item has a value of the field categories\[7\]"):
        FieldValues.learn(Field(level=7), PATHS)
    with pytest.raises(ConfigError, match="level must be at least 0"):
        Field(level=-1)


def test_several_fields_side_by_side() -> None:
    learnt = learn_fields((Field(least=1), Field(level=1, least=1)), PATHS)
    np.testing.assert_array_equal(field_numbers(learnt, PATHS), [[1, 1], [1, 2], [1, 1], [0, 0], [0, 0], [1, 0]])
    assert field_numbers((), PATHS).shape == (6, 0)
