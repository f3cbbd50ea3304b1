"""The frame that trained tokenizers share, with a toy in it: one mean per code, moved towards its items."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from worlds import Watcher

from capsid.base.run_options import CheckpointFile
from capsid.progress import Progress
from capsid.tokenize.training import VectorTraining, draw_sample, share_done, unused_codes, worst_first
from capsid.train.options import Training

VECTORS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


@dataclass(frozen=True)
class Error:
    score: float

    def line(self) -> str:
        return f"error {-self.score:.3f}"


@dataclass(eq=False)
class Means(VectorTraining):
    name: ClassVar[str] = "means"
    answers: list[bool] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def distances(self, x_BI: Tensor) -> Tensor:
        means_KI: Tensor = self.network.get_parameter("weight")
        return torch.cdist(x_BI, means_KI).min(1).values

    def loss(self, x_BI: Tensor, rows_B: np.ndarray, share: float) -> Tensor:
        self.shares.append(share)
        return self.distances(x_BI).square().mean()

    def look(self) -> Error:
        with torch.no_grad():
            return Error(-float(self.distances(torch.from_numpy(self.looked_at_NI)).mean()))

    def answer(self, *, early: bool) -> None:
        self.answers.append(early)


def means(steps: int = 20, progress: Progress | None = None) -> Means:
    training = Training(steps=steps, batch_size=10, validate_every=10, learning_rate=0.05, ema=0.0)
    network = nn.Linear(3, 4, bias=False)
    nn.init.normal_(network.weight, generator=torch.Generator().manual_seed(0))
    return Means(training, network, VECTORS, draw_sample(VECTORS, 0, "means", 30), progress or Watcher())


def test_a_toy_learns_is_told_and_is_frozen() -> None:
    watcher = Watcher()
    job = means(progress=watcher)
    before = job.look().score
    job.run(seed=0, checkpoint=None)
    assert job.look().score > before
    assert watcher.lines[0] == f"means start: error {-before:.3f}"
    assert sum(line.startswith("means: error") for line in watcher.lines) == 2, "one look for each validation"
    assert not any(p.requires_grad for p in job.network.parameters())
    assert (job.shares[0], job.shares[-1]) == (0.0, 1.0)


def test_answers_come_between_epochs_and_know_whether_they_are_early() -> None:
    job = means()
    of = job.batch_loss(steps_per_epoch=3)
    for step in range(20):
        of(np.arange(4), step)
        assert len(job.answers) == step // 3
    assert job.answers == [True] * 5 + [False], "steps 3 to 15 of 20 are early, 18 is not"


@pytest.mark.parametrize(
    ("epoch", "most", "every"),
    [(2, None, 2), (2, 5, 4), (10, None, 4)],
    ids=["after every epoch", "at most five answers", "a fifth of the steps is the longest wait"],
)
def test_how_often_answers_come(monkeypatch: pytest.MonkeyPatch, epoch: int, most: int | None, every: int) -> None:
    monkeypatch.setattr(Means, "most_answers", most)
    job = means()
    of = job.batch_loss(steps_per_epoch=epoch)
    for step in range(20):
        of(np.arange(4), step)
        assert len(job.answers) == step // every


def test_a_killed_training_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = means()
    whole.run(seed=3, checkpoint=None)
    file = CheckpointFile(tmp_path / "c", 0.0)
    killed = means()
    killed.answer = lambda *, early: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        killed.run(seed=3, checkpoint=file)
    resumed = means()
    resumed.run(seed=3, checkpoint=file)
    assert len(resumed.shares) < len(whole.shares), "it did not start over"
    assert torch.equal(*(job.network.get_parameter("weight") for job in (whole, resumed)))


@given(rows=st.integers(1, 50), most=st.integers(1, 60), seed=st.integers(0, 3))
def test_a_sample_is_some_rows_in_catalogue_order(rows: int, most: int, seed: int) -> None:
    numbers = np.arange(rows, dtype=np.float64)[:, None]
    sample = draw_sample(numbers, seed, "any", most)
    assert sample.dtype == np.float32
    assert len(sample) == min(rows, most)
    assert (np.diff(sample[:, 0]) > 0).all()
    assert np.array_equal(sample, draw_sample(numbers, seed, "any", most))


@given(codes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=12))
def test_unused_codes_against_a_plain_loop(codes: list[tuple[int, int]]) -> None:
    found = unused_codes(np.array(codes), (5, 3))
    slow = [[c for c in range(size) if c not in {row[d] for row in codes}] for d, size in enumerate((5, 3))]
    assert [dead.tolist() for dead in found] == slow


def test_small_helpers() -> None:
    assert worst_first(np.array([1.0, 3.0, 3.0, 2.0])).tolist() == [1, 2, 3, 0]
    assert share_done(0, Training(steps=1)) == 0.0
    assert share_done(4, Training(steps=5)) == 1.0
