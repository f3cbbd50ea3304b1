"""Attributes before codes: every id begins with its item's own values, whatever tokenizer follows."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import Watcher, make_table

from capsid.data.fields import Field, FieldValues
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.ids.collisions import Reassign
from capsid.ragged import Ragged
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.lookup import Atomic
from capsid.tokenize.rivals.quantisers import Chained, ResidualKMeans

INNER = ResidualKMeans(codebooks=(6, 4), restarts=1)
FIELDS = (Field(column="colour", least=2), Field(column="shape", least=1))


def table(colours: list[str | None], seed: int = 0) -> ItemTable:
    plain = make_table(np.random.default_rng(seed).normal(size=(len(colours), 5)))
    column = pl.Series("colour", colours, dtype=pl.String)
    return dataclasses.replace(plain, attributes=plain.attributes.with_columns(column))


@given(st.lists(st.sampled_from(["red", "blue", "green", None]), min_size=8, max_size=30).filter(any))
def test_first_codes_are_the_items_own_fields(colours: list[str | None]) -> None:
    whole = table(colours)
    tokenizer = Chained(fields=FIELDS, inner=INNER).fit(whole)
    codes = tokenizer.encode(whole)
    own = [FieldValues.learn(field, whole.attributes).numbers(whole.attributes) for field in FIELDS]
    np.testing.assert_array_equal(codes.dense()[:, :2], np.stack(own, axis=1))
    inner = dataclasses.replace(INNER).fit(whole)
    np.testing.assert_array_equal(codes.dense()[:, 2:], inner.encode(whole).dense())
    np.testing.assert_array_equal(tokenizer.decode(codes), inner.decode(inner.encode(whole)))
    assert tokenizer.sizes[2:] == inner.sizes
    np.testing.assert_array_equal(tokenizer.decode(codes.slices(0, np.minimum(codes.lengths, 1))), 0)


def test_new_items_get_their_fields_and_unknown_ones_code_0() -> None:
    whole = table(["red", "red", "blue", "blue", None] * 4)
    tokenizer = Chained(fields=FIELDS, inner=INNER).fit(whole)
    late = tokenizer.encode(table(["blue", "mauve", None], seed=3))
    assert late.dense()[:, 0].tolist() == [1, 0, 0]
    assert tokenizer.encode(make_table(np.ones((1, 5)))).dense()[0, 0] == 0, "a table without the column"


def test_centres_of_values_are_the_means_of_their_items() -> None:
    whole = table(["red", "red", "blue", "blue"] * 6)
    tokenizer = Chained(fields=FIELDS[:1], inner=INNER).fit(whole)
    centres, decoded = tokenizer.centres(), tokenizer.decode(tokenizer.encode(whole))
    assert centres is not None
    assert decoded is not None
    blue = np.array([c == "blue" for c in whole.attributes["colour"]])
    np.testing.assert_allclose(centres[0][1], decoded[blue].mean(0), atol=1e-5)
    np.testing.assert_array_equal(centres[0][0], 0)


def test_no_fields_is_the_inner_tokenizer() -> None:
    whole = table(["red"] * 20)
    chained, inner = Chained(inner=INNER).fit(whole, seed=4), dataclasses.replace(INNER).fit(whole, seed=4)
    assert chained.encode(whole) == inner.encode(whole)
    assert chained.sizes == inner.sizes


def test_any_tokenizer_may_follow() -> None:
    whole = table(["red", "blue"] * 5)
    tokenizer = Chained(fields=FIELDS, inner=Atomic()).fit(whole)
    assert tokenizer.decode(tokenizer.encode(whole)) is None
    assert tokenizer.centres() is None
    assert tokenizer.block == "item"
    assert Chained(inner=ResidualKMeans(block="behaviour")).block == "behaviour"


def test_a_field_that_tells_nothing_is_told() -> None:
    watcher = Watcher()
    Chained(fields=FIELDS[:1], inner=INNER).fit(table(["red"] * 9), progress=watcher)
    assert any("field colour has one value for all items" in line for line in watcher.lines)
    assert any("field colour: 1 values, unknown for 0.0 % of items" in line for line in watcher.lines)


def test_what_it_cannot_do() -> None:
    with pytest.raises(ConfigError, match="no column 'colour'"):
        Chained(fields=FIELDS).fit(make_table(np.ones((3, 2))))
    with pytest.raises(ConfigError, match="'chained' does not give"):
        ItemTokenizer(tokenizer=Chained(), collisions=Reassign()).fit(table(["red"] * 4))


def test_saved_and_loaded_it_adds_items(tmp_path: object) -> None:
    whole = table(["red", "blue", None] * 5)
    tokenizer = Chained(fields=FIELDS, inner=INNER).fit(whole)
    loaded = Chained(fields=FIELDS, inner=INNER).load_state(tokenizer.state())
    late = table(["blue", "red"], seed=9)
    assert loaded.encode(late) == tokenizer.encode(late)
    assert isinstance(loaded.encode(late), Ragged)
    for ours, theirs in zip(loaded.centres() or (), tokenizer.centres() or (), strict=True):
        np.testing.assert_array_equal(ours, theirs)
