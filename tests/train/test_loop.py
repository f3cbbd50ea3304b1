"""The training loop on a small regression with dropout, whose parameters are named against the alphabet."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from train_world import OPTIONS, ROWS, STEPS, Network, X, Y, make_network, weights
from worlds import Watcher

from capsid.base.run_options import CheckpointFile
from capsid.errors import ArtifactError, CapsidError
from capsid.train.batches import BatchPlan
from capsid.train.lanes import Loss
from capsid.train.loop import Carried, Task, TrainingResult, train
from capsid.train.options import Training


@torch.no_grad()
def score(network: Network) -> float:
    return -float(nn.functional.mse_loss(network(X), Y))


class Killed(Exception):
    pass


def task(network: Network, *, die_at: int | None = None, metric: Callable[[int], float] | None = None) -> Task:
    """`die_at`: the loss of that step raises, as if the process were killed there."""
    seen = []

    def loss(rows: np.ndarray, step: int) -> Loss:
        if step == die_at:
            raise Killed
        index = torch.from_numpy(rows)
        return Loss(nn.functional.mse_loss(network(X[index]), Y[index]), len(rows))

    def validate() -> float:
        seen.append(0)
        assert not network.training
        if metric is not None:
            return metric(len(seen))
        return score(network)

    return Task(network, BatchPlan(np.arange(ROWS) % 5, 8, seed=3), loss, validate)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def told(result: TrainingResult) -> tuple[object, ...]:
    """All of a result but the time it took."""
    curve = [(p.step, p.loss, p.metric) for p in result.curve]
    return result.steps, result.best_step, result.best_metric, result.tokens, curve


def test_learns_and_ends_with_the_best_weights() -> None:
    network = make_network()
    before = score(network.eval())
    result = train(task(network), OPTIONS, seed=0)
    assert result.best_metric > before + 0.1
    assert not network.training
    assert score(network) == pytest.approx(result.best_metric, abs=1e-6)
    assert [p.step for p in result.curve] == [5, 10, 15, 20, 23]
    assert result.best_metric == max(p.metric for p in result.curve)
    batches = [b for e in range(4) for b in task(network).plan.epoch(e)]
    assert result.tokens == sum(len(b) for b in batches[:STEPS])


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 14, 22])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole, broken = make_network(), make_network()
    expected = train(task(whole), OPTIONS, seed=0)
    file = tmp_path / "c"
    with pytest.raises(Killed):
        train(task(broken, die_at=stop), OPTIONS, seed=0, checkpoint=CheckpointFile(file, 0.0))
    torch.manual_seed(99)
    fresh = make_network()
    result = train(task(fresh), OPTIONS, seed=0, checkpoint=CheckpointFile(file, 0.0))
    assert told(result) == told(expected)
    assert same(weights(fresh), weights(whole))


def test_a_run_killed_again_and_again(tmp_path: Path) -> None:
    whole = make_network()
    expected = train(task(whole), OPTIONS, seed=0)
    for stop in range(1, STEPS, 3):
        with pytest.raises(Killed):
            train(task(make_network(), die_at=stop), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    last = make_network()
    assert told(train(task(last), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))) == told(expected)
    assert same(weights(last), weights(whole))


def test_steps_after_the_last_checkpoint_are_done_again(tmp_path: Path) -> None:
    """Checkpoints only at validations: a run killed between two goes on from the earlier."""
    rare = CheckpointFile(tmp_path / "c", 1e9)
    whole = make_network()
    expected = train(task(whole), OPTIONS, seed=0)
    with pytest.raises(Killed):
        train(task(make_network(), die_at=13), OPTIONS, seed=0, checkpoint=rare)
    asked: list[int] = []
    fresh = make_network()
    again = task(fresh)
    spy = Task(again.network, again.plan, lambda r, s: (asked.append(s), again.loss(r, s))[1], again.validate)
    assert told(train(spy, OPTIONS, seed=0, checkpoint=rare)) == told(expected)
    assert asked == list(range(10, STEPS))
    assert same(weights(fresh), weights(whole))


@pytest.mark.parametrize("steps", [range(8), range(8, 20), range(20)])
def test_some_steps_of_a_schedule_have_the_rates_of_the_whole(steps: range) -> None:
    """Under a constant gradient an Adam step is as long as its learning rate."""
    options = Training(steps=20, warmup=0.3, learning_rate=0.1, weight_decay=0.0, ema=0.0, clip=1e9)
    network = torch.nn.Linear(1, 1, bias=False)
    began = float(network.weight.detach())
    plan = BatchPlan(np.ones(4, dtype=np.int64), 2, 0)
    result = train(Task(network, plan, lambda r, s: Loss(network.weight.sum(), 1)), options, seed=0, steps=steps)
    assert result.steps == len(steps)
    walked = began - float(network.weight.detach())
    assert walked == pytest.approx(sum(options.rate(s) for s in steps), rel=1e-4)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    network = make_network()
    expected = train(task(network), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    again = make_network()
    result = train(task(again, die_at=0), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    assert told(result) == told(expected)
    assert same(weights(again), weights(network))


def test_without_validation_the_last_average_is_taken(tmp_path: Path) -> None:
    def run(network: Network, die_at: int | None = None, checkpoint: CheckpointFile | None = None) -> TrainingResult:
        full = task(network, die_at=die_at)
        return train(Task(full.network, full.plan, full.loss), OPTIONS, seed=0, checkpoint=checkpoint)

    whole, fresh = make_network(), make_network()
    result = run(whole)
    assert (result.best_step, result.curve) == (STEPS, ())
    with pytest.raises(Killed):
        run(make_network(), 17, CheckpointFile(tmp_path / "c", 0.0))
    run(fresh, None, CheckpointFile(tmp_path / "c", 0.0))
    assert same(weights(fresh), weights(whole))


def test_seeds_and_the_callers_random_state() -> None:
    def run(seed: int) -> dict[str, Tensor]:
        network = make_network()
        train(task(network), OPTIONS, seed=seed)
        return weights(network)

    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = run(0)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers must not move"
    torch.manual_seed(6)
    assert same(run(0), first)
    assert not same(run(1), first)


def slow_training(options: Training, seed: int) -> tuple[dict[str, Tensor], list[float]]:
    """AdamW by its equations (Loshchilov and Hutter 2019, algorithm 2), clipping and averages, a tensor at a time."""
    from capsid.base.randomness import child_seed

    network = make_network().train()
    plan = task(network).plan
    batches = [b for e in range(-(-options.steps // len(plan))) for b in plan.epoch(e)]
    average = weights(network)
    first = {n: torch.zeros_like(p) for n, p in network.named_parameters()}
    second = {n: torch.zeros_like(p) for n, p in network.named_parameters()}
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(child_seed(seed, "dropout"))
        for step in range(options.steps):
            index = torch.from_numpy(batches[step])
            loss = nn.functional.mse_loss(network(X[index]), Y[index])
            network.zero_grad()
            loss.backward()
            losses.append(float(loss.detach()))
            grads = {n: p.grad for n, p in network.named_parameters()}
            norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
            rate = options.rate(step)
            for n, p in network.named_parameters():
                g = grads[n] * min(1.0, options.clip / (norm + 1e-6))
                first[n] = 0.9 * first[n] + 0.1 * g
                second[n] = options.beta2 * second[n] + (1 - options.beta2) * g * g
                m = first[n] / (1 - 0.9 ** (step + 1))
                v = second[n] / (1 - options.beta2 ** (step + 1))
                decay = options.weight_decay if p.dim() >= 2 else 0.0
                p.data = p.data * (1 - rate * decay) - rate * m / (v.sqrt() + 1e-8)
                keep = min(options.ema, (1 + step) / (10 + step))
                average[n] = keep * average[n] + (1 - keep) * p.data
    return average, losses


def test_the_loop_is_its_slow_twin() -> None:
    options = Training(steps=17, learning_rate=0.02, validate_every=100, ema=0.6, weight_decay=0.3, clip=0.05)
    slow, losses = slow_training(options, seed=4)
    network = make_network()
    full = task(network)
    told_losses: list[float] = []

    def loss(rows: np.ndarray, step: int) -> Loss:
        found = full.loss(rows, step)
        told_losses.append(float(found.value.detach()))
        return found

    train(Task(network, full.plan, loss), options, seed=4)
    assert told_losses == pytest.approx(losses, rel=1e-4)
    for name, value in weights(network).items():
        torch.testing.assert_close(value, slow[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("metrics", "steps", "best"),
    [([0.1, 0.3, 0.2, 0.3], 20, 10), ([0.3, 0.2, 0.1, 0.5], 15, 5), ([0.1, 0.2, 0.3, 0.4], 23, 23)],
)
def test_early_stopping(metrics: list[float], steps: int, best: int) -> None:
    """Patience 2: stop at the second validation in a row without a better value; equal is not better."""
    options = Training(**{**OPTIONS.__dict__, "patience": 2})
    result = train(task(make_network(), metric=lambda n: (*metrics, 0.9, 0.9)[n - 1]), options, seed=0)
    assert (result.steps, result.best_step) == (steps, best)
    assert result.best_metric == max((*metrics, 0.9)[: len(result.curve)])


def test_the_weights_of_the_best_validation_are_kept(tmp_path: Path) -> None:
    """Not the last ones, whether the run was whole or resumed after its best validation."""
    metrics = [0.1, 0.9, 0.3, 0.2, 0.4]
    network, seen = make_network(), []
    plain = task(network)

    def validate() -> float:
        seen.append(weights(network))
        return metrics[len(seen) - 1]

    train(Task(network, plain.plan, plain.loss, validate), OPTIONS, seed=0)
    assert same(weights(network), seen[1])
    assert not same(weights(network), seen[-1])
    broken, again = make_network(), make_network()
    dying = task(broken, die_at=12, metric=lambda n: metrics[n - 1])
    with pytest.raises(Killed):
        train(dying, OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    train(task(again, metric=lambda n: metrics[n + 1]), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    assert same(weights(again), seen[1])


def test_a_stopped_early_run_stays_stopped(tmp_path: Path) -> None:
    options = Training(**{**OPTIONS.__dict__, "patience": 1})
    metrics = [0.3, 0.2, 0.9, 0.9, 0.9]
    first = make_network()
    kept = CheckpointFile(tmp_path / "c", 0.0)
    expected = train(task(first, metric=lambda n: metrics[n - 1]), options, seed=0, checkpoint=kept)
    again = make_network()
    result = train(task(again, die_at=10), options, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    assert told(result) == told(expected)
    assert same(weights(first), weights(again))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_said(tmp_path: Path, value: float) -> None:
    full = task(make_network())

    def loss(rows: np.ndarray, step: int) -> Loss:
        found = full.loss(rows, step)
        return Loss(found.value * (value if step == 6 else 1.0), found.tokens)

    with pytest.raises(CapsidError, match=r"the loss became (nan|inf) at step 7.*learning_rate"):
        train(Task(full.network, full.plan, loss), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    # What was kept is from before the trouble: with a sound loss the run goes on.
    train(task(make_network()), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    train(task(make_network()), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    network = make_network()
    network.zeta.requires_grad_(False)
    with pytest.raises(CapsidError, match=r"belongs to another network.*delete it"):
        train(task(network), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError, match="delete it to start over"):
        train(task(make_network()), OPTIONS, seed=0, checkpoint=CheckpointFile(tmp_path / "c", 0.0))


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    network = make_network()
    network.alpha.requires_grad_(False)
    before = weights(network)
    train(task(network), OPTIONS, seed=0)
    after = weights(network)
    assert torch.equal(before["alpha.weight"], after["alpha.weight"])
    assert not torch.equal(before["zeta.weight"], after["zeta.weight"])


def test_progress_tells_steps_speed_loss_and_validation() -> None:
    watcher = Watcher()
    train(task(make_network()), OPTIONS, seed=0, progress=watcher, name="stage")
    assert len(watcher.updates) == STEPS
    assert len(watcher.lines) == 5
    for word in ("stage: step 5/23", "loss", "tokens/s", "ETA", "valid recall@10", "best"):
        assert word in watcher.lines[0]


class Pair(nn.Module):
    """Two modules that share nothing, the second with a loss a million times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = make_network(), make_network()


def trained_beside(loud: bool, *, apart: bool, rates: dict[str, float] | None = None) -> Pair:
    pair = Pair()

    def loss(rows: np.ndarray, step: int) -> Loss:
        index = torch.from_numpy(rows)
        value = nn.functional.mse_loss(pair.one(X[index]), Y[index])
        if loud:
            value = value + 1e6 * pair.two.out.weight.square().sum()
        return Loss(value, len(rows))

    modules = (pair.two,) if apart else ()
    todo = Task(pair, BatchPlan(np.ones(ROWS), 8, 0), loss, apart=modules, rates=rates or {})
    train(todo, Training(steps=6, batch_size=8, clip=0.1, validate_every=6, weight_decay=0.0), seed=0)
    return pair


def test_a_module_apart_does_not_change_the_others_steps() -> None:
    alone, quiet, loud = (
        trained_beside(False, apart=True),
        trained_beside(True, apart=True),
        trained_beside(True, apart=False),
    )
    same = [torch.equal(a, b) for a, b in zip(alone.one.parameters(), quiet.one.parameters())]
    assert all(same)
    assert not torch.equal(alone.one.out.weight, loud.one.out.weight), "clipped together, the loud one rules"
    assert not torch.equal(make_network().out.weight, quiet.two.out.weight), "it learnt itself"


def test_learning_rates_by_name() -> None:
    frozen = trained_beside(True, apart=True, rates={"two.*": 0.0})
    assert torch.equal(frozen.two.out.weight, make_network().out.weight)
    assert not torch.equal(frozen.one.out.weight, make_network().out.weight)


@pytest.mark.parametrize("cuts", [(0, 9, STEPS), (0, 1, 2, 14, STEPS)])
def test_a_stretch_goes_on_from_the_one_before_without_a_seam(cuts: tuple[int, ...]) -> None:
    whole, last = make_network(), make_network()
    options = dataclasses.replace(OPTIONS, patience=STEPS)
    wanted = train(task(whole), options, seed=1)
    carried: Carried = {}
    curve = []
    for begin, end in itertools.pairwise(cuts):
        found = train(task(last), options, seed=1, steps=range(begin, end), before=carried)
        assert found.carried is not None
        assert found.steps == end - begin
        carried = found.carried
        curve += [(p.step, p.loss, p.metric) for p in found.curve]
    ours, theirs = (dict(net.state_dict()) for net in (last, whole))
    assert wanted.best_step == STEPS, "the last weights are the best ones, or stretches could not end with them"
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    due = {p.step: (p.step, p.loss, p.metric) for p in wanted.curve}
    assert [point for point in curve if point[0] in due] == list(due.values())
    assert {point[0] for point in curve} == {*due, *cuts[1:]}


def test_a_stretch_by_itself_starts_afresh_and_carries_nothing() -> None:
    network = make_network()
    found = train(task(network), OPTIONS, seed=1, steps=range(5, STEPS))
    assert found.carried is None
    assert found.curve[0].step == 10
