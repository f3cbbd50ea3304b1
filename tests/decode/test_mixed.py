"""Two ids per item: the mixture of both probabilities, its search, and its loss."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import ID_FORMS, ids_of_form, random_generator, random_histories, reader_of

from capsid.decode.beam import BeamSearch
from capsid.decode.exact import exact_scores
from capsid.decode.mixed import Mixed
from capsid.decode.model import FittedModel
from capsid.decode.ranked import Retriever
from capsid.errors import ConfigError, DataError
from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, TermContext
from capsid.ids.semantic_ids import SemanticIds
from capsid.memory.memory import FittedMemory, Remembering, Transitions
from capsid.ragged import Ragged

WIDE = 10_000
# Forms of the first id, and of the second, which has no merges.
FORMS = st.sampled_from(ID_FORMS)
SECOND = st.sampled_from([form for form in ID_FORMS if form != "merged"])


def two_ids(seed: int, form: str, second: str) -> SemanticIds:
    first = ids_of_form(seed, form)
    return first.with_other(ids_of_form(seed + 1, second).numbered_from(first.layout.end))


def reader(seed: int, form: str = "variable", second: str = "suffix", *, memory: int = 0) -> FittedModel:
    ids = two_ids(seed, form, second)
    found = reader_of(random_generator(ids, seed, kind=TimelineGenerator), ids, over="children")
    if not memory:
        return found
    transitions = Transitions.count(random_histories(seed, len(ids), [9] * 20), len(ids), memory)
    beside = FittedMemory(transitions, tuple(np.random.default_rng(seed).normal(size=memory)), 1.5)
    return dataclasses.replace(found, network=Remembering(found.network, beside, ids))


def exact_mixture(found: FittedModel, histories: Ragged, weight: float) -> np.ndarray:
    """Log-probability of every item by exact scoring of both ids. Shape: (users, items)."""
    out = []
    for side, share in ((found, weight), (found.on(1), 1 - weight)):
        leaf_N = side.trie.leaf_of(np.arange(len(side.ids)))
        sharing_N = (side.trie.high - side.trie.low)[leaf_N]
        with np.errstate(divide="ignore"):
            out.append(np.log(share) + exact_scores(side, histories).double().numpy() - np.log(sharing_N))
    return np.logaddexp(*out)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), form=FORMS, second=SECOND, weight=st.floats(0, 1))
def test_probabilities_of_the_catalogue_sum_to_one(seed: int, form: str, second: str, weight: float) -> None:
    found = reader(seed, form, second, memory=2)
    total_U = np.exp(exact_mixture(found, random_histories(seed, 20, [1, 3, 6]), weight)).sum(1)
    np.testing.assert_allclose(total_U, 1, atol=1e-5)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), form=FORMS, second=SECOND, data=st.data())
def test_a_wide_search_is_exact_scoring(seed: int, form: str, second: str, data: st.DataObject) -> None:
    found = reader(seed, form, second, memory=data.draw(st.sampled_from([0, 2])))
    histories, k = random_histories(seed, 20, [1, 3, 9]), data.draw(st.sampled_from([1, 5, 30]))
    weight = data.draw(st.floats(0.01, 0.99))
    options = {
        "filter_history": data.draw(st.booleans()),
        "deny": data.draw(st.none() | st.just(np.array([3, 7, 11]))),
        "allow": data.draw(st.none() | st.just(np.arange(2, 18))),
    }
    retriever = Retriever(found, Mixed(width=WIDE, weights=(weight, 1 - weight)))
    ranked = retriever.rank(histories, k, **options)
    exact_UN = exact_mixture(found, histories, weight)
    allowed = retriever.filter(histories, **options)
    if allowed is not None:
        user, item = np.divmod(np.arange(exact_UN.size), 20)
        exact_UN[~allowed.permits(user, found.trie.slots[item]).reshape(exact_UN.shape)] = -np.inf
    best_UK = np.full((3, k), -np.inf)
    best_UK[:, :20] = -np.sort(-exact_UN, axis=1)[:, :k]
    np.testing.assert_allclose(ranked.scores_UK, best_UK, rtol=1e-3, atol=1e-3)
    there = ranked.items_UK >= 0
    np.testing.assert_array_equal(there, np.isfinite(best_UK))
    # Near-equal scores may change places by rounding, nothing else may: each item has its own exact score.
    own_UK = np.take_along_axis(exact_UN, np.maximum(ranked.items_UK, 0), axis=1)
    np.testing.assert_allclose(own_UK[there], ranked.scores_UK[there], rtol=1e-3, atol=1e-3)
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in ranked.items_UK)
    if allowed is None:
        assert ranked.seen_U is not None
        np.testing.assert_allclose(ranked.seen_U, 1, atol=1e-5)


@pytest.mark.parametrize("width", [1, 3, 20])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("second_only", [False, True])
def test_all_weight_on_one_id_is_its_plain_search(width: int, filtered: bool, second_only: bool) -> None:
    found, histories = reader(3, "variable", "suffix", memory=2), random_histories(1, 20, [1, 4, 6])
    retriever = Retriever(found, Mixed(width=width, weights=(0.0, 1.0) if second_only else (1.0, 0.0)))
    mixed = retriever.rank(histories, width, filter_history=filtered)
    side = found.on(1) if second_only else found
    plain = Retriever(side, BeamSearch(width=width)).rank(histories, width, filter_history=filtered)
    np.testing.assert_array_equal(mixed.items_UK, plain.items_UK)
    np.testing.assert_array_equal(mixed.scores_UK, plain.scores_UK)
    np.testing.assert_array_equal(mixed.seen_U, plain.seen_U)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 6))
def test_a_narrow_search_scores_what_it_finds_exactly(seed: int, width: int) -> None:
    found, histories = reader(seed, "variable", "variable"), random_histories(seed, 20, [2, 5])
    ranked = Mixed(width=width).rank(found, histories, 4)
    exact_UN = exact_mixture(found, histories, 0.5)
    own_UK = np.take_along_axis(exact_UN, ranked.items_UK, axis=1)
    np.testing.assert_allclose(own_UK, ranked.scores_UK, rtol=1e-3, atol=1e-3)
    # The best items of either id alone are among the candidates, and nothing better is left out.
    sides = [BeamSearch(width=width).rank(side, histories, max(4, width)) for side in (found, found.on(1))]
    for user in range(2):
        items = np.unique(np.concatenate([side.items_UK[user] for side in sides]))
        best = -np.sort(-exact_UN[user, items])[:4]
        np.testing.assert_allclose(ranked.scores_UK[user], best, rtol=1e-3, atol=1e-3)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), form=FORMS, second=SECOND)
def test_the_loss_is_minus_the_logs_of_exact_scoring(seed: int, form: str, second: str) -> None:
    found = reader(seed, form, second)
    pieces = random_histories(seed, 20, [2, 5, 4])
    lesson = found.item_ids.lesson(pieces, last=7)
    with torch.no_grad():
        objective = Objective((NextToken(),), TermContext(found.item_ids, found.tries, "children"))
        loss = float(objective.loss(lesson, found.network.network))  # type: ignore[attr-defined]
    total = 0.0
    for row in pieces:
        for place in range(1, len(row)):
            history = Ragged.from_rows([row[:place]], np.int64)
            total -= sum(float(exact_scores(side, history)[0, row[place]]) for side in (found, found.on(1)))
    assert loss * len(lesson.tokens.values) == pytest.approx(total, rel=1e-4)


def test_both_ids_enter_and_only_the_first_is_soft() -> None:
    ids = two_ids(0, "variable", "suffix")
    batch = ids.read(Ragged.from_rows([[4, 7]], np.int64), last=6)
    wanted = [t for item in (4, 7) for t in (*ids.prefix_free[item], *ids.others[0].prefix_free[item])]
    assert batch.tokens_BL.tolist() == [wanted]
    assert batch.own == ids.prefix_free.take(np.array([4, 7]))
    assert batch.seen_as(ids.others[0].prefix_free).own == ids.others[0].prefix_free.take(np.array([4, 7]))
    assert min(ids.others[0].tokens.values) >= ids.layout.end
    assert max(ids.others[0].tokens.values) < ids.layout.vocabulary


def test_what_cannot_be_asked() -> None:
    found, histories = reader(0), random_histories(0, 20, [2])
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        Mixed().rank(found, histories, 0)
    with pytest.raises(ConfigError, match="needs over=children, got over=vocabulary"):
        Mixed().rank(dataclasses.replace(found, over="vocabulary"), histories, 1)
    with pytest.raises(ConfigError, match="one weight for each id of an item, 2, got 3"):
        Mixed(weights=(0.5, 0.25, 0.25)).rank(found, histories, 1)
    with pytest.raises(ConfigError, match="must sum to 1, got"):
        Mixed(weights=(0.5, 1.0)).check_together()
    with pytest.raises(DataError, match="before"):
        ids_of_form(0, "fixed").with_other(ids_of_form(0, "suffix"))
