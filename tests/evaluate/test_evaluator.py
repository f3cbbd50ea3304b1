from __future__ import annotations

import numpy as np
import pytest
from worlds import TableModel, make_ids, random_codes, random_generator, random_histories, retriever_of

from capsid.data.split import Cases
from capsid.decode.exact import exact_scores
from capsid.decode.ranked import Retriever
from capsid.errors import DataError
from capsid.evaluate.evaluator import Evaluation, evaluate, item_ranks, log_sums
from capsid.evaluate.metrics import ndcg_recall_slope
from capsid.ids.merges import MergeTable
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import ROOT
from capsid.ragged import Ragged

ITEMS = 30
COUNTS = np.random.default_rng(8).integers(0, 9, ITEMS)


def world(seed: int = 0, *, distinct: bool = False) -> tuple[SemanticIds, Retriever, Cases]:
    sizes = (3, 4, 3) if distinct else (3, 4)
    ids = make_ids(random_codes(seed, items=ITEMS, sizes=sizes, variable=True, distinct=distinct), sizes)
    retriever = retriever_of(random_generator(ids, seed), ids, priority=np.argsort(np.argsort(-COUNTS, kind="stable")))
    rng = np.random.default_rng(seed)
    histories = random_histories(seed, ITEMS, rng.integers(1, 9, 25).tolist())
    targets = np.array([rng.choice(np.setdiff1d(np.arange(ITEMS), h)) for h in histories])
    return ids, retriever, Cases(np.arange(25), histories, targets)


@pytest.mark.parametrize("filter_history", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_ranks_are_those_of_exact_scoring(seed: int, filter_history: bool) -> None:
    """Scores of the whole catalogue, sorted: the three readings counted by hand."""
    ids, retriever, cases = world(seed)
    found = evaluate(retriever, cases, COUNTS, filter_history=filter_history, ks=(5, 10))
    exact = exact_scores(retriever.model, cases.histories).numpy()
    for case, target in enumerate(cases.targets):
        allowed = [i for i in range(ITEMS) if not (filter_history and i in cases.histories[case])]
        # Items of one bucket have one score up to rounding; buckets must not be mixed up by it.
        buckets = {tuple(ids.prefix_free[i].tolist()): round(float(exact[case, i]), 3) for i in allowed}
        order = sorted(allowed, key=lambda i: (-buckets[tuple(ids.prefix_free[i].tolist())], -COUNTS[i], i))
        rank = order.index(target) + 1
        better = sorted(buckets, key=lambda b: -buckets[b]).index(tuple(ids.prefix_free[target].tolist())) + 1
        assert found.values["rank"][case] == (rank if rank <= 10 else 0)
        assert found.values["recall@5"][case] == (rank <= 5)
        assert found.values["recall@10:optimistic"][case] == (better <= 10)
        mates = [i for i in allowed if ids.prefix_free[i].tolist() == ids.prefix_free[int(target)].tolist()]
        first = min(order.index(m) for m in mates)
        assert found.values["recall@5:expected"][case] == pytest.approx(min(max(5 - first, 0), len(mates)) / len(mates))
    assert found.metrics["recall@10"] == pytest.approx(found.values["recall@10"].mean())


def same_values(a: Evaluation, b: Evaluation, order: np.ndarray | None = None) -> None:
    assert a.values.keys() == b.values.keys()
    for name, value in a.values.items():
        np.testing.assert_array_equal(value if order is None else value[order], b.values[name], err_msg=name)


def test_batch_size_and_order_of_cases_do_not_matter() -> None:
    _, retriever, cases = world(2)
    base = evaluate(retriever, cases, COUNTS)
    for batch in (1, 7, 100):
        other = evaluate(retriever, cases, COUNTS, batch=batch)
        same_values(base, other)
        assert other.metrics == base.metrics
        assert other.extras == base.extras
    order = np.random.default_rng(0).permutation(len(cases))
    same_values(base, evaluate(retriever, cases.take(order), COUNTS, batch=4), order)


def test_the_summary_says_what_was_asked() -> None:
    _, retriever, cases = world(3)
    found = evaluate(retriever, cases, COUNTS, split="valid", ks=(3, 8), filter_history=True)
    told = found.summary()
    assert (told["split"], told["users"], told["filter_history"]) == ("valid", 25, True)
    assert set(told["metrics"]) == {f"{m}@{k}" for m in ("recall", "ndcg", "mrr") for k in (3, 8)}
    assert "code_recall@50" in told
    assert {"recall@8:expected", "ndcg@3:optimistic"} <= set(told["variants"])
    assert sum(told["users_by_tier"].values()) == 25
    weighted = sum((told["recall@8_by_tier"][t] or 0) * n for t, n in told["users_by_tier"].items()) / 25
    assert weighted == pytest.approx(told["metrics"]["recall@8"])
    assert sum(told["exposure@8"].values()) == pytest.approx(1.0)
    assert 0 < told["coverage@8"] <= 1


def test_first_code_ranks_by_hand() -> None:
    ids = make_ids([[0, 0], [1, 0], [2, 0], [3, 0]], (5, 1))
    # The fifth code begins no id: it is likelier than all, and does not count.
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {2: 0.1, 3: 0.3, 4: 0.05, 5: 0.15, 6: 0.4})
    cases = Cases(np.arange(4), Ragged.from_rows([[0]] * 4), np.arange(4))
    found = evaluate(retriever_of(model, ids), cases, np.ones(4), ks=(1, 2))
    assert found.values["first_code_rank"].tolist() == [3, 1, 4, 2]
    assert found.extras["code_recall@10"] == 1.0
    assert found.extras["code_chance@50"] == 1.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_first_code_ranks_without_merges_are_ranks_of_tokens(seed: int) -> None:
    """Codes and tokens are one and the same then, and so must be the ranks, to the last bit of the scores."""
    ids, retriever, cases = world(seed)
    found = evaluate(retriever, cases, COUNTS, batch=100).values["first_code_rank"]
    order = np.argsort(cases.histories.lengths, kind="stable")
    scores = np.empty((len(cases), len(retriever.model.trie.children(np.array([ROOT])).token)), dtype=np.float32)
    scores[order] = retriever.model.root_scores(cases.histories.take(order))
    begin = retriever.model.trie.children(np.array([ROOT])).token.tolist()
    first = ids.tokens.values[ids.tokens.offsets[:-1][cases.targets]].tolist()
    own = scores[np.arange(len(cases)), [begin.index(t) for t in first]]
    np.testing.assert_array_equal(found, 1 + (scores > own[:, None]).sum(1))


def test_first_code_ranks_sum_over_merged_tokens() -> None:
    ids = make_ids([[0, 0], [0, 1], [1, 0], [2, 1]], (3, 2))
    # Tokens 2, 3, 4 | 5, 6; 7 is (0, 0), 8 is (2, 1): nothing but 8 begins with the code 2.
    ids = ids.with_merges(MergeTable(7, (2, 4), (5, 6), (0.9, 0.8), (1, 1)))
    assert [r.tolist() for r in ids.tokens] == [[7], [2, 6], [3, 5], [8]]
    first = {2: 0.25, 7: 0.2, 3: 0.3, 8: 0.15, 4: 0.1}
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: first if not prefix else {5: 0.5, 6: 0.5})
    cases = Cases(np.arange(4), Ragged.from_rows([[1]] * 4), np.arange(4))
    found = evaluate(retriever_of(model, ids), cases, np.ones(4), ks=(1, 2))
    # Code 0 has 0.45, code 1 has 0.3, code 2 has 0.15: its bare token, with 0.1, begins no id.
    assert found.values["first_code_rank"].tolist() == [1, 1, 2, 3]
    many = make_ids([[0, i] for i in range(60)] + [[1, 0]], (2, 60))
    many = many.with_merges(MergeTable(64, (2,) * 59, tuple(range(4, 63)), (0.9,) * 59, (1,) * 59))
    model = TableModel(many.layout.vocabulary, lambda user, prefix: dict.fromkeys(range(2, 123), 1 / 121))
    found = evaluate(retriever_of(model, many), cases, np.ones(61), ks=(1, 2))
    assert found.extras["code_chance@50"] == 1.0, "two codes in use, however many tokens begin with them"


@pytest.mark.parametrize("seed", range(5))
def test_log_sums_are_those_of_numpy(seed: int) -> None:
    """NumPy's own sum in log space is ten times as slow. Runs of one column keep their bits."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0, 1], np.sort(rng.choice(np.arange(2, 40), 7, replace=False))])
    log_UC = rng.normal(scale=30, size=(6, 40)).astype(np.float32)
    log_UC[0, starts[2] : starts[3]] = -np.inf
    log_UC[1, 0] = -np.inf
    found = log_sums(log_UC, starts)
    np.testing.assert_allclose(found, np.logaddexp.reduceat(log_UC, starts, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found[:, 0], log_UC[:, 0])


def test_an_id_match_is_not_an_item_hit() -> None:
    """Item 0 and 1 share the only likely id; item 1 is less popular."""
    ids = make_ids([[0], [0], [1]], (2,))
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {2: 0.9, 3: 0.1})
    retriever = retriever_of(model, ids, priority=np.array([0, 1, 2]))
    cases = Cases(np.arange(2), Ragged.from_rows([[2], [2]]), np.array([0, 1]))
    found = evaluate(retriever, cases, np.array([5, 1, 1]), ks=(1,))
    assert found.values["recall@1"].tolist() == [1.0, 0.0]
    assert found.values["recall@1:expected"].tolist() == [0.5, 0.5]
    assert found.values["recall@1:optimistic"].tolist() == [1.0, 1.0]


def test_a_forbidden_target_is_not_found() -> None:
    """With the filter on, a target out of the history cannot be recommended, whatever shares its id."""
    ids = make_ids([[0], [0], [1]], (2,))
    model = TableModel(ids.layout.vocabulary, lambda user, prefix: {2: 0.9, 3: 0.1})
    retriever = retriever_of(model, ids)
    histories, targets = Ragged.from_rows([[0, 2]]), np.array([0])
    ranked = retriever.rank(histories, 3, filter_history=True)
    assert item_ranks(ranked.items_UK, targets).expanded.tolist() == [0]


def test_our_own_numbers_pass_the_slope_test() -> None:
    for seed in range(3):
        _, retriever, cases = world(seed, distinct=True)
        m = evaluate(retriever, cases, COUNTS).metrics
        slope = ndcg_recall_slope(m["recall@5"], m["recall@10"], m["ndcg@5"], m["ndcg@10"])
        assert slope is None or 0.289 <= slope <= 0.3563


def test_no_cases() -> None:
    _, retriever, cases = world(0)
    with pytest.raises(DataError, match="no cases"):
        evaluate(retriever, cases.take(np.zeros(0, dtype=np.int64)), COUNTS)
