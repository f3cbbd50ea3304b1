"""Beam search against exact scoring: with a wide beam they are the same, with a narrow one the beam finds a part."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import (
    MakeGenerator,
    TableModel,
    first_scores,
    make_ids,
    random_codes,
    random_generator,
    random_histories,
    reader_of,
    retriever_of,
)

from capsid.decode import beam
from capsid.decode.exact import exact_scores
from capsid.decode.ranked import RankedItems, Retriever
from capsid.errors import ConfigError
from capsid.generate import network
from capsid.generate.generator import PopularityGenerator, TimelineGenerator, TransformerGenerator
from capsid.ids.collisions import Suffix
from capsid.ids.layout import END
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import ROOT
from capsid.ragged import Ragged

SIZES = (4, 3, 3)
TOLERANCE = 2e-4


def world(seed: int, form: str) -> SemanticIds:
    if form == "bucket":
        return make_ids(random_codes(seed, items=20, sizes=(3, 2, 2), variable=True, distinct=False), (3, 2, 2))
    if form == "suffix":
        return make_ids(random_codes(seed, items=20, sizes=(3, 2), distinct=False), (3, 2), Suffix())
    return make_ids(random_codes(seed, items=20, sizes=SIZES, variable=form == "variable"), SIZES)


def check_ranking(
    found: RankedItems, retriever: Retriever, histories: Ragged, k: int, forbidden: list[set[int]]
) -> np.ndarray:
    """Whatever the beam returned is valid, unique, allowed and rightly scored; returns the exact scores."""
    exact = exact_scores(retriever.model, histories).numpy()
    for user, (items, scores) in enumerate(zip(found.items_UK, found.scores_UK)):
        kept = items[items >= 0]
        assert len(items) == k
        assert (items[len(kept) :] == -1).all()
        assert np.isneginf(scores[len(kept) :]).all()
        assert len(set(kept.tolist())) == len(kept)
        assert not set(kept.tolist()) & forbidden[user]
        assert (np.diff(scores[: len(kept)]) <= 0).all()
        np.testing.assert_allclose(scores[: len(kept)], exact[user, kept], rtol=TOLERANCE, atol=TOLERANCE)
    return exact


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["fixed", "variable", "bucket", "suffix"]), data=st.data())
def test_a_wide_beam_is_exact_scoring(seed: int, form: str, data: st.DataObject) -> None:
    """All filters: the beam's result is the exact ranking with the forbidden items struck out."""
    ids = world(seed, form)
    retriever = retriever_of(random_generator(ids, seed), ids)
    histories = random_histories(seed, len(ids), [1, 3, 9, 6])
    k = data.draw(st.sampled_from([1, 5, 20, 33]))
    items = st.lists(st.integers(0, 19), min_size=5, max_size=19, unique=True)
    allow = data.draw(st.none() | items)
    deny = data.draw(st.none() | st.lists(st.integers(0, 19), max_size=4, unique=True))
    filter_history = data.draw(st.booleans())
    outside = set(range(20)) - set(allow if allow is not None else range(20)) | set(deny or [])
    forbidden = [outside | (set(h.tolist()) if filter_history else set()) for h in histories]
    found = retriever.rank(
        histories,
        k,
        filter_history=filter_history,
        allow=None if allow is None else np.array(allow),
        deny=None if deny is None else np.array(deny),
    )
    exact = check_ranking(found, retriever, histories, k, forbidden)
    for user, scores in enumerate(exact):
        best = sorted((s for i, s in enumerate(scores) if i not in forbidden[user]), reverse=True)[:k]
        kept = found.scores_UK[user][found.items_UK[user] >= 0]
        np.testing.assert_allclose(kept, best, rtol=TOLERANCE, atol=TOLERANCE)


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["fixed", "variable", "suffix"]))
def test_a_narrow_beam_returns_true_scores_and_k_items(seed: int, form: str) -> None:
    ids = world(seed, form)
    retriever = retriever_of(random_generator(ids, seed), ids, width=2)
    histories = random_histories(seed, len(ids), [2, 5])
    for k in (1, 4):
        check_ranking(retriever.rank(histories, k, filter_history=False), retriever, histories, k, [set(), set()])


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["fixed", "variable", "bucket"]))
def test_a_batch_is_its_users_one_by_one(seed: int, form: str) -> None:
    ids = world(seed, form)
    retriever = retriever_of(random_generator(ids, seed), ids, width=6)
    histories = random_histories(seed, len(ids), [1, 3, 9, 6])
    together = retriever.rank(histories, 5, filter_history=True)
    for user in range(len(histories)):
        alone = retriever.rank(histories.take(np.array([user])), 5, filter_history=True)
        np.testing.assert_array_equal(alone.items_UK[0], together.items_UK[user])
        np.testing.assert_allclose(alone.scores_UK[0], together.scores_UK[user], rtol=1e-4, atol=1e-4)


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["fixed", "variable", "suffix"]), k=st.sampled_from([1, 3]))
def test_the_last_step_in_waves_changes_nothing(seed: int, form: str, k: int) -> None:
    """The last step asks the model for the best hypotheses first and leaves out the hopeless: few, or all, at once."""
    ids = world(seed, form)
    retriever = retriever_of(random_generator(ids, seed, scale=5.0), ids)
    histories = random_histories(seed, len(ids), [1, 3, 9, 6, 2])
    found = []
    for rows in (1, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(beam, "_WAVE_ROWS", rows)
            found.append(retriever.rank(histories, k, filter_history=True))
    np.testing.assert_array_equal(found[0].items_UK, found[1].items_UK)
    np.testing.assert_allclose(found[0].scores_UK, found[1].scores_UK, rtol=1e-4, atol=1e-4)
    exact = check_ranking(found[0], retriever, histories, k, [set(h.tolist()) for h in histories])
    for user, scores in enumerate(exact):
        best = sorted((s for i, s in enumerate(scores) if i not in histories[user]), reverse=True)[:k]
        np.testing.assert_allclose(found[0].scores_UK[user][: len(best)], best, rtol=TOLERANCE, atol=TOLERANCE)


def test_exact_scoring_is_a_product_of_probabilities() -> None:
    """The slow twin itself, against an even slower one, whatever its chunk."""
    ids = make_ids([[0], [0, 1], [1, 1], [0, 1, 2]], (2, 2, 3))
    rng = np.random.default_rng(0)
    tables: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}

    def probabilities(user: int, prefix: tuple[int, ...]) -> dict[int, float]:
        row = tables.setdefault((user, prefix), rng.dirichlet(np.ones(ids.layout.vocabulary)))
        return dict(enumerate(row.tolist()))

    model = TableModel(ids.layout.vocabulary, probabilities)
    reader, histories = reader_of(model, ids), Ragged.from_rows([[0], [1]])
    found = exact_scores(reader, histories).numpy()
    for user, item in itertools.product(range(2), range(4)):
        path = ids.prefix_free[item].tolist()
        expected = sum(np.log(tables[user, tuple(path[:d])][t]) for d, t in enumerate(path))
        assert found[user, item] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(exact_scores(reader, histories, chunk=3).numpy(), found, rtol=1e-5)


def uniform(ids: SemanticIds) -> TableModel:
    share = 1 / ids.layout.vocabulary
    return TableModel(ids.layout.vocabulary, lambda user, prefix: dict.fromkeys(range(ids.layout.vocabulary), share))


@pytest.mark.parametrize("k", [1, 7, 30])
@pytest.mark.parametrize("width", [1, 8, 1000])
def test_equal_scores_come_in_trie_order(k: int, width: int) -> None:
    """Large enough that a search which leaves ties to chance would show it."""
    codes = random_codes(1, items=300, sizes=(12, 40))
    ids = make_ids(codes, (12, 40))
    order = sorted(range(300), key=lambda i: codes[i])
    retriever = retriever_of(uniform(ids), ids, width=width)
    histories = Ragged.from_rows([[order[0]], [order[2], order[3], order[299]]])
    plain = retriever.rank(histories, k, filter_history=False)
    assert plain.items_UK.tolist() == [order[:k]] * 2
    filtered = retriever.rank(histories, k, filter_history=True)
    assert filtered.items_UK[0].tolist() == order[1 : k + 1]
    assert filtered.items_UK[1].tolist() == [i for i in order if i not in histories[1]][:k]


def test_ties_of_one_token_ids_do_not_depend_on_the_company() -> None:
    ids = make_ids([[i] for i in range(400)], (400,))
    counts = np.random.default_rng(0).integers(0, 4, 400)
    retriever = retriever_of(PopularityGenerator().build(ids, counts, seed=0), ids, width=10, history=1)
    expected = np.lexsort([np.arange(400), -counts])
    histories = random_histories(0, 400, [1, 350, 5])
    together = retriever.rank(histories, 10, filter_history=True).items_UK
    for user in range(3):
        wanted = expected[~np.isin(expected, histories[user])][:10]
        assert together[user].tolist() == wanted.tolist()
        alone = retriever.rank(histories.take(np.array([user])), 10, filter_history=True).items_UK
        assert alone[0].tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("short", "wanted"),
    [(0.30, [1, 0]), (0.45, [0, 1]), (0.20, [1, 2])],
)
@pytest.mark.parametrize(("width", "k"), [(2, 2), (50, 2), (1, 1), (50, 1)])
def test_finished_and_unfinished_compete(short: float, wanted: list[int], width: int, k: int) -> None:
    """Item 0 ends after one token with probability `short` and is finished first; item 1 goes on behind a likelier
    first token and ends at 0.35 after three tokens, item 2 at 0.25.

    A search that stops at the first finished hypotheses returns item 0 whatever `short` is; one that prefers long ids
    never does.
    """
    ids = make_ids([[0], [1, 0, 0], [1, 0, 1]], (2, 1, 2))
    a, b, c, x, y = 2, 3, 4, 5, 6
    rest = 1 - short - 0.6
    tables = {
        (): {a: short, b: 0.6, **({c: rest} if rest > 0 else {})},
        (b,): {c: 1.0},
        (b, c): {x: 0.35 / 0.6, y: 0.25 / 0.6},
    }
    total = sum(tables[()].values())
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: tables.get(prefix, {}))
    ranked = retriever_of(model, ids, width=width).rank(Ragged.from_rows([[0]]), k, filter_history=False)
    assert ranked.items_UK[0].tolist() == wanted[:k]
    by_item = {0: short / total, 1: 0.35 / total, 2: 0.25 / total}
    np.testing.assert_allclose(np.exp(ranked.scores_UK[0]), [by_item[i] for i in wanted[:k]], rtol=1e-5)


def test_a_hair_above_the_bound_is_still_followed() -> None:
    """The k-th finished item has 0.40, the unfinished hypothesis 0.41, and it ends at 0.405."""
    ids = make_ids([[0], [1, 0]], (3, 2))
    tables = {(): {2: 0.40, 3: 0.41, 4: 0.19}, (3,): {5: 0.405 / 0.41, 6: 1 - 0.405 / 0.41}}
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: tables.get(prefix, {}))
    ranked = retriever_of(model, ids).rank(Ragged.from_rows([[0]]), 1, filter_history=False)
    assert ranked.items_UK.tolist() == [[1]]
    assert float(np.exp(ranked.scores_UK[0, 0])) == pytest.approx(0.405, rel=1e-5)


def test_the_search_stops_when_nothing_unfinished_can_win() -> None:
    ids = make_ids([[0], [1, 0, 0], [1, 0, 1]], (2, 1, 2))
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {2: 0.9, 3: 0.1} if not prefix else {4: 0.5, 5: 0.5})
    ranked = retriever_of(model, ids).rank(Ragged.from_rows([[0]]), 1, filter_history=False)
    assert ranked.items_UK.tolist() == [[0]]
    assert {prefix for _, prefix in model.asked} == {()}, "no step was needed"


def test_an_end_token_competes_with_going_on() -> None:
    """Items 0 and 1 share a first token; item 0 ends there."""
    ids = make_ids([[0], [0, 1], [1]], (2, 2))
    end, go = 0.2, 0.8
    tables = {(): {2: 0.6, 3: 0.4}, (2,): {END: end, 5: go}}
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: tables.get(prefix, {}))
    ranked = retriever_of(model, ids).rank(Ragged.from_rows([[0]]), 3, filter_history=False)
    assert ranked.items_UK.tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(np.exp(ranked.scores_UK[0]), [0.48, 0.4, 0.12], rtol=1e-5)


def test_invalid_tokens_are_left_out_without_renormalising() -> None:
    ids = make_ids([[0], [1]], (4,))
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {2: 0.1, 3: 0.2, 4: 0.7})
    ranked = retriever_of(model, ids).rank(Ragged.from_rows([[0]]), 2, filter_history=False)
    np.testing.assert_allclose(np.exp(ranked.scores_UK[0]), [0.2, 0.1], rtol=1e-5)
    assert ranked.items_UK.tolist() == [[1, 0]]


def test_users_that_end_at_different_times() -> None:
    """User 0 is done after one step, user 1 needs three: the one must not disturb the other."""
    ids = make_ids([[0], [1, 0, 0], [1, 0, 1]], (2, 1, 2))
    tables = {
        0: {(): {2: 0.98, 3: 0.02}},
        1: {(): {2: 0.01, 3: 0.99}, (3,): {4: 1.0}, (3, 4): {5: 0.3, 6: 0.7}},
    }
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: tables[user].get(prefix, {}))
    ranked = retriever_of(model, ids).rank(Ragged.from_rows([[0], [0]]), 1, filter_history=False)
    assert ranked.items_UK.tolist() == [[0], [2]]
    np.testing.assert_allclose(np.exp(ranked.scores_UK[:, 0]), [0.98, 0.693], rtol=1e-5)


def test_first_scores_are_those_of_the_root() -> None:
    ids = world(5, "fixed")
    generator = random_generator(ids, 5)
    histories = random_histories(5, len(ids), [2, 4])
    reader = reader_of(generator, ids)
    _, logits = first_scores(generator, ids.read(histories, last=6))
    wanted = logits.log_softmax(-1).detach().numpy()[:, reader.trie.children(np.array([ROOT])).token]
    np.testing.assert_allclose(reader.root_scores(histories), wanted, atol=1e-5)


def test_k_must_be_positive() -> None:
    ids = world(0, "fixed")
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        retriever_of(random_generator(ids), ids).rank(Ragged.from_rows([[0]]), 0, filter_history=False)


def test_the_search_leaves_no_gradients() -> None:
    ids = world(0, "fixed")
    generator = random_generator(ids)
    generator.network.train()
    generator.network.eval()
    ranked = retriever_of(generator, ids).rank(Ragged.from_rows([[0]]), 2, filter_history=False)
    assert isinstance(ranked.scores_UK, np.ndarray)
    assert all(p.grad is None for p in generator.network.parameters())
    assert torch.is_grad_enabled()


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from([TransformerGenerator, TimelineGenerator]))
def test_dead_beams_change_nothing_where_they_are_left_out(seed: int, kind: MakeGenerator) -> None:
    """Users differ in how many hypotheses can still win, so beams of some are dead while others go on."""
    ids = make_ids(random_codes(seed, items=60, sizes=(4, 4, 4), variable=True), (4, 4, 4))
    reader = reader_of(random_generator(ids, seed, kind=kind), ids, over="children")
    histories = random_histories(seed, len(ids), [1, 3, 9, 2])
    lists = []
    for many in (1, 1 << 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(network, "MANY_BEAMS", many)
            lists.append(beam.BeamSearch(width=12).rank(reader, histories, 3))
    np.testing.assert_array_equal(lists[0].items_UK, lists[1].items_UK)
    np.testing.assert_allclose(lists[0].scores_UK, lists[1].scores_UK, rtol=1e-4, atol=1e-4)
