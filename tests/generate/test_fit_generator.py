"""What the generator is trained on, and which of its parameters learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from worlds import loss_of, make_ids, objective_of, random_codes, random_generator, whole_rows

from capsid.base.run_options import CheckpointFile
from capsid.errors import ConfigError, DataError
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import BoundTerm, Prepared, Step, TermContext
from capsid.ragged import Ragged
from capsid.train.options import Training

IDS = make_ids(random_codes(3, items=12, sizes=(4, 3, 3), variable=True), (4, 3, 3))
TINY = Training(steps=6, batch_size=3, validate_every=3, learning_rate=0.01)


@given(sequences=st.lists(st.lists(st.integers(0, 11), min_size=2, max_size=7), min_size=1, max_size=5))
def test_predictions_are_the_tokens_from_the_second_item_on(sequences: list[list[int]]) -> None:
    generator = random_generator(IDS, history=6)
    found = generator.network.predict(IDS.lesson(Ragged.from_rows(sequences), last=7))
    network = generator.network
    targets, hidden = [], []
    for row in sequences:
        tokens = [(int(t), place, depth) for place, i in enumerate(row) for depth, t in enumerate(IDS.prefix_free[i])]
        columns = [torch.tensor([c])[:, :-1] for c in zip(*tokens)]
        states = whole_rows(network, *columns)[0]
        for at in range(1, len(tokens)):
            if tokens[at][1] >= 1:
                targets.append(tokens[at][0])
                hidden.append(states[at - 1])
    assert found.targets_N.tolist() == targets
    torch.testing.assert_close(found.hidden_ND, torch.stack(hidden), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("temperature", "smoothing"), [(1.0, 0.0), (0.5, 0.1)])
def test_the_next_token_term_is_cross_entropy(temperature: float, smoothing: float) -> None:
    generator = random_generator(IDS, 1)
    lesson = IDS.lesson(Ragged.from_rows([[0, 1, 2], [3, 4]]), last=7)
    predictions = generator.network.predict(lesson)
    term = NextToken(temperature=temperature, label_smoothing=smoothing)
    logits = predictions.scores_NV
    expected = F.cross_entropy(logits / temperature, predictions.targets_N, label_smoothing=smoothing)
    torch.testing.assert_close(loss_of(term, IDS, generator, lesson), expected, rtol=1e-4, atol=1e-4)


def cycle(users: int) -> Ragged:
    """Everybody goes round the catalogue from another start: the next item is certain."""
    return Ragged.from_rows([[(u + i) % len(IDS) for i in range(6)] for u in range(users)], np.int64)


def small() -> TransformerGenerator:
    return TransformerGenerator(
        layers=1, heads=2, width=16, feedforward=24, history=5, dropout=0.0, embedding_dropout=0.0
    )


def test_a_certain_world_is_learnt() -> None:
    generator = small().build(IDS, np.ones(len(IDS)), seed=0)
    options = Training(steps=120, batch_size=12, learning_rate=0.02, validate_every=500, ema=0.0)
    fit_generator(generator, IDS, cycle(12), objective_of(IDS), options, seed=0)
    loss = loss_of(NextToken(), IDS, generator, IDS.lesson(cycle(12), last=6))
    assert float(loss.detach()) < 0.1 * math.log(IDS.layout.vocabulary)


@pytest.mark.parametrize("equal_targets", [False, True])
@pytest.mark.parametrize("lanes", [2, 4])
def test_lanes_without_dropout_learn_what_whole_batches_do(lanes: int, equal_targets: bool) -> None:
    """Sequences of unequal length in batches of 3: lanes differ in their predictions, and some have no rows."""
    sequences = Ragged.from_rows([[(u + i) % len(IDS) for i in range(2 + u % 5)] for u in range(11)], np.int64)

    def weights(count: int) -> torch.Tensor:
        generator = small().build(IDS, np.ones(len(IDS)), seed=0)
        options = replace(TINY, lanes=count, equal_targets=equal_targets)
        fit_generator(generator, IDS, sequences, objective_of(IDS), options, seed=0)
        return torch.cat([t.flatten() for t in generator.state().values()])

    torch.testing.assert_close(weights(lanes), weights(1), rtol=0, atol=2e-4)


def test_only_what_matches_learns() -> None:
    generator = small().build(IDS, np.ones(len(IDS)), seed=0)
    before = generator.state()
    fit_generator(generator, IDS, cycle(5), objective_of(IDS), TINY, seed=0, learns=("blocks.*.up.*", "norm.weight"))
    changed = {n for n, t in generator.state().items() if not torch.equal(t, before[n])}
    assert changed == {"blocks.0.up.weight", "blocks.0.up.bias", "norm.weight"}
    fit_generator(generator, IDS, cycle(5), objective_of(IDS), TINY, seed=0)
    assert not torch.equal(generator.state()["token.weight"], before["token.weight"]), "a later phase may thaw all"
    with pytest.raises(ConfigError, match="no parameter of the generator matches"):
        fit_generator(generator, IDS, cycle(5), objective_of(IDS), TINY, seed=0, learns=("block.*",))


def test_terms_add_up_with_their_weights() -> None:
    class Pull(BoundTerm):
        """Pulls on one parameter only."""

        def loss(self, step: Step, prepared: Prepared) -> Tensor:
            return step.network.norm.bias.sum()

    @dataclass(frozen=True)
    class Fixed:
        weight: float
        kind: ClassVar[str] = "fixed"

        def bind(self, context: TermContext) -> BoundTerm:
            return Pull(self.weight)

    options = Training(steps=1, batch_size=9, learning_rate=0.5, warmup=0.0, weight_decay=0.0, ema=0.0)

    def shift(*weights: float) -> float:
        generator = small().build(IDS, np.ones(len(IDS)), seed=0)
        fit_generator(generator, IDS, cycle(5), objective_of(IDS, *map(Fixed, weights)), options, seed=0)
        return float(generator.state()["norm.bias"].sum())

    assert shift(1.0) < 0
    assert shift(1.0, -3.0) > 0
    assert shift(1.0, -1.0) == pytest.approx(0.0)


def test_tokens_are_counted_without_padding() -> None:
    generator = small().build(IDS, np.ones(len(IDS)), seed=0)
    sequences = Ragged.from_rows([[0, 1, 2, 3], [4, 5], [6]], np.int64)
    options = Training(steps=1, batch_size=8, validate_every=5)
    result = fit_generator(generator, IDS, sequences, objective_of(IDS), options, seed=0)
    sizes = IDS.prefix_free.lengths
    assert result.tokens == sizes[[0, 1, 2, 3]].sum() - 1 + sizes[[4, 5]].sum() - 1


def test_a_killed_fit_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """The real network with dropout on, killed in its validation."""

    class Killed(Exception):
        pass

    def run(generator: TransformerGenerator, die: bool, checkpoint: CheckpointFile | None) -> None:
        def validate() -> float:
            if die:
                raise Killed
            return float(generator.network.token.weight.detach().sum())

        fit_generator(
            generator, IDS, cycle(9), objective_of(IDS), TINY, seed=0, validate=validate, checkpoint=checkpoint
        )

    def fresh() -> TransformerGenerator:
        return TransformerGenerator(layers=2, heads=2, width=16, feedforward=24, history=5).build(
            IDS, np.ones(len(IDS)), seed=0
        )

    whole, broken = fresh(), fresh()
    run(whole, False, None)
    with pytest.raises(Killed):
        run(fresh(), True, CheckpointFile(tmp_path / "c", 0.0))
    run(broken, False, CheckpointFile(tmp_path / "c", 0.0))
    for name, tensor in whole.state().items():
        assert torch.equal(broken.state()[name], tensor), name


def test_nothing_to_learn_from() -> None:
    generator = small().build(IDS, np.ones(len(IDS)), seed=0)
    with pytest.raises(DataError, match="no training sequence has two or more items"):
        fit_generator(generator, IDS, Ragged.from_rows([[1], []], np.int64), objective_of(IDS), TINY, seed=0)


def test_equal_targets_weigh_a_batch_by_what_it_holds() -> None:
    """Batches are of near-equal lengths: here one of 2 targets and one of 9, 11 in two batches."""
    rows = Ragged.from_rows([[0, 1], [1, 2, 3, 4, 5, 6], [2, 3], [3, 4, 5, 6, 7]], np.int64)
    weights: list[float] = []

    class Watching(BoundTerm):
        def loss(self, step: Step, prepared: Prepared) -> Tensor:
            value = step.network.norm.weight.sum()
            value.register_hook(lambda gradient: weights.append(float(gradient)))
            return value

    class Watched:
        kind, weight = "watched", 1.0

        def bind(self, context: TermContext) -> BoundTerm:
            return Watching(1.0)

    for equal in (False, True):
        generator = small().build(IDS, np.ones(len(IDS)), seed=0)
        options = Training(steps=2, batch_size=2, equal_targets=equal, validate_every=9)
        fit_generator(generator, IDS, rows, objective_of(IDS, Watched()), options, seed=0)
    assert weights[:2] == [1.0, 1.0], "not asked for"
    assert sorted(weights[2:]) == pytest.approx([2 / 5.5, 9 / 5.5])


def test_the_window_says_how_many_batches_are_sorted_together() -> None:
    """With a window of 1 a batch is what the shuffle gave; otherwise sequences of near-equal length come together."""
    rows = Ragged.from_rows([[0, 1], [1, 2, 3, 4, 5, 6]] * 8, np.int64)
    seen: list[int] = []

    class Watching(BoundTerm):
        def loss(self, step: Step, prepared: Prepared) -> Tensor:
            seen.append(len(step.predictions.targets_N))
            return step.network.norm.weight.sum()

    class Watched:
        kind, weight = "watched", 1.0

        def bind(self, context: TermContext) -> BoundTerm:
            return Watching(1.0)

    for window in (1, 32):
        generator = small().build(IDS, np.ones(len(IDS)), seed=0)
        options = Training(steps=4, batch_size=4, window=window, validate_every=9)
        fit_generator(generator, IDS, rows, objective_of(IDS, Watched()), options, seed=0)
    mixed, alike = seen[:4], seen[4:]
    assert max(mixed) - min(mixed) < max(alike) - min(alike)
