"""A reading that segments histories in context goes through training and search, and nobody else notices.

The toy reads two neighbouring items of one kind (both even or both odd) at one position. What comes next depends on
whether the last two were such a pair.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from worlds import GENERATORS, MakeGenerator, make_ids, objective_of, retriever_of

from capsid.generate.fit import fit_generator
from capsid.ids.layout import PAD, TokenLayout
from capsid.ids.reading import ItemTokens, Lesson, TokenBatch
from capsid.ragged import Ragged
from capsid.train.options import Training

ITEMS = 8


def segments(history: list[int]) -> list[list[int]]:
    """Pairs of one kind together, everything else alone."""
    out: list[list[int]] = []
    for item in history:
        if out and len(out[-1]) == 1 and (out[-1][0] - item) % 2 == 0:
            out[-1].append(item)
        else:
            out.append([item])
    return out


@dataclass(frozen=True)
class Pairs:
    """Reads pairs at one position; predicts the last item of a piece only, because earlier pairs would give it away."""

    kind: ClassVar[str] = "pairs"
    varies: ClassVar[bool] = False
    one_target: ClassVar[bool] = False

    def positions_per_item(self, layout: TokenLayout) -> int:
        return 1

    def read(self, ids: ItemTokens, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        return self._batch(ids.prefix_free, [h[-last:].tolist() for h in histories], None)

    def lesson(self, ids: ItemTokens, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
        tokens = ids.prefix_free
        rows = [p[-last:].tolist() for p in pieces]
        batch = self._batch(tokens, [r[:-1] for r in rows], [r[-1] for r in rows])
        item_M, own = np.array([r[-1] for r in rows]), tokens.take(np.array([r[-1] for r in rows]))
        before_M = np.array([len(r) - 1 for r in rows])
        return Lesson(
            batch, np.arange(len(rows)), item_M, before_M, batch.positions_B - 1, batch.lengths_B - own.lengths, own
        )

    def _batch(self, tokens: Ragged, histories: list[list[int]], targets: list[int] | None) -> TokenBatch:
        parts = [segments(h) + ([[t]] if targets else []) for h, t in zip(histories, targets or histories)]
        cells = [
            [
                (int(t), at, depth)
                for at, s in enumerate(row)
                for depth, t in enumerate(np.concatenate([tokens[i] for i in s]))
            ]
            for row in parts
        ]
        width = max(map(len, cells))
        padded = np.array([row + [(PAD, 0, 0)] * (width - len(row)) for row in cells], dtype=np.int64)
        whole = [h + ([t] if targets else []) for h, t in zip(histories, targets or histories)]
        items = Ragged.from_rows(whole, np.int64)
        return TokenBatch(
            padded[..., 0],
            padded[..., 1],
            padded[..., 2],
            np.array([len(c) for c in cells]),
            np.array([len(p) for p in parts]),
            items,
            tokens.take(items.values),
        )


def world() -> Ragged:
    """After a pair comes item 0, after two of different kinds item 1."""
    rows = []
    for a in range(2, ITEMS):
        for b in range(2, ITEMS):
            if a != b:
                rows.append([a, b, 0 if (a - b) % 2 == 0 else 1])
    return Ragged.from_rows(rows, np.int64)


@pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)
def test_a_contextual_reading_is_trained_and_searched(kind: MakeGenerator) -> None:
    codes = [[i // 4, i % 4] for i in range(ITEMS)]
    ids = dataclasses.replace(make_ids(codes, (2, 4)), reading=Pairs())
    made = kind(layers=1, heads=2, width=16, feedforward=32, dropout=0.0, embedding_dropout=0.0, history=4)
    generator = made.build(ids, np.ones(ITEMS), seed=0)
    training = Training(steps=120, batch_size=30, learning_rate=0.01, validate_every=120, ema=0.9)
    fit_generator(generator, ids, world(), objective_of(ids), training, seed=0)
    sequences = world()
    histories = Ragged.from_rows([row[:-1] for row in sequences], np.int64)
    ranked = retriever_of(generator, ids, history=4).rank(histories, 1, filter_history=True)
    assert ranked.items_UK[:, 0].tolist() == [int(row[-1]) for row in sequences]


def test_pairs_change_what_is_read() -> None:
    """Without this the test above would say nothing of the seam."""
    ids = make_ids([[i // 4, i % 4] for i in range(ITEMS)], (2, 4))
    histories = Ragged.from_rows([[2, 4, 3]], np.int64)
    plain = ids.read(histories, last=4)
    paired = dataclasses.replace(ids, reading=Pairs()).read(histories, last=4)
    assert plain.positions_B.tolist() == [3]
    assert paired.positions_B.tolist() == [2]
    assert paired.own == plain.own
