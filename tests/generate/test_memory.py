"""The memory of transitions: search and training agree on it, and it learns what the data say."""

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
    loss_of,
    make_ids,
    objective_of,
    random_generator,
    random_histories,
    reader_of,
)

from capsid.decode.beam import BeamSearch
from capsid.decode.exact import ExactScoring, exact_scores
from capsid.errors import ConfigError
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.memory import REACH
from capsid.generate.next_token import NextToken
from capsid.ids.neighbours import SHARPNESS, Neighbours
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.transitions import Transitions
from capsid.ragged import Ragged
from capsid.train.options import Training

KINDS = pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)


def remembering(
    ids: SemanticIds, sequences: Sequence[Sequence[int]], distances: int = 2, neighbours: int = 0
) -> SemanticIds:
    counted = Transitions.count(Ragged.from_rows(sequences), len(ids), distances)
    rng = np.random.default_rng(len(ids))
    # Any items may be alike: nothing here depends on vectors.
    nearest = np.array([rng.permutation(len(ids))[:neighbours] for _ in range(len(ids))])
    near = Neighbours.of(nearest, rng.uniform(-0.1, 1, nearest.shape)) if neighbours else None
    return ids.with_transitions(replace(counted, near=near))


def without(transitions: Transitions, piece: Sequence[int], at: int) -> Transitions:
    """The counts without the pairs that end at one position of a sequence."""
    counts = [array.copy() for array in transitions.counts]
    for number, rows in enumerate(transitions.followers):
        if at > number:
            item = piece[at - 1 - number]
            own = np.flatnonzero((rows.row_numbers == item) & (rows.values == piece[at]))
            counts[number][own] -= 1
    return replace(transitions, counts=tuple(counts))


@KINDS
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS), neighbours=st.sampled_from((0, 3)))
def test_the_loss_is_that_of_a_search_without_the_predicted_pair(
    kind: MakeGenerator, seed: int, form: str, neighbours: int
) -> None:
    rng = np.random.default_rng(seed)
    pieces = [rng.integers(0, 8, n).tolist() for n in (2, 5, 6)]
    ids = remembering(ids_of_form(seed, form), pieces, neighbours=neighbours)
    generator = random_generator(ids, seed, kind=kind, memory=2, neighbours=neighbours)
    lesson = ids.lesson(Ragged.from_rows(pieces), last=7)
    mean = loss_of(NextToken(), ids, generator, lesson, over="children").detach()
    total = 0.0
    for piece in pieces:
        for at in range(1, len(piece)):
            reader = reader_of(generator, ids.with_transitions(without(ids.transitions, piece, at)), over="children")
            total -= float(exact_scores(reader, Ragged.from_rows([piece[:at]]))[0, piece[at]])
    assert float(mean) * len(lesson.tokens.values) == pytest.approx(total, rel=1e-4, abs=1e-3)


@KINDS
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(ID_FORMS), neighbours=st.sampled_from((0, 3)))
def test_a_wide_beam_is_exact_scoring_and_items_sum_to_one(
    kind: MakeGenerator, seed: int, form: str, neighbours: int
) -> None:
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 20, 6).tolist() for _ in range(9)]
    ids = remembering(ids_of_form(seed, form), sequences, neighbours=neighbours)
    histories = random_histories(seed, len(ids), [1, 3, 6])
    generator = random_generator(ids, seed, kind=kind, memory=2, neighbours=neighbours)
    for over in ("children", "vocabulary"):
        reader = reader_of(generator, ids, over=over)
        wide, exact = (r.rank(reader, histories, 20) for r in (BeamSearch(width=10_000), ExactScoring()))
        np.testing.assert_allclose(wide.scores_UK, exact.scores_UK, rtol=1e-3, atol=1e-3)
    trie = (reader := reader_of(generator, ids, over="children")).trie
    total_U = exact_scores(reader, histories).double().exp()[:, trie.items[trie.low[trie.leaves]]].sum(1)
    torch.testing.assert_close(total_U, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)


def test_followers_rise_by_the_logarithm_of_their_count() -> None:
    ids = remembering(make_ids([[0], [1], [2], [3]], (4,)), [[0, 1], [0, 1], [0, 1], [0, 2], [3, 0]], 1)
    generator = random_generator(ids, kind=TimelineGenerator, memory=1)
    scores = []
    for weight in (0.0, 2.0 / REACH):
        with torch.no_grad():
            generator.network.memory.weight.fill_(weight)
            state, rows = generator.start(ids.read(Ragged.from_rows([[3, 0]]), last=6))
            scores.append(generator.scores(state, rows)[0, 0, 2:6])
    rise = scores[1] - scores[0]
    np.testing.assert_allclose(rise, [0, 2 * np.log(4), 2 * np.log(2), 0], atol=1e-5)


def test_neighbours_rise_by_their_cosine() -> None:
    ids = remembering(make_ids([[0], [1], [2], [3]], (4,)), [[3, 0]], 1)
    near = Neighbours.of(np.array([[1, 2], [0, 2], [0, 1], [0, 1]]), np.array([[0.5, -0.5]] * 4))
    ids = ids.with_transitions(replace(ids.transitions, near=near))
    generator = random_generator(ids, kind=TimelineGenerator, memory=1, neighbours=2)
    scores = []
    for weight in (0.0, 2.0 / REACH):
        with torch.no_grad():
            generator.network.memory.weight.copy_(torch.tensor([0.0, weight]))
            state, rows = generator.start(ids.read(Ragged.from_rows([[3, 0]]), last=6))
            scores.append(generator.scores(state, rows)[0, 0, 2:6])
    np.testing.assert_allclose(scores[1] - scores[0], [0, 2 * SHARPNESS * 0.5, 0, 0], atol=1e-5)


def test_neighbours_need_a_memory() -> None:
    with pytest.raises(ConfigError, match=r"generator.neighbours needs a generator.memory above 0"):
        TimelineGenerator(neighbours=5).check_together()


@pytest.mark.parametrize(("form", "sign"), [("follows", 1), ("never", -1)])
def test_the_data_say_what_a_memory_is_worth(form: str, sign: int) -> None:
    """Pairs that come again and again earn a bonus; where a pair never comes twice, followers lose."""
    ids = make_ids([[n // 5, n % 5] for n in range(25)], (5, 5))
    rng = np.random.default_rng(0)
    partner = rng.permutation(25)
    if form == "follows":
        sequences = [[int(a), int(partner[a])] for a in rng.integers(0, 25, 200)]
    else:
        pairs = [(a, b) for a in range(25) for b in range(25) if a != b]
        sequences = [[a, b] for a, b in rng.permutation(pairs)[:300].tolist()]
    ids = remembering(ids, sequences, 1)
    generator = TransformerGenerator(layers=1, heads=2, width=8, feedforward=8, history=6, memory=1)
    generator.build(ids, np.ones(25), seed=0)
    training = Training(steps=80, batch_size=32, learning_rate=0.01)
    fit_generator(generator, ids, Ragged.from_rows(sequences), objective_of(ids, over="children"), training, seed=0)
    assert sign * float(generator.network.memory.weight.detach()[0]) * REACH > 0.3


def test_without_transitions_a_generator_with_memory_says_so() -> None:
    ids = make_ids([[0], [1]], (2,))
    generator = random_generator(ids, kind=TimelineGenerator, memory=1)
    with pytest.raises(ConfigError, match="read without one"):
        generator.start(ids.read(Ragged.from_rows([[0]]), last=6))
