"""Rows that share the first codes of one, beside the plain definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from worlds import ragged_codes

from capsid.explain.items import sharing
from capsid.ragged import Ragged


@given(codes=ragged_codes(size=3), data=st.data())
def test_sharing_is_having_the_same_prefix(codes: list[list[int]], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(codes) - 1))
    wanted = [
        [n for n, other in enumerate(codes) if other[: depth + 1] == codes[row][: depth + 1]]
        for depth in range(len(codes[row]))
    ]
    assert [rows.tolist() for rows in sharing(Ragged.from_rows(codes), row)] == wanted
