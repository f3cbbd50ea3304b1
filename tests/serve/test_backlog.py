"""The estimate of how long the queue takes, which decides who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.serve.batching import Backlog

SHORT, LONG = 3, 6


def test_a_query_costs_less_in_a_large_batch() -> None:
    backlog = Backlog(16)
    backlog.end(SHORT, 1, 0.010)
    backlog.end(SHORT, 16, 0.032)
    backlog.enter(SHORT)
    assert backlog.wait(0.0) == pytest.approx(0.010)
    for _ in range(99):
        backlog.enter(SHORT)
    assert backlog.wait(0.0) == pytest.approx(100 * 0.002)


def test_classes_have_costs_of_their_own_and_the_running_batch_counts() -> None:
    backlog = Backlog(4)
    backlog.end(SHORT, 4, 0.004)
    backlog.end(LONG, 4, 0.400)
    for kind in (SHORT, LONG, LONG, LONG, LONG):
        backlog.enter(kind)
    assert backlog.wait(0.0) == pytest.approx(0.001 + 0.400)
    for _ in range(4):
        backlog.leave(LONG)
    backlog.begin(LONG, 4, now=10.0)
    assert backlog.wait(10.1) == pytest.approx(0.001 + 0.300)
    assert backlog.wait(11.0) == pytest.approx(0.001), "a search that takes longer than expected counts no more"
    backlog.end(LONG, 4, 0.400)
    assert backlog.wait(10.1) == pytest.approx(0.001)


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(1e-4, 1.0)), min_size=1, max_size=20), st.integers(1, 300))
def test_the_estimate_lies_between_the_cheapest_and_the_dearest_search(
    searches: list[tuple[int, float]], waiting: int
) -> None:
    backlog = Backlog(16)
    for size, seconds in searches:
        backlog.end(SHORT, size, seconds)
    for _ in range(waiting):
        backlog.enter(SHORT)
    each = [seconds / size for size, seconds in searches]
    assert min(each) * waiting <= backlog.wait(0.0) * (1 + 1e-9)
    assert backlog.wait(0.0) <= max(each) * waiting * (1 + 1e-9)
