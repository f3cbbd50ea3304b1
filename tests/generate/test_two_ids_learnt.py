"""Where each id confuses what the other tells apart, one network learns both, and their mixture knows the item."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import make_ids

from capsid.decode.mixed import Mixed
from capsid.decode.model import FittedModel
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, TermContext
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.train.options import Training

ITEMS = 8
# People take items in turn, from the last to the first again. The first id is shared by items 0 and 1, 2 and 3, ...,
# the second one by 1 and 2, 3 and 4, ..., 7 and 0.
SEQUENCES = Ragged.from_rows([[(start + i) % ITEMS for i in range(6)] for start in range(ITEMS)] * 4)


@pytest.fixture(scope="module")
def reader() -> FittedModel:
    pairs = [[i // 2] for i in range(ITEMS)]
    first, second = make_ids(pairs, (4,)), make_ids([*pairs[1:], pairs[0]], (4,))
    ids = first.with_other(second.numbered_from(first.layout.end))
    generator = TimelineGenerator(layers=1, heads=2, width=16, feedforward=16, history=6, dropout=0, repeats=False)
    generator.build(ids, np.ones(ITEMS), seed=0)
    tries = Trie.build(ids.prefix_free), Trie.build(second.numbered_from(first.layout.end).prefix_free)
    objective = Objective((NextToken(),), TermContext(ids, tries, "children"))
    training = Training(steps=120, batch_size=8, learning_rate=0.01)
    fit_generator(generator, ids, SEQUENCES, objective, training, seed=0)
    return FittedModel(generator, ids, tries, generator.history, "children")


def right(reader: FittedModel, weight: float) -> float:
    """How often the best item is the one that comes next."""
    histories = Ragged.from_rows([[i, (i + 1) % ITEMS] for i in range(ITEMS)], np.int64)
    best_U = Mixed(weights=(weight, 1 - weight)).rank(reader, histories, 1).items_UK[:, 0]
    return float((best_U == (np.arange(ITEMS) + 2) % ITEMS).mean())


def test_the_mixture_knows_what_neither_id_can_tell(reader: FittedModel) -> None:
    assert right(reader, 1.0) == right(reader, 0.0) == 0.5
    assert right(reader, 0.5) == 1.0


def test_items_that_share_an_id_share_its_probability(reader: FittedModel) -> None:
    history = Ragged.from_rows([[0, 1, 2, 3]], np.int64)
    found = Mixed().rank(reader, history, ITEMS)
    # Of item 4 both ids are sure: half of each probability. Items 5 and 3 have half of one.
    assert found.items_UK[0, 0] == 4
    assert set(found.items_UK[0, 1:3]) == {3, 5}
    np.testing.assert_allclose(np.exp(found.scores_UK[0, :3]), [0.5, 0.25, 0.25], atol=0.05)
    np.testing.assert_allclose(np.exp(found.scores_UK[0]).sum(), 1, atol=1e-5)
