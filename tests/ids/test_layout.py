from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ragged_codes

from capsid.errors import DataError
from capsid.ids.collisions import Bucket, Suffix, running_number
from capsid.ids.layout import END, FIRST, PAD, TokenLayout, ending_present
from capsid.ids.merges import MergeTable
from capsid.ids.order import group_numbers
from capsid.ragged import Ragged

SIZES = (4, 7, 5, 6)


@given(codes=ragged_codes() | ragged_codes(absent=True), suffix=st.integers(0, 3))
def test_codes_become_tokens_and_come_back(codes: list[list[int]], suffix: int) -> None:
    layout = TokenLayout(SIZES, suffix)
    rng = np.random.default_rng(0)
    suffixes = rng.integers(0, suffix, len(codes)) if suffix else None
    ragged = Ragged.from_rows(codes)
    tokens = layout.tokens(ragged, suffixes)
    assert layout.codes(tokens) == ragged
    for row, (own, values) in enumerate(zip(codes, tokens)):
        present = [(d, c) for d, c in enumerate(own) if c >= 0]
        wanted = [FIRST + sum(SIZES[:d]) + c for d, c in present]
        if suffixes is not None:
            wanted.append(FIRST + sum(SIZES) + int(suffixes[row]))
        assert values.tolist() == wanted
        assert layout.depth_of[values].tolist() == [d for d, _ in present] + [len(SIZES)] * bool(suffix)
    ended = Ragged(np.append(tokens.values, END), np.append(tokens.offsets[:-1], tokens.offsets[-1] + 1))
    assert layout.codes(ended) == ragged, "the end token stands for no code"


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
        ([[-2]], None, "code -2 is outside"),
        ([[0, 0, 0]], None, "at most 2 codes"),
        ([[0, 0]], np.array([2]), "3 items share one code, but there are only 2"),
        ([[0, 0], [0, 1]], np.array([0]), "needs one suffix per item"),
        ([[0, 0]], None, "needs one suffix per item"),
    ],
)
def test_codes_that_do_not_fit(codes: list[list[int]], suffixes: np.ndarray | None, message: str) -> None:
    layout = TokenLayout((4, 7), 2 if "suffix" in message or suffixes is not None else 0)
    with pytest.raises(DataError, match=message):
        layout.tokens(Ragged.from_rows(codes), suffixes)


def test_a_token_alone_says_which_codes_it_stands_for() -> None:
    layout = TokenLayout((2, 2, 2), 2)
    table = MergeTable.of(layout.vocabulary, [4], [6], [0.9], [1])
    layout = TokenLayout((2, 2, 2), 2, table)
    assert [layout.codes_of(t) for t in (PAD, END, 2, 5, 7, 8, 10)] == [(), (), (0,), (1,), (1,), (), (0, 0)]
    assert layout.spans.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 2]
    assert layout.codes(Ragged.from_rows([[10], [2, 6], [7, 9], []])) == Ragged.from_rows(
        [[-1, 0, 0], [0, -1, 0], [-1, -1, 1], []]
    )


def test_absent_codes_at_the_end_say_nothing() -> None:
    rows = Ragged.from_rows([[0, -1, 1, -1], [-1, 2], [-1, -1], [3]])
    assert ending_present(rows) == Ragged.from_rows([[0, -1, 1], [-1, 2], [], [3]])


@given(groups=st.lists(st.integers(0, 4), max_size=20))
def test_running_number_counts_inside_groups(groups: list[int]) -> None:
    wanted = [groups[:i].count(g) for i, g in enumerate(groups)]
    assert running_number(np.array(groups, dtype=np.int64)).tolist() == wanted


@given(codes=ragged_codes(size=2, depths=2), more=ragged_codes(size=2, depths=2))
def test_suffixes_tell_colliding_items_apart_for_good(codes: list[list[int]], more: list[list[int]]) -> None:
    old = Suffix().settle(Ragged.from_rows(codes), (2, 2))
    assert old.codes == Ragged.from_rows(codes)
    suffixes = old.suffixes
    assert suffixes is not None
    assert len({(*c, -1, s) for c, s in zip(codes, suffixes.tolist())}) == len(codes)
    alone = [codes.count(c) == 1 for c in codes]
    assert (suffixes[alone] == 0).all()
    later = Suffix().settle(Ragged.from_rows(more), (2, 2), old=old).suffixes
    whole = Suffix().settle(Ragged.from_rows(codes + more), (2, 2)).suffixes
    assert later is not None
    assert whole is not None
    np.testing.assert_array_equal(np.concatenate([suffixes, later]), whole, err_msg="new items count on")
    room = Suffix().width(suffixes)
    assert room >= 2 * np.bincount(group_numbers(Ragged.from_rows(codes))).max()
    assert Suffix(capacity=5).width(suffixes) == 5


def test_a_bucket_adds_nothing() -> None:
    rows = Ragged.from_rows([[1], [1]])
    settled = Bucket().settle(rows, (2,))
    assert (settled.codes, settled.suffixes) == (rows, None)
    assert Bucket().width(None) == 0
    assert Suffix().width(Suffix().settle(Ragged.from_rows([]), (2,)).suffixes) >= 1
