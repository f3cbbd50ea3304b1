"""The bias of repeated items is learnt from the data and holds for whole ids, however many tokens they have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from worlds import make_ids, objective_of, pieces_of, random_codes, random_generator, reader_of

from capsid.decode.exact import exact_scores
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TimelineGenerator
from capsid.ids.reading import InContext
from capsid.ragged import Ragged
from capsid.train.options import Training

# Ids of one, two and three tokens; two items share the last one.
IDS = make_ids([[0], [1, 0], [1, 1], [2, 0, 0], [2, 0, 1], [2, 1, 2], [2, 1, 2]], (3, 2, 3))


def learnt(sequences: list[list[int]]) -> float:
    generator = TimelineGenerator(layers=1, heads=2, width=16, feedforward=16, history=6)
    generator.build(IDS, np.ones(len(IDS)), seed=0)
    fit_generator(
        generator,
        IDS,
        Ragged.from_rows(sequences),
        objective_of(IDS),
        Training(steps=60, batch_size=8, learning_rate=0.01),
        seed=0,
    )
    return float(generator.network.repeats.value().detach())


def test_the_data_say_whether_people_come_back() -> None:
    rng = np.random.default_rng(0)
    once = [rng.permutation(6)[:4].tolist() for _ in range(40)]
    again = [[a, b, a, b] for a, b in (rng.permutation(6)[:2].tolist() for _ in range(40))]
    assert learnt(once) < -1
    assert learnt(again) > 1


@pytest.mark.parametrize("item", range(6))
def test_the_number_moves_items_of_the_history_and_leaves_the_odds_of_the_others(item: int) -> None:
    generator = random_generator(IDS, kind=TimelineGenerator)
    history = Ragged.from_rows([[3, item, item]])
    scores = []
    for weight in (0.0, -0.5):
        with torch.no_grad():
            generator.network.repeats.weight.fill_(weight)
        scores.append(exact_scores(reader_of(generator, IDS), history)[0])
    change_N = scores[1] - scores[0]
    codes = [IDS.prefix_free[i].tolist() for i in range(len(IDS))]
    had = [codes[i] in (codes[3], codes[item]) for i in range(len(IDS))]
    # A score is a log-probability: what is taken from some goes to all, so others rise a little.
    assert all(change < 0 for change, mine in zip(change_N.tolist(), had) if mine)
    assert all(change >= -1e-6 for change, mine in zip(change_N.tolist(), had) if not mine)


def test_items_whose_tokens_are_merged_with_their_neighbours_count_as_repeated_too() -> None:
    """Read in context, a history holds other tokens than the ids of its items, by which it must be known."""
    # The last code of item 4 and the first of item 5 become one token.
    pairs = [(2, 17), (6, 11)]
    ids = pieces_of(random_codes(3, items=12, sizes=(4, 4, 4)), pairs).with_reading(InContext(permute=False))
    generator = random_generator(ids, 1, kind=TimelineGenerator, reads="distances")
    history = Ragged.from_rows([[4, 5, 9, 1, 0, 2]])
    read = ids.read(history, last=6)
    assert sorted(read.tokens_BL[0].tolist()) != sorted(read.own.values.tolist()), "or this test says nothing"
    scores = []
    for weight in (0.0, -0.5):
        with torch.no_grad():
            generator.network.repeats.weight.fill_(weight)
        scores.append(exact_scores(reader_of(generator, ids), history)[0])
    fallen = np.flatnonzero(scores[1] - scores[0] < -1e-6)
    assert fallen.tolist() == [0, 1, 2, 4, 5, 9]
    lesson = ids.lesson(Ragged.from_rows([[4, 5, 9, 5]]), last=6)
    added = generator.network.predict(lesson).added
    wanted = int(ids.prefix_free[5][-1])
    last = len(ids.prefix_free[5]) - 1
    assert (last, wanted) in set(zip(added.rows_E.tolist(), added.tokens_E.tolist())), "training sees the same bias"


def test_without_it_a_history_adds_nothing() -> None:
    generator = random_generator(IDS, kind=TimelineGenerator, repeats=False)
    assert generator.network.repeats is None
    lesson = IDS.lesson(Ragged.from_rows([[0, 1, 2]]), last=6)
    assert generator.network.predict(lesson).added is None
    assert generator.start(lesson.batch)[0].open is None
