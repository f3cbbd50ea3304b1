from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset, k_core
from capsid.data.planted import planted_dataset
from capsid.data.split import Cases, Holdout, cold_item_split, leave_one_out, temporal_split
from capsid.errors import ConfigError, DataError
from capsid.ragged import Ragged


def make(rows: list[list[int]], times: list[int] | None = None, items: int | None = None) -> Dataset:
    n = items or max((max(r) for r in rows if r), default=0) + 1
    return Dataset(
        "d",
        Vocabulary(f"u{i}" for i in range(len(rows))),
        Vocabulary(f"i{i}" for i in range(n)),
        Ragged.from_rows(rows),
        pl.DataFrame({"title": [f"t{i}" for i in range(n)]}),
        times=None if times is None else np.array(times),
    )


rows_strategy = st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(rows=rows_strategy, k=st.integers(1, 4))
def test_k_core_properties(rows: list[list[int]], k: int) -> None:
    data = make(rows, times=list(range(sum(map(len, rows)))), items=8)
    try:
        core = k_core(data, k)
    except DataError:
        return
    assert core.sequences.lengths.min() >= k
    assert np.bincount(core.sequences.values, minlength=len(core.items)).min() >= k
    assert k_core(core, k).fingerprint == core.fingerprint
    for number, user in enumerate(core.users):
        kept = core.items.ids(core.sequences[number])
        before = [i for i in data.items.ids(data.sequences[data.users.number(user)]) if i in core.items]
        assert kept == before
    assert core.attributes["title"].to_list() == [f"t{i[1:]}" for i in core.items]
    assert core.times is not None
    assert sorted(core.times.tolist()) == core.times.tolist()


def test_k_core_is_the_largest_one_and_needs_several_rounds() -> None:
    # Item 3 falls, so user 2 falls, so item 2 falls; the rest is a 2-core.
    core = k_core(make([[0, 1], [0, 1, 2], [2, 3]]), 2)
    assert list(core.users) == ["u0", "u1"]
    assert list(core.items) == ["i0", "i1"]
    assert core.provenance["k_core"] == "2"
    with pytest.raises(DataError, match="empty"):
        k_core(make([[0, 1]]), 5)
    with pytest.raises(ConfigError):
        k_core(make([[0, 1]]), 0)


def test_leave_one_out() -> None:
    split = leave_one_out(make([[0, 1, 2, 3], [1, 2], [], [3, 1, 0]]))
    assert [r.tolist() for r in split.train] == [[0, 1], [1, 2], [], [3]]
    assert split.valid.users.tolist() == split.test.users.tolist() == [0, 3]
    assert split.valid.targets.tolist() == [2, 1]
    assert split.test.targets.tolist() == [3, 0]
    assert [r.tolist() for r in split.test.histories] == [[0, 1, 2], [3, 1]]
    with pytest.raises(DataError):
        leave_one_out(make([[0, 1]]))


def timed() -> Dataset:
    #       times:      0  1  2  8  9     1  6  9     3  4     7  9
    return make([[0, 1, 2, 3, 4], [1, 2, 0], [2, 3], [4, 1]], [0, 1, 2, 8, 9, 1, 6, 9, 3, 4, 7, 9])


def asked(cases: Cases) -> list[tuple[int, list[int], int]]:
    return [(int(u), h.tolist(), int(t)) for u, h, t in zip(cases.users, cases.histories, cases.targets)]


def test_temporal_split_by_hand() -> None:
    # Sorted times: 0 1 1 2 3 4 6 7 8 9 9 9; validation begins at index 6 (time 6), test at index 9 (time 9).
    split = temporal_split(timed(), valid_fraction=0.25, test_fraction=0.25)
    assert [r.tolist() for r in split.train] == [[0, 1, 2], [1], [2, 3], []]
    assert asked(split.valid) == [(0, [0, 1, 2], 3), (1, [1], 2)]
    assert asked(split.test) == [(0, [0, 1, 2, 3], 4), (1, [1, 2], 0), (3, [4], 1)]
    assert split.kind == "temporal-last"


def test_the_last_or_every_item_after_the_cut_is_asked_for() -> None:
    # The test begins at index 6 (time 6), validation at index 3 (time 2).
    last = temporal_split(timed(), 0.25, 0.5)
    assert asked(last.test) == [(0, [0, 1, 2, 3], 4), (1, [1, 2], 0), (3, [4], 1)]
    assert asked(last.valid) == [(0, [0, 1], 2), (2, [2], 3)]
    each = temporal_split(timed(), 0.25, 0.5, "successive")
    assert each.train == last.train
    assert asked(each.test) == [
        (0, [0, 1, 2], 3),
        (0, [0, 1, 2, 3], 4),
        (1, [1], 2),
        (1, [1, 2], 0),
        # The user's first item has no history.
        (3, [4], 1),
    ]
    assert asked(each.valid) == [(0, [0, 1], 2), (2, [2], 3)]
    assert each.kind == "temporal-successive"
    assert each.fingerprint != last.fingerprint
    with pytest.raises(ConfigError, match="last or successive, got 'first'"):
        temporal_split(timed(), 0.25, 0.5, "first")
    with pytest.raises(ConfigError, match="no targets to choose"):
        Holdout("last", target="successive")


@pytest.mark.parametrize("target", ["last", "successive"])
def test_temporal_split_never_looks_ahead(target: str) -> None:
    data = planted_dataset(users=80)
    assert data.times is not None
    split = temporal_split(data, target=target)
    times = Ragged(data.times, data.sequences.offsets)
    last_train = max(t[len(r) - 1] for t, r in zip(times, split.train) if len(r))
    last_valid = max(times[user][len(history)] for user, history in zip(split.valid.users, split.valid.histories))
    for cases, before in ((split.valid, last_train), (split.test, last_valid)):
        for user, history, wanted in zip(cases.users, cases.histories, cases.targets):
            assert times[user][len(history)] > before
            assert data.sequences[user][: len(history) + 1].tolist() == [*history.tolist(), wanted]
    assert 0.75 < len(split.train.values) / data.interactions < 0.85


def test_temporal_split_errors() -> None:
    with pytest.raises(DataError, match="no times"):
        temporal_split(make([[0, 1, 2]]))
    with pytest.raises(ConfigError):
        temporal_split(make([[0]], [1]), 0.6, 0.6)
    with pytest.raises(DataError, match="before and after"):
        temporal_split(make([[0, 1], [1, 0]], [1, 1, 1, 1]))


def test_cold_items_never_train_and_warm_ones_are_asked_for_too() -> None:
    data = planted_dataset(users=300)
    split = cold_item_split(data, share=0.1, seed=1)
    assert split.cold is not None
    assert len(split.cold) == round(0.1 * len(np.unique(data.sequences.values)))
    assert not np.isin(split.train.values, split.cold).any()
    assert len(split.train) == len(data.users)
    base = leave_one_out(data)
    for cases, whole in ((split.valid, base.valid), (split.test, base.test)):
        assert not np.isin(cases.histories.values, split.cold).any()
        assert np.isin(cases.targets, split.cold).sum() == np.isin(whole.targets, split.cold).sum() > 0
        assert len(cases) == len(whole)
        target_of = dict(zip(whole.users.tolist(), whole.targets.tolist()))
        assert [target_of[u] for u in cases.users.tolist()] == cases.targets.tolist()
    again = cold_item_split(data, share=0.1, seed=1)
    assert (again.cold == split.cold).all()
    assert (cold_item_split(data, share=0.1, seed=2).cold != split.cold).any()
    with pytest.raises(ConfigError):
        cold_item_split(data, share=1.0)
