"""Several of the best weights: which are kept, what their mean is, and that a training uses it only if it is better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from capsid.base.run_options import CheckpointFile
from capsid.train.batches import BatchPlan
from capsid.train.checkpoint import NEVER_VALIDATED, Snapshots
from capsid.train.lanes import Loss
from capsid.train.loop import Task, train
from capsid.train.options import Training


@given(metrics=st.lists(st.integers(0, 5), min_size=1, max_size=12), most=st.integers(1, 4))
def test_the_best_are_kept_and_of_equal_ones_the_earlier(metrics: list[int], most: int) -> None:
    kept = Snapshots(most)
    kept.offer(0, NEVER_VALIDATED, dict)
    for step, metric in enumerate(metrics, 1):
        kept.offer(step, metric, dict)
    expected = sorted(enumerate(metrics, 1), key=lambda pair: -pair[1])[:most]
    assert [(s.step, s.metric) for s in kept.kept] == expected


def test_weights_are_made_only_if_they_are_kept() -> None:
    kept = Snapshots(1)
    kept.offer(1, 0.5, dict)
    kept.offer(2, 0.4, lambda: pytest.fail("nobody wants these"))


def test_the_mean_and_what_is_no_float() -> None:
    kept = Snapshots(2)
    for step, metric in ((1, 0.2), (2, 0.9), (3, 0.1)):
        kept.offer(step, metric, lambda step=step: {"w": torch.tensor([float(step)]), "n": torch.tensor(step)})
    mean = kept.mean()
    assert mean["w"].tolist() == [1.5]
    assert int(mean["n"]) == 2


class Line(nn.Module):
    """One weight that moves to 1; validation likes it at `goal`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def run(
    goal: float, snapshots: int, checkpoint: Path | None = None, die_at: int = -1
) -> tuple[float, list[float], int]:
    network, seen = Line(), []

    def loss(rows: object, step: int) -> Loss:
        if step == die_at:
            raise KeyboardInterrupt
        value: Tensor = (network.weight - 1).square().sum()
        return Loss(value, 1)

    def validate() -> float:
        seen.append(float(network.weight.detach()))
        return -abs(seen[-1] - goal)

    options = Training(
        steps=12, validate_every=2, ema=0.0, learning_rate=0.1, warmup=0.0, final_rate=1.0, snapshots=snapshots
    )
    task = Task(network, BatchPlan(np.ones(4), 4, 0), loss, validate)
    kept = None if checkpoint is None else CheckpointFile(checkpoint, 0.0)
    result = train(task, options, seed=0, checkpoint=kept)
    return float(network.weight.detach()), seen, result.averaged


def test_the_mean_is_taken_where_it_validates_better() -> None:
    _, seen, _ = run(0.0, 1)
    between = (seen[2] + seen[3]) / 2
    last, seen, averaged = run(between, 2)
    assert last == pytest.approx(between)
    assert averaged == 2
    last, seen, averaged = run(seen[2], 2)
    assert last == seen[2]
    assert averaged == 1


def test_a_resumed_run_has_the_same_mean(tmp_path: Path) -> None:
    _, seen, _ = run(0.0, 1)
    between = (seen[2] + seen[3]) / 2
    expected = run(between, 2)[0]
    with pytest.raises(KeyboardInterrupt):
        run(between, 2, tmp_path / "c", die_at=9)
    assert run(between, 2, tmp_path / "c")[0] == expected


def test_the_mean_is_measured_with_the_buffers_that_it_keeps() -> None:
    network = Line()
    network.register_buffer("leak", torch.zeros(()))
    seen: list[tuple[float, float]] = []

    def loss(rows: object, step: int) -> Loss:
        network.leak.fill_(step / 9)
        return Loss((network.weight - 1).square().sum(), 1)

    def validate() -> float:
        seen.append((float(network.weight.detach()), float(network.leak)))
        return -abs(sum(seen[-1]) - 1)

    options = Training(steps=10, validate_every=1, ema=0.0, learning_rate=0.1, warmup=0.0, patience=100, snapshots=3)
    result = train(Task(network, BatchPlan(np.ones(4), 4, 0), loss, validate), options, seed=0)
    *steps, mean = seen
    best = sorted(steps, key=lambda pair: abs(sum(pair) - 1))[:3]
    assert mean == pytest.approx(np.mean(best, axis=0).tolist()), "measured"
    kept = (float(network.weight.detach()), float(network.leak))
    assert kept == (mean if result.averaged == 3 else best[0])
    assert result.best_metric == -abs(sum(kept) - 1)
