"""Lanes and teams: one, two and four processes end with the same bits. Processes are forked and meet at a file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from teams import hash_of, together
from torch import Tensor, nn
from train_world import OPTIONS, ROWS, X, Y, make_network, weights

from capsid.base.run_options import ALONE, Alone, CheckpointFile, Team
from capsid.errors import CapsidError, ConfigError
from capsid.train.batches import BatchPlan
from capsid.train.lanes import LaneLoss, Lanes, Loss, TreeSum, check_lanes, lanes_for
from capsid.train.loop import Task, train
from capsid.train.team import backend, joined

LANES = replace(OPTIONS, lanes=4)


def task(network: nn.Module, bad_step: int | None = None) -> Task:
    """The regression of `train_world` in lanes; at `bad_step` the last lane's loss is not a number."""

    def of(rows: np.ndarray, bad: bool = False) -> Loss:
        value = nn.functional.mse_loss(network(X[rows]), Y[rows])
        return Loss(value * math.nan if bad else value, len(rows), len(rows))

    def lanes(rows: np.ndarray, step: int, count: int) -> list[LaneLoss]:
        parts = enumerate(np.array_split(rows, count))
        return [(lambda p=p, n=n: of(p, step == bad_step and n == count - 1)) if len(p) else None for n, p in parts]

    def validate() -> float:
        with torch.no_grad():
            return -float(nn.functional.mse_loss(network(X), Y))

    # 50 rows in batches of 16: the last of an epoch has 2 rows, fewer than there are lanes.
    return Task(network, BatchPlan(np.arange(ROWS) % 5, 16, seed=3), lambda r, s: of(r), validate, lanes=lanes)


def fitted(team: Team, folder: Path) -> list[object]:
    network = make_network()
    result = train(task(network), LANES, seed=0, team=team)
    return [hash_of(weights(network)), result.best_metric, result.tokens]


def test_one_two_and_four_processes_end_with_the_same_bits(tmp_path: Path) -> None:
    alone = fitted(ALONE, tmp_path)
    for size in (2, 4):
        said = together(size, fitted, tmp_path / str(size))
        assert [s.get("value", s) for s in said] == [alone] * size


def test_an_interrupted_team_goes_on_as_one_process_and_the_other_way_round(tmp_path: Path) -> None:
    """What process 0 writes, any number of processes can continue."""

    def begin(team: Team, folder: Path) -> None:
        network, half = make_network(), range(10)
        train(task(network), LANES, seed=0, steps=half, team=team, checkpoint=CheckpointFile(folder / "c", 0.0))
        assert (folder / "c").exists() or team.rank

    def go_on(team: Team, folder: Path) -> str:
        network = make_network()
        train(task(network), LANES, seed=0, team=team, checkpoint=CheckpointFile(folder / "c", 1e9))
        return hash_of(weights(network))

    whole = make_network()
    train(task(whole), LANES, seed=0)
    expected = hash_of(weights(whole))
    assert all("crash" not in s for s in together(2, begin, tmp_path / "a"))
    assert go_on(ALONE, tmp_path / "a") == expected
    (tmp_path / "b").mkdir()
    begin(ALONE, tmp_path / "b")
    assert [s.get("value", s) for s in together(2, go_on, tmp_path / "b")] == [expected] * 2


def test_a_loss_that_is_no_number_ends_all_processes(tmp_path: Path) -> None:
    """Only the last process has the lane with the NaN."""
    said = together(2, lambda team, _: str(train(task(make_network(), 3), LANES, seed=0, team=team)), tmp_path / "n")
    assert all("the loss became nan at step 4" in s["error"] for s in said)


def test_a_process_that_ends_is_an_error_for_the_others(tmp_path: Path) -> None:
    def work(team: Team, _: Path) -> str:
        if team.rank == 1:
            raise CapsidError("the disk is full")
        return str(train(task(make_network()), LANES, seed=0, team=team))

    first, second = together(2, work, tmp_path / "gone")
    assert "process 0 lost the other processes" in first["error"]
    assert "the disk is full" in second["error"]


def test_processes_with_different_weights_are_refused(tmp_path: Path) -> None:
    def work(team: Team, _: Path) -> str:
        network = make_network()
        with torch.no_grad():
            network.alpha.bias[0] += 1e-3 * team.rank
        return str(train(task(network), LANES, seed=0, team=team))

    assert all("with different weights" in s["error"] for s in together(2, work, tmp_path / "w"))


def test_values_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.train.team.PART", 4)

    def work(team: Team, _: Path) -> object:
        told = team.broadcast({"reused": True, "path": "ä"} if team.rank == 0 else None)
        total = team.sum(torch.full((3, 3), 0.1 * (team.rank + 1)))
        return [told, [t.tolist() for t in team.gather(torch.tensor([team.rank]))], total.tolist()]

    expected = float(np.float32(0.1) + np.float32(0.2))
    for said in together(2, work, tmp_path / "v"):
        assert said["value"] == [{"reused": True, "path": "ä"}, [[0], [1]], [[expected] * 3] * 3]


def test_a_team_of_one_changes_nothing() -> None:
    x = torch.arange(3.0)
    assert ALONE.sum(x) is x
    assert list(ALONE.gather(x)) == [x]
    assert ALONE.broadcast({"a": 1}) == {"a": 1}


def test_lanes_weigh_by_their_predictions() -> None:
    """Without dropout, lanes of unequal sizes give the gradient of the whole batch."""
    network = make_network().eval()
    rows = np.arange(13)
    parameters = list(network.parameters())
    whole = nn.functional.mse_loss(network(X[rows]), Y[rows])
    expected = torch.autograd.grad(whole, parameters)
    parts = task(network).lanes(rows, 0, 4)  # type: ignore[misc]
    loss, tokens = Lanes(4, Alone(), 0, parameters).gradients(parts, 0)
    assert loss == pytest.approx(float(whole.detach()), rel=1e-6)
    assert tokens == 13
    for parameter, wanted in zip(parameters, expected):
        torch.testing.assert_close(parameter.grad, wanted)


def test_lanes_draw_their_own_dropout() -> None:
    """The same rows in two lanes, or at two steps, are dropped differently; the same lane is dropped alike."""
    network = make_network().train()
    parameters = list(network.parameters())

    def loss_of(step: int, lane: int) -> float:
        parts: list[LaneLoss] = [None] * 4
        parts[lane] = lambda: Loss(nn.functional.mse_loss(network(X), Y), ROWS, ROWS)
        return Lanes(4, Alone(), 0, parameters).gradients(parts, step)[0]

    values = [loss_of(0, 0), loss_of(0, 1), loss_of(1, 0)]
    assert len(set(values)) == 3
    assert loss_of(0, 1) == values[1]


@given(st.integers(1, 20), st.integers(0, 3))
def test_the_tree_adds_the_same_however_it_is_shared(groups: int, level: int) -> None:
    """Blocks of 1, 2, 4 or 8 neighbours summed apart, then together: the bits of all at once."""
    each = 2**level
    numbers = torch.rand(groups * each, generator=torch.Generator().manual_seed(groups)) ** 8

    def total(tensors: list[Tensor]) -> Tensor:
        tree = TreeSum()
        for tensor in tensors:
            tree.add(tensor.clone())
        return tree.value()

    apart = [total(list(numbers[i : i + each])) for i in range(0, len(numbers), each)]
    assert torch.equal(total(list(numbers)), total(apart))


@pytest.mark.parametrize(("processes", "lanes"), [(1, 4), (2, 4), (3, 6), (4, 4), (5, 5), (6, 6), (8, 8)])
def test_how_many_lanes_suit_a_team(processes: int, lanes: int) -> None:
    assert lanes_for(processes) == lanes
    check_lanes(lanes, processes)


@pytest.mark.parametrize(("lanes", "processes"), [(1, 2), (4, 3), (6, 2), (2, 4)])
def test_lanes_that_cannot_be_shared_are_refused(lanes: int, processes: int) -> None:
    with pytest.raises(ConfigError, match=rf"number of processes \({processes}\) times 1, 2, 4, 8, ..., got {lanes}"):
        check_lanes(lanes, processes)


def test_what_trains_on_whole_batches_refuses_lanes() -> None:
    network = make_network()
    whole = Task(network, BatchPlan(np.arange(ROWS), 8, seed=3), lambda r, s: Loss(network(X[r]).mean(), 1))
    with pytest.raises(ConfigError, match=r"training\.lanes must be 1 for capsules, got 4"):
        train(whole, LANES, seed=0, name="capsules")


def test_the_launcher_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with joined(torch.device("cpu")) as team:
        assert (team.rank, team.size, team.restarts) == (0, 1, 0)
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**told, "TORCHELASTIC_RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(name, value)
    with joined(torch.device("cpu")) as team:
        assert (team.rank, team.size, team.restarts) == (0, 1, 2)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE must be a whole number, got 'two'"), joined(torch.device("cpu")):
        pass


def test_gpus_talk_through_nccl_and_cpus_through_gloo() -> None:
    assert backend(torch.device("cuda", 1)) == "nccl"
    assert backend(torch.device("cpu")) == "gloo"
