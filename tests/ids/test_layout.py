from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ragged_codes

from capsid.errors import DataError
from capsid.ids.collisions import Bucket, Suffix, running_number
from capsid.ids.layout import END, FIRST, PAD, TokenLayout
from capsid.ids.order import group_numbers
from capsid.ragged import Ragged

SIZES = (4, 7, 5, 6)


@given(codes=ragged_codes(), suffix=st.integers(0, 3))
def test_codes_become_tokens_and_come_back(codes: list[list[int]], suffix: int) -> None:
    layout = TokenLayout(SIZES, suffix)
    rng = np.random.default_rng(0)
    suffixes = rng.integers(0, suffix, len(codes)) if suffix else None
    ragged = Ragged.from_rows(codes)
    tokens = layout.tokens(ragged, suffixes)
    assert layout.codes(tokens) == ragged
    for row, (own, values) in enumerate(zip(codes, tokens)):
        wanted = [FIRST + sum(SIZES[:d]) + c for d, c in enumerate(own)]
        if suffixes is not None:
            wanted.append(FIRST + sum(SIZES) + int(suffixes[row]))
        assert values.tolist() == wanted
        assert layout.depth_of[values].tolist() == [*range(len(own)), *([len(SIZES)] if suffix else [])]
    closed = Ragged(np.append(tokens.values, END), np.append(tokens.offsets[:-1], tokens.offsets[-1] + 1))
    assert layout.codes(closed) == ragged, "the end token stands for no code"


def test_a_token_has_one_meaning() -> None:
    layout = TokenLayout(SIZES, 3)
    assert layout.vocabulary == FIRST + sum(SIZES) + 3
    assert (layout.depths, TokenLayout(SIZES).depths) == (5, 4)
    assert layout.bases.tolist() == [2, 6, 13, 18, 24]
    depth = layout.depth_of.tolist()
    assert [depth.count(d) for d in range(-1, 5)] == [FIRST, *SIZES, 3]
    assert depth[PAD] == depth[END] == -1


@pytest.mark.parametrize(
    ("codes", "suffixes", "message"),
    [
        ([[0, 7]], None, "code 7 is outside"),
        ([[-1]], None, "code -1 is outside"),
        ([[0, 0, 0]], None, "more than 2 depths"),
        ([[0, 0]], np.array([2]), "3 items share one code, but there are only 2"),
        ([[0, 0], [0, 1]], np.array([0]), "needs a suffix for every item"),
        ([[0, 0]], None, "needs a suffix for every item"),
    ],
)
def test_codes_that_do_not_fit(codes: list[list[int]], suffixes: np.ndarray | None, message: str) -> None:
    layout = TokenLayout((4, 7), 2 if "suffix" in message or suffixes is not None else 0)
    with pytest.raises(DataError, match=message):
        layout.tokens(Ragged.from_rows(codes), suffixes)


@given(groups=st.lists(st.integers(0, 4), max_size=20))
def test_running_number_counts_inside_groups(groups: list[int]) -> None:
    wanted = [groups[:i].count(g) for i, g in enumerate(groups)]
    assert running_number(np.array(groups, dtype=np.int64)).tolist() == wanted


@given(codes=ragged_codes(size=2, depths=2), more=ragged_codes(size=2, depths=2))
def test_suffixes_tell_colliding_items_apart_for_good(codes: list[list[int]], more: list[list[int]]) -> None:
    suffixes = Suffix().suffixes(Ragged.from_rows(codes))
    assert suffixes is not None
    assert len({(*c, -1, s) for c, s in zip(codes, suffixes.tolist())}) == len(codes)
    alone = [codes.count(c) == 1 for c in codes]
    assert (suffixes[alone] == 0).all()
    later = Suffix().suffixes(Ragged.from_rows(codes + more))
    assert later is not None
    np.testing.assert_array_equal(later[: len(codes)], suffixes, err_msg="old items keep their suffix")
    room = Suffix().width(suffixes)
    assert room >= 2 * np.bincount(group_numbers(Ragged.from_rows(codes))).max()
    assert Suffix(capacity=5).width(suffixes) == 5


def test_a_bucket_adds_nothing() -> None:
    assert Bucket().suffixes(Ragged.from_rows([[1], [1]])) is None
    assert Bucket().width(None) == 0
    assert Suffix().width(Suffix().suffixes(Ragged.from_rows([]))) >= 1
