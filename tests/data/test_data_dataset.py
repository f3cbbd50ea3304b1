from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset, choose_text_fields, coverage
from capsid.errors import DataError
from capsid.ragged import Ragged


def make() -> Dataset:
    frame = pl.DataFrame({"title": ["A", "B", None], "keywords": ["a", "b", "c"]})
    return Dataset(
        "d", Vocabulary(["u", "v"]), Vocabulary(["x", "y", "z"]), Ragged.from_rows([[0, 1], [2]]), frame, np.arange(3)
    )


def test_fingerprint_sees_every_part() -> None:
    data = make()
    others = [
        replace(data, users=Vocabulary(["u", "w"])),
        replace(data, items=Vocabulary(["x", "y", "w"])),
        replace(data, sequences=Ragged.from_rows([[0, 2], [2]])),
        replace(data, sequences=Ragged.from_rows([[0], [1, 2]])),
        replace(data, times=np.array([0, 1, 3])),
        replace(data, times=None),
        replace(data, attributes=data.attributes.with_columns(title=pl.lit("C"))),
        replace(data, text_fields=("title",)),
    ]
    assert len({d.fingerprint for d in [data, *others]}) == len(others) + 1
    assert make().fingerprint == data.fingerprint


def test_parts_that_do_not_fit() -> None:
    data = make()
    with pytest.raises(DataError, match="1 users but 2 sequences"):
        replace(data, users=Vocabulary(["u"]))
    with pytest.raises(DataError, match="2 items but 3 rows"):
        replace(data, items=Vocabulary(["x", "y"]))
    with pytest.raises(DataError, match="times"):
        replace(data, times=np.arange(4))


def test_titles_shown_to_people() -> None:
    assert [make().title(i) for i in range(3)] == ["A", "B", "c"]


def frame(titles: int, *, brand: bool = True, keywords: bool = True) -> pl.DataFrame:
    columns: dict[str, list[object]] = {
        "title": ["t" if i < titles else None for i in range(100)],
        "categories": [["c"]] * 100,
    }
    if brand:
        columns["brand"] = ["b"] * 50 + [""] * 50
    if keywords:
        columns["keywords"] = ["k"] * 100
    return pl.DataFrame(columns)


def test_templates_of_the_protocol() -> None:
    assert choose_text_fields(frame(100)) == ("title", "brand", "categories")  # Beauty
    assert choose_text_fields(frame(53)) == ("keywords", "brand", "categories")  # Sports
    assert choose_text_fields(frame(99, brand=False)) == ("title", "categories")  # Toys
    assert choose_text_fields(frame(53, keywords=False)) == ("title", "brand", "categories")
    assert choose_text_fields(pl.DataFrame({"note": ["n"], "year": [3]})) == ("note",)
    assert coverage(frame(53), "brand") == 0.5
    assert coverage(frame(53), "none") == 0.0
    assert coverage(pl.DataFrame({"tags": [["a"], [], ["b"], None]}), "tags") == 0.5
