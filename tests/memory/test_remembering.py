"""A network with a memory beside it: search and exact scoring agree, and bonuses are what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import (
    GENERATORS,
    ID_FORMS,
    MakeGenerator,
    ids_of_form,
    make_ids,
    random_generator,
    random_histories,
    reader_of,
)

from capsid.decode.beam import BeamSearch
from capsid.decode.exact import ExactScoring, exact_scores
from capsid.encode.nearest import SHARPNESS, Neighbours
from capsid.errors import ConfigError
from capsid.generate.generator import TimelineGenerator
from capsid.memory.memory import FittedMemory, Remembering, Transitions
from capsid.ragged import Ragged

KINDS = pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)


def memory_of(
    sequences: Sequence[Sequence[int]], items: int, weights: Sequence[float], *, neighbours: int = 0
) -> FittedMemory:
    distances = len(weights) // (2 if neighbours else 1)
    counted = Transitions.count(Ragged.from_rows(sequences), items, distances)
    rng = np.random.default_rng(items)
    # Any items may be alike: nothing here depends on vectors.
    nearest = np.array([rng.permutation(items)[:neighbours] for _ in range(items)])
    near = Neighbours.of(nearest, rng.uniform(-0.1, 1, nearest.shape)) if neighbours else None
    return FittedMemory(replace(counted, near=near), tuple(weights), 1.25)


@KINDS
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS), neighbours=st.sampled_from((0, 3)))
def test_a_wide_beam_is_exact_scoring_and_items_sum_to_one(
    kind: MakeGenerator, seed: int, form: str, neighbours: int
) -> None:
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 20, 6).tolist() for _ in range(9)]
    ids = ids_of_form(seed, form)
    memory = memory_of(sequences, len(ids), rng.normal(size=4 if neighbours else 2).tolist(), neighbours=neighbours)
    histories = random_histories(seed, len(ids), [1, 3, 6])
    network = Remembering(random_generator(ids, seed, kind=kind), memory, ids)
    for over in ("children", "vocabulary"):
        model = reader_of(network, ids, over=over)
        wide, exact = (r.rank(model, histories, 20) for r in (BeamSearch(width=10_000), ExactScoring()))
        np.testing.assert_allclose(wide.scores_UK, exact.scores_UK, rtol=1e-3, atol=1e-3)
    trie = (model := reader_of(network, ids, over="children")).trie
    total_U = exact_scores(model, histories).double().exp()[:, trie.items[trie.low[trie.leaves]]].sum(1)
    torch.testing.assert_close(total_U, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)


def rise(memory: FittedMemory) -> np.ndarray:
    """How much the scores of four items change after items 3 and 0, temperature aside."""
    ids = make_ids([[0], [1], [2], [3]], (4,))
    generator = random_generator(ids, kind=TimelineGenerator)
    scores = []
    for network in (generator, Remembering(generator, replace(memory, temperature=1.0), ids)):
        with torch.no_grad():
            state, rows = network.start(ids.read(Ragged.from_rows([[3, 0]]), last=6))
            scores.append(network.scores(state, rows)[0, 0, 2:6].clone())
    return (scores[1] - scores[0]).numpy()


def test_followers_rise_by_the_logarithm_of_their_count() -> None:
    found = rise(memory_of([[0, 1], [0, 1], [0, 1], [0, 2], [3, 0]], 4, [2.0]))
    np.testing.assert_allclose(found, [0, 2 * np.log(4), 2 * np.log(2), 0], atol=1e-5)


def test_neighbours_rise_by_their_cosine() -> None:
    near = Neighbours.of(np.array([[1, 2], [0, 2], [0, 1], [0, 1]]), np.array([[0.5, -0.5]] * 4))
    counted = memory_of([[3, 0]], 4, [0.0]).transitions
    found = rise(FittedMemory(replace(counted, near=near), (0.0, 2.0)))
    np.testing.assert_allclose(found, [0, 2 * SHARPNESS * 0.5, 0, 0], atol=1e-5)


def test_a_network_of_one_id_says_so_when_it_is_asked_for_another() -> None:
    ids = make_ids([[0], [1]], (2,))
    network = Remembering(object(), memory_of([[0, 1]], 2, [1.0]), ids)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="predicts the first id"):
        network.in_system(None, ids.read(Ragged.from_rows([[0]]), last=6), 1)  # type: ignore[arg-type]
