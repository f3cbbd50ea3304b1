from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capsid.train.batches import BatchPlan


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    batch_size=st.integers(1, 9),
    window=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_every_row_once_an_epoch(lengths: list[int], batch_size: int, window: int, seed: int) -> None:
    plan = BatchPlan(np.array(lengths), batch_size, seed, window)
    for epoch in (0, 1):
        batches = plan.epoch(epoch)
        assert len(batches) == len(plan)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        assert all(1 <= len(b) <= batch_size for b in batches)


def test_the_same_seed_gives_the_same_batches_and_another_others() -> None:
    lengths = np.arange(200) % 13

    def rows(seed: int, epoch: int) -> list[list[int]]:
        return [b.tolist() for b in BatchPlan(lengths, 8, seed).epoch(epoch)]

    assert rows(1, 4) == rows(1, 4)
    assert len({str(rows(s, e)) for s in (0, 1) for e in (0, 1, 2)}) == 6


def test_near_equal_lengths_come_together_in_shuffled_order() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 2000)
    batches = BatchPlan(lengths, 20, 0, window=20).epoch(0)
    padded = sum(len(b) * lengths[b].max() for b in batches)
    assert padded < 1.1 * lengths.sum()
    means = [lengths[b].mean() for b in BatchPlan(lengths, 20, 0, window=1000).epoch(0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3, "short batches must not all come first"
    mixed = BatchPlan(lengths, 20, 0, window=1).epoch(0)
    assert sum(len(b) * lengths[b].max() for b in mixed) > 1.5 * lengths.sum()
