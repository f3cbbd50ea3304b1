"""Probabilities over a node's children: items sum to 1, and searches find what exact scoring finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import (
    GENERATORS,
    ID_FORMS,
    MakeGenerator,
    TableModel,
    ids_of_form,
    make_ids,
    random_generator,
    random_histories,
    reader_of,
    retriever_of,
)

from capsid.decode.beam import BeamSearch
from capsid.decode.exact import ExactScoring, exact_scores
from capsid.decode.model import edge_log_probabilities, root_log_probabilities
from capsid.decode.ranked import Retriever
from capsid.decode.watch import FirstEdges
from capsid.generate.generator import TimelineGenerator
from capsid.ids.trie import ROOT, Over
from capsid.ragged import Ragged

KINDS = pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)


@KINDS
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS))
def test_items_sum_to_one(kind: MakeGenerator, seed: int, form: str) -> None:
    ids = ids_of_form(seed, form)
    reader = reader_of(random_generator(ids, seed, kind=kind), ids, over="children")
    scores_UN = exact_scores(reader, random_histories(seed, len(ids), [1, 3, 6])).double().exp()
    # Items that share an id share its probability: count each id once.
    first = reader.trie.items[reader.trie.low[reader.trie.leaves]]
    torch.testing.assert_close(scores_UN[:, first].sum(1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)


@KINDS
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS), data=st.data())
def test_a_wide_beam_is_exact_scoring(kind: MakeGenerator, seed: int, form: str, data: st.DataObject) -> None:
    ids = ids_of_form(seed, form)
    reader = reader_of(random_generator(ids, seed, kind=kind), ids, over="children")
    histories, k = random_histories(seed, len(ids), [1, 3, 9]), data.draw(st.sampled_from([1, 5, 30]))
    options = {
        "filter_history": data.draw(st.booleans()),
        "deny": data.draw(st.none() | st.just(np.array([3, 7, 11]))),
        "allow": data.draw(st.none() | st.just(np.arange(2, 18))),
    }
    wide = Retriever(reader, BeamSearch(width=10_000)).rank(histories, k, **options)
    exact = Retriever(reader, ExactScoring()).rank(histories, k, **options)
    np.testing.assert_allclose(wide.scores_UK, exact.scores_UK, rtol=1e-3, atol=1e-3)
    # Near-equal scores may change places by rounding, nothing else may: each item has its own exact score.
    exact_UN = exact_scores(reader, histories).numpy()
    for user, items in enumerate(wide.items_UK):
        kept = items[items >= 0]
        assert len(set(kept.tolist())) == len(kept)
        np.testing.assert_allclose(wide.scores_UK[user][: len(kept)], exact_UN[user, kept], rtol=1e-3, atol=1e-3)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS), over=st.sampled_from(["vocabulary", "children"]))
def test_first_tokens_in_one_matrix_are_the_edges_of_the_root(seed: int, form: str, over: Over) -> None:
    """Whether all tokens are scored, or only those that can begin an id."""
    ids = ids_of_form(seed, form)
    reader = reader_of(random_generator(ids, seed, kind=TimelineGenerator), ids, over=over)
    histories = random_histories(seed, len(ids), [1, 3, 9])
    with torch.no_grad():
        state, rows = reader.start(histories)
        edges = reader.trie.children(np.full(3, ROOT))
        slow = edge_log_probabilities(reader.network, state, rows, edges.parent, edges.token, over).view(3, -1)
        for all_tokens in (True, False):
            fast = root_log_probabilities(reader.network, state, rows, reader.root.token, over, all_tokens=all_tokens)
            torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
        first = FirstEdges(
            reader.root.token, reader.root.node, reader.trie.is_leaf(reader.root.node), slow, np.ones(slow.shape, bool)
        )
    found = first.edges
    for name, expected in (("user", edges.parent), ("token", edges.token), ("node", edges.node)):
        np.testing.assert_array_equal(getattr(found, name), expected)
    np.testing.assert_array_equal(found.leaf, reader.trie.is_leaf(edges.node))
    torch.testing.assert_close(found.score, slow.reshape(-1), rtol=0, atol=0)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS))
def test_a_filter_does_not_renormalise(seed: int, form: str) -> None:
    ids = ids_of_form(seed, form)
    retriever = retriever_of(random_generator(ids, seed, kind=TimelineGenerator), ids, over="children")
    histories = random_histories(seed, len(ids), [4])
    plain = retriever.rank(histories, 20, filter_history=False)
    filtered = retriever.rank(histories, 20, filter_history=True)
    kept = ~np.isin(plain.items_UK[0], histories[0])
    left = filtered.items_UK[0] >= 0
    assert plain.items_UK[0][kept].tolist() == filtered.items_UK[0][left].tolist()
    np.testing.assert_allclose(plain.scores_UK[0][kept], filtered.scores_UK[0][left], rtol=1e-4, atol=1e-4)


def test_tokens_that_cannot_follow_do_not_count() -> None:
    ids = make_ids([[0, 0], [0, 1], [1, 0]], (4, 4))
    tables = {(): {2: 0.3, 3: 0.1, 4: 0.6}, (2,): {6: 0.2, 7: 0.2, 8: 0.6}, (3,): {6: 0.01, 9: 0.99}}
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: tables.get(prefix, {}))
    ranked = retriever_of(model, ids, over="children").rank(Ragged.from_rows([[0]]), 3, filter_history=False)
    np.testing.assert_allclose(np.exp(ranked.scores_UK[0]), [0.375, 0.375, 0.25], rtol=1e-5)
    assert ranked.items_UK.tolist() == [[0, 1, 2]]


def test_a_hypothesis_that_keeps_its_score_wins_its_tie_by_trie_order() -> None:
    """Item 1 is certain after its first token, so it ends with the score of item 0, which ended one token earlier."""
    ids = make_ids([[0, 0, 0], [1]], (2, 1, 1))
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {2: 0.5, 3: 0.5} if not prefix else {4: 1.0, 5: 1.0})
    histories = Ragged.from_rows([[0]])
    reader = reader_of(model, ids, over="children")
    wide, exact = (r.rank(reader, histories, 1) for r in (BeamSearch(width=5), ExactScoring()))
    assert wide.items_UK.tolist() == exact.items_UK.tolist()


def test_how_much_probability_was_seen() -> None:
    ids = ids_of_form(1, "variable")
    generator, histories = random_generator(ids, 1, kind=TimelineGenerator), random_histories(1, len(ids), [2, 5])
    reader = reader_of(generator, ids, over="children")
    everything = BeamSearch(width=10_000).rank(reader, histories, 20).seen_U
    np.testing.assert_allclose(everything, 1.0, atol=1e-5)
    narrow = BeamSearch(width=2).rank(reader, histories, 1)
    assert (narrow.seen_U < 0.9999).all()
    assert (narrow.seen_U >= np.exp(narrow.scores_UK[:, 0]) - 1e-6).all()
    assert BeamSearch().rank(reader_of(generator, ids), histories, 1).seen_U is None


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), edges=st.integers(1, 60))
def test_scores_of_pairs_are_entries_of_all_scores(seed: int, edges: int) -> None:
    """Few pairs are gathered, many share a product; both equal the table, items of the history included."""
    ids = ids_of_form(seed, "variable")
    generator = random_generator(ids, seed, kind=TimelineGenerator)
    with torch.inference_mode():
        state, _ = generator.start(ids.read(random_histories(seed, len(ids), [3, 5]), last=6))
        tokens = torch.from_numpy(np.array([[2, 3, 4], [5, 2, 3]]))
        state, rows = generator.step(state, torch.zeros(2, 3, dtype=torch.long), tokens)
        whole = generator.scores(state, rows).flatten(0, 1)
        rng = np.random.default_rng(seed)
        # Pairs in order, each once, as a model may expect them.
        size = 6 * ids.layout.vocabulary
        row, token = np.divmod(np.sort(rng.permutation(size)[:edges]), ids.layout.vocabulary)
        found = generator.scores_of(state, rows, torch.from_numpy(row), torch.from_numpy(token))
    torch.testing.assert_close(found, whole[row, token], rtol=1e-4, atol=1e-4)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), chosen=st.sets(st.integers(0, 5), min_size=1))
def test_scores_of_some_rows_are_rows_of_all_scores(seed: int, chosen: set[int]) -> None:
    """Items of the history included, which add to some tokens of some rows."""
    ids = ids_of_form(seed, "variable")
    generator = random_generator(ids, seed, kind=TimelineGenerator)
    with torch.inference_mode():
        histories = random_histories(seed, len(ids), [3, 5])
        state, _ = generator.start(ids.read(histories, last=6))
        # The first tokens of items of the history, so that some of these are completed next.
        first = np.array([[ids.prefix_free[item][0] for item in history[:3]] for history in histories], dtype=np.int64)
        state, rows = generator.step(state, torch.zeros(2, 3, dtype=torch.long), torch.from_numpy(first))
        whole = generator.scores(state, rows).flatten(0, 1)
        found = generator.scores(state, rows, torch.tensor(sorted(chosen)))
    torch.testing.assert_close(found, whole[sorted(chosen)], rtol=1e-4, atol=1e-4)


@KINDS
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS))
def test_a_model_is_asked_about_pairs_in_order(kind: MakeGenerator, seed: int, form: str) -> None:
    """By row and then by token, each once, at every depth and whether or not all first tokens are scored."""
    ids = ids_of_form(seed, form)
    generator, asked = random_generator(ids, seed, kind=kind), []
    reader = reader_of(generator, ids, over="children")
    with pytest.MonkeyPatch.context() as patch:
        scores_of = generator.scores_of

        def watched(state: object, rows: torch.Tensor, row_E: torch.Tensor, token_E: torch.Tensor) -> torch.Tensor:
            asked.append(row_E * ids.layout.vocabulary + token_E)
            return scores_of(state, rows, row_E, token_E)

        patch.setattr(generator, "scores_of", watched)
        BeamSearch(width=5).rank(reader, random_histories(seed, len(ids), [1, 3, 6]), 4)
        with torch.inference_mode():
            started = reader.start(random_histories(seed, len(ids), [2, 5]))
            root_log_probabilities(reader.network, *started, reader.root.token, "children", all_tokens=False)
    assert len(asked) > 1
    assert all((pairs_E[1:] > pairs_E[:-1]).all() for pairs_E in asked)
