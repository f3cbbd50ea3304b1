"""Beam search fused with item vectors: each side alone is what it should be, and together they multiply."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from worlds import make_ids, random_codes, random_generator, random_histories, reader_of

from capsid.decode.beam import BeamSearch
from capsid.decode.exact import exact_scores
from capsid.decode.filters import Filter
from capsid.decode.fusion import BeamFusion
from capsid.decode.model import FittedModel
from capsid.errors import ConfigError
from capsid.generate.dense_items import DenseItems, DenseNetwork
from capsid.generate.generator import TimelineGenerator
from capsid.ragged import Ragged

ITEMS, WIDE = 40, 10_000
IDS = make_ids(random_codes(5, items=ITEMS, sizes=(4, 3, 2), variable=True, distinct=False), (4, 3, 2))
HISTORIES = random_histories(1, ITEMS, [1, 4, 6, 3])


def reader(seed: int = 0) -> FittedModel:
    network = DenseNetwork(5, 8, 4, 16, reads=True)
    x_NI = np.random.default_rng(seed).normal(size=(ITEMS, 5)).astype(np.float32)
    network.reset(x_NI, torch.Generator().manual_seed(seed))
    generator = random_generator(IDS, seed, kind=TimelineGenerator)
    priority = np.random.default_rng(seed).permutation(ITEMS)
    found = reader_of(generator, IDS, priority=priority, over="children")
    return dataclasses.replace(found, dense=DenseItems.of(network, x_NI))


def cosines(given: FittedModel) -> np.ndarray:
    """Of every item's vector and what is expected after its id, by the rows of training. Shape: (users, items)."""
    dense = given.dense
    assert isinstance(dense, DenseItems)
    out = np.empty((len(HISTORIES), ITEMS))
    for user, history in enumerate(HISTORIES):
        pieces = Ragged.from_rows([[*history, item] for item in range(ITEMS)], np.int64)
        lesson = IDS.lesson(pieces, last=7)
        network = given.network.network  # type: ignore[attr-defined]
        ends_MD = network.predict(lesson, dense.inputs(lesson.batch), closing=True).ends_MD
        last_M = lesson.before_M == len(history)
        expected = dense.expected(ends_MD[torch.from_numpy(last_M)])
        out[user] = F.cosine_similarity(expected, dense.vectors_NC).detach().numpy()
    return out


def best(scores_UN: np.ndarray, k: int) -> list[list[int]]:
    return np.argsort(-scores_UN, axis=1, kind="stable")[:, :k].tolist()


def filtered(given: FittedModel) -> Filter:
    return Filter.build(given.trie, len(HISTORIES), seen=HISTORIES, deny=np.array([2, 3, 30]))


@pytest.mark.parametrize("width", [3, WIDE])
@pytest.mark.parametrize("with_filter", [False, True])
def test_without_vectors_it_is_beam_search(width: int, with_filter: bool) -> None:
    given = reader()
    allowed = filtered(given) if with_filter else None
    wide = BeamFusion(width=width, dense_temperature=0.0).rank(given, HISTORIES, 12, allowed)
    # As many finished ids as fusion compares.
    plain = BeamSearch(width=width).rank(given, HISTORIES, max(12, min(width, ITEMS)), allowed)
    np.testing.assert_array_equal(wide.items_UK, plain.items_UK[:, :12])
    assert wide.seen_U is not None


def test_without_ids_it_is_the_exact_order_of_vectors() -> None:
    given = reader()
    found = BeamFusion(width=WIDE, beam_temperature=0.0, dense_temperature=3.0).rank(given, HISTORIES, ITEMS)
    assert found.items_UK.tolist() == best(cosines(given), ITEMS)


def test_both_are_multiplied() -> None:
    given = reader(1)
    found = BeamFusion(width=WIDE, beam_temperature=0.7, dense_temperature=5.0).rank(given, HISTORIES, ITEMS)
    ids_UN = 0.7 * exact_scores(given, HISTORIES).numpy().astype(np.float64)
    _, first = np.unique(given.trie.leaf_of(np.arange(ITEMS)), return_index=True)
    # Over ids, not items: a bucket counts once.
    ids_UN = ids_UN - np.logaddexp.reduce(ids_UN[:, first], axis=1, keepdims=True)
    dense_UN = 5.0 * cosines(given)
    dense_UN = dense_UN - np.logaddexp.reduce(dense_UN, axis=1, keepdims=True)
    scores_UN = ids_UN + dense_UN
    assert len(first) < ITEMS
    assert found.items_UK.tolist() == best(scores_UN, ITEMS)
    assert found.scores_UK == pytest.approx(-np.sort(-scores_UN, axis=1), abs=1e-3)
    filter_ = filtered(given)
    kept = BeamFusion(width=WIDE, beam_temperature=0.7, dense_temperature=5.0).rank(given, HISTORIES, ITEMS, filter_)
    for user, row in enumerate(found.items_UK.tolist()):
        allowed = [i for i in row if i not in {2, 3, 30, *HISTORIES[user].tolist()}]
        assert kept.items_UK[user].tolist() == allowed + [-1] * (ITEMS - len(allowed)), "a filter keeps the order"


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_within_ids_it_is_the_probability_of_an_id_times_that_of_its_item(temperature: float) -> None:
    given = reader(1)
    fusion = BeamFusion(width=WIDE, dense_temperature=temperature, among="id")
    found = fusion.rank(given, HISTORIES, ITEMS)
    leaf_N = given.trie.leaf_of(np.arange(ITEMS))
    dense_UN = temperature * cosines(given)
    for leaf in np.unique(leaf_N):
        own = leaf_N == leaf
        dense_UN[:, own] -= np.logaddexp.reduce(dense_UN[:, own], axis=1, keepdims=True)
    # Over the children of a node, probabilities of ids sum to 1 already.
    scores_UN = exact_scores(given, HISTORIES).numpy().astype(np.float64) + dense_UN
    np.testing.assert_allclose(np.exp(scores_UN).sum(1), 1, atol=1e-4)
    np.testing.assert_allclose(found.scores_UK, -np.sort(-scores_UN, axis=1), atol=1e-3)
    if temperature:
        assert found.items_UK.tolist() == best(scores_UN, ITEMS)
    kept = fusion.rank(given, HISTORIES, ITEMS, filtered(given))
    for user, row in enumerate(found.items_UK.tolist()):
        allowed = [i for i in row if i not in {2, 3, 30, *HISTORIES[user].tolist()}]
        assert kept.items_UK[user].tolist() == allowed + [-1] * (ITEMS - len(allowed)), "a filter keeps the order"


def test_within_ids_that_no_two_items_share_vectors_change_nothing() -> None:
    given = reader()
    codes = np.array([[n // 12, n // 4 % 3, n % 4] for n in range(ITEMS)])
    unique = make_ids(Ragged.from_dense(codes), (4, 3, 4))
    generator = random_generator(unique, 0, kind=TimelineGenerator)
    given = dataclasses.replace(reader_of(generator, unique, over="children"), dense=given.dense)
    for allowed in (None, Filter.build(given.trie, len(HISTORIES), deny=np.arange(3))):
        plain = BeamSearch(width=WIDE).rank(given, HISTORIES, ITEMS, allowed)
        fused = BeamFusion(width=WIDE, dense_temperature=100.0, among="id").rank(given, HISTORIES, ITEMS, allowed)
        np.testing.assert_array_equal(fused.items_UK, plain.items_UK)


def test_a_narrow_search_compares_the_items_of_its_best_ids() -> None:
    given = reader(2)
    found = BeamFusion(width=5).rank(given, HISTORIES, 4)
    leaves = BeamSearch(width=5).leaves(given, HISTORIES, 5).leaves_UF
    chosen = np.isin(given.trie.leaf_of(found.items_UK.ravel()).reshape(found.items_UK.shape), leaves)
    assert chosen.all()
    shorter = BeamFusion(width=5).rank(given, HISTORIES, 2)
    np.testing.assert_array_equal(shorter.items_UK, found.items_UK[:, :2])


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        BeamFusion().rank(reader(), HISTORIES, 0)
    with pytest.raises(ConfigError, match="needs item vectors"):
        BeamFusion().rank(dataclasses.replace(reader(), dense=None), HISTORIES, 3)


def test_histories_are_read_once() -> None:
    given, read = reader(), []
    start = given.network.start
    given.network.start = lambda *batch: read.append(batch) or start(*batch)  # type: ignore[method-assign]
    BeamFusion(width=5).rank(given, HISTORIES, 4)
    assert len(read) == 1
