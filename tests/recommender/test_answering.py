"""Queries together give what each gives alone; retired items are never in an answer."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_recipes import small, world

from capsid.answering import Query
from capsid.errors import ConfigError, DataError
from capsid.recommender import Recommender

ITEMS = list(world().items)
NAMES = st.lists(st.sampled_from(ITEMS), max_size=8).map(tuple)
QUERIES = st.lists(
    st.builds(
        Query,
        history=NAMES,
        k=st.sampled_from([1, 3, 10, 30]),
        filter_history=st.booleans(),
        allow=st.none() | st.just(tuple(ITEMS[:20])),
        deny=NAMES.map(lambda names: names[:4]),
    ),
    min_size=1,
    max_size=6,
)


@cache
def fitted() -> Recommender:
    return Recommender(small("rq-kmeans")).fit(world())


def fresh() -> Recommender:
    """A recommender of its own over the same fitted parts."""
    other = Recommender(fitted().recipe)
    other.fitted_, other.catalogue_ = fitted().fitted, fitted().catalogue_
    return other


@given(queries=QUERIES, retired=st.sets(st.sampled_from(ITEMS), max_size=30))
def test_together_is_as_alone_and_nothing_forbidden_is_in_it(queries: list[Query], retired: set[str]) -> None:
    recommender = fresh()
    recommender.retire(retired)
    together = recommender.answerer.answer(queries)
    assert len(together) == len(queries)
    for query, found in zip(queries, together):
        (alone,) = recommender.answerer.answer([query])
        assert (found.items, found.titles, found.personal) == (alone.items, alone.titles, alone.personal)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
        forbidden = {*retired, *query.deny, *(query.history if query.filter_history else ())}
        allowed = set(ITEMS if query.allow is None else query.allow) - forbidden
        assert set(found.items) <= allowed
        assert len(found) == min(query.k, len(allowed))


def test_retired_items_stay_away_until_they_are_restored(tmp_path: Path) -> None:
    recommender, history = fresh(), ITEMS[:3]
    before = recommender.recommend(history, 10)
    gone = before.items[:4]
    recommender.retire(gone)
    after = recommender.recommend(history, 10)
    assert after.items[:6] == before.items[4:10], "the others keep their order"
    assert not set(gone) & set(recommender.recommend([], 72).items), "nor are they popular"
    assert recommender.recommend([*history, gone[0]], 5).personal, "a history may hold them"
    recommender.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert loaded.recommend(history, 10) == after
    loaded.restore(gone)
    assert loaded.recommend(history, 10) == before
    with pytest.raises(DataError, match="unknown id 'nobody'"):
        loaded.retire(["nobody"])


def test_when_everything_is_retired_answers_are_empty() -> None:
    recommender = fresh()
    recommender.retire(ITEMS)
    assert recommender.recommend(ITEMS[:2]).items == recommender.recommend([]).items == ()
    recommender.restore(ITEMS[5:])
    assert recommender.recommend(ITEMS[:2], allow=ITEMS[:3]).items == ()
    assert len(recommender.recommend(ITEMS[:2], 100)) == len(ITEMS) - 5


def test_queries_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="k must be a whole number from 1 to 100,000, got 0"):
        Query(("a",), 0)
    with pytest.raises(DataError, match="unknown must be raise or drop, got 'ignore'"):
        Query(("a",), unknown="ignore")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="unknown id 'x'"):
        fresh().recommend(["x"])
    assert not fresh().recommend(["x"], unknown="drop").personal
