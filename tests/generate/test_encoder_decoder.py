"""The encoder-decoder without transformers: training and search are one function, time goes one way, one target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import (
    ID_FORMS,
    Killed,
    Killer,
    ids_of_form,
    make_ids,
    objective_of,
    random_codes,
    random_generator,
    random_histories,
)

from capsid.base.blocks.t5 import bucket_of
from capsid.base.run_options import CheckpointFile
from capsid.data.augment import random_ends
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TransformerGenerator
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.train.options import Training

IDS = make_ids(random_codes(3, items=15, sizes=(4, 3, 3), variable=True), (4, 3, 3))
TARGETS = pytest.mark.parametrize("targets", ["all", "last"])
ROWS = st.lists(st.lists(st.integers(0, 14), min_size=2, max_size=7), min_size=1, max_size=4)


def made(ids: SemanticIds = IDS, seed: int = 0, **fields: object) -> TransformerGenerator:
    sizes = {"head_width": 5, "depth_layers": 2, "buckets": 8, "reach": 16}
    return random_generator(ids, seed, kind=EncoderDecoderGenerator, **{**sizes, **fields})


@TARGETS
@settings(max_examples=10)
@given(rows=ROWS, form=st.sampled_from(ID_FORMS), gated=st.booleans())
def test_a_target_is_read_as_in_a_search_that_never_saw_it(
    targets: str, rows: list[list[int]], form: str, gated: bool
) -> None:
    """Twin: each history alone in a search, token by token. Later items, other rows and padding do not matter."""
    ids = ids_of_form(1, form)
    generator = made(ids, 2, targets=targets, activation="gated-gelu" if gated else "relu", input_scale=2.0)
    found = generator.network.predict(ids.lesson(Ragged.from_rows(rows), last=7), closing=True)
    assert found.ends_MD is not None
    expected, ends = [], []
    for row in rows:
        for place in range(1, len(row)):
            state, hidden = generator.start(ids.read(Ragged.from_rows([row[:place]]), last=6))
            for token in ids.prefix_free[row[place]].tolist():
                expected.append(hidden[0, 0])
                state, hidden = generator.step(state, torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
            ends.append(hidden[0, 0])
    torch.testing.assert_close(found.hidden_ND, torch.stack(expected), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.ends_MD, torch.stack(ends), rtol=1e-4, atol=1e-4)


@TARGETS
def test_beams_that_reorder_are_beams_alone(targets: str) -> None:
    generator, rng = made(targets=targets), np.random.default_rng(0)
    histories = random_histories(0, len(IDS), [1, 4, 6, 9])
    state, _ = generator.start(IDS.read(histories, last=6))
    beams: list[list[list[int]]] = [[[]] for _ in histories]
    for width in (3, 5, 2):
        parents = rng.integers(0, len(beams[0]), (len(histories), width))
        tokens = rng.integers(1, IDS.layout.vocabulary, (len(histories), width))
        state, rows = generator.step(state, torch.from_numpy(parents), torch.from_numpy(tokens))
        beams = [[[*beams[u][p], int(t)] for p, t in zip(parents[u], tokens[u])] for u in range(len(histories))]
    for user, own in enumerate(beams):
        alone, _ = generator.start(IDS.read(histories.take(np.array([user])), last=6))
        for beam, path in enumerate(own):
            stepped = alone
            for token in path:
                stepped, row = generator.step(stepped, torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]]))
            torch.testing.assert_close(rows[user, beam], row[0, 0], rtol=1e-4, atol=1e-4)


def test_the_encoder_looks_both_ways_only_where_one_target_is_trained() -> None:
    """The first item's encoded rows change with the second item, or do not."""
    one, other = (IDS.read(Ragged.from_rows([[3, item]]), last=6) for item in (5, 9))
    first = len(IDS.prefix_free[3])
    for targets in ("all", "last"):
        network = made(targets=targets).network
        vectors = network.token.vectors()
        a, b = (network._encode(network._sequences(vectors, batch, None))[0, :first] for batch in (one, other))
        assert torch.allclose(a, b, atol=1e-5) == (targets == "all")


def test_known_buckets() -> None:
    """T5's own: half of the buckets exact, then 128 on a logarithmic scale; later keys have the second half."""
    distances = torch.tensor([0, -1, -7, -8, -12, -127, -500, 1, 8, 500])
    assert bucket_of(distances, 32, 128, both_ways=True).tolist() == [0, 1, 7, 8, 9, 15, 15, 17, 24, 31]
    assert bucket_of(distances, 32, 128, both_ways=False).tolist() == [0, 1, 7, 8, 12, 31, 31, 0, 0, 0]


def test_a_random_end_may_be_any_item_but_the_first() -> None:
    pieces = Ragged.from_rows([[1, 2, 3, 4], [5, 6], [7, 8, 9]])
    rng = np.random.default_rng(0)
    ends = [random_ends(pieces, rng) for _ in range(200)]
    assert all(cut[1].tolist() == [5, 6] for cut in ends)
    assert all(cut[0].tolist() == [1, 2, 3, 4][: len(cut[0])] for cut in ends)
    counts = np.bincount([len(cut[0]) for cut in ends])
    assert counts[:2].tolist() == [0, 0]
    assert counts[2:].min() > 40


def test_the_latest_of_a_lesson() -> None:
    rows = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    lesson = IDS.lesson(Ragged.from_rows(rows), last=7)
    latest = lesson.latest()
    assert latest.item_M.tolist() == [3, 5, 9]
    assert latest.row_M.tolist() == [0, 1, 2]
    assert latest.before_M.tolist() == [2, 1, 3]
    assert latest.tokens == IDS.prefix_free.take(np.array([3, 5, 9]))


@TARGETS
def test_it_learns_and_a_killed_fit_resumes_to_the_same_bits(targets: str, tmp_path: Path) -> None:
    """Item i + 1 follows item i; dropout and random ends are those of the unbroken fit."""
    rows = Ragged.from_rows([[(start + step) % 15 for step in range(5)] for start in range(15)])
    training = Training(steps=40, batch_size=15, learning_rate=0.01, validate_every=10, ema=0.0)

    def fit(
        checkpoint: CheckpointFile | None = None, stop: str = "never said"
    ) -> tuple[dict[str, torch.Tensor], float]:
        generator = EncoderDecoderGenerator(
            layers=1, depth_layers=1, heads=2, head_width=8, width=16, feedforward=32, history=6, targets=targets
        ).build(IDS, np.ones(15), seed=0)
        objective = objective_of(IDS)
        before = objective.loss(IDS.lesson(rows, last=7), generator.network).item()
        fit_generator(generator, IDS, rows, objective, training, seed=1, checkpoint=checkpoint, progress=Killer(stop))
        return generator.state(), objective.loss(IDS.lesson(rows, last=7), generator.network).item() / before

    whole, share = fit()
    assert share < 0.8
    with pytest.raises(Killed):
        fit(CheckpointFile(tmp_path / "checkpoint", 0.0), "30")
    resumed, _ = fit(CheckpointFile(tmp_path / "checkpoint", 0.0))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_fresh_weights_are_spread_as_in_t5() -> None:
    sizes = {"layers": 1, "depth_layers": 1, "heads": 4, "head_width": 16, "width": 64, "feedforward": 256}
    state = EncoderDecoderGenerator(**sizes).build(IDS, np.ones(15), seed=0).state()  # type: ignore[arg-type]
    spreads = {
        "token.weight": 1.0,
        "encoder.0.out.weight": 64**-0.5,
        "decoder.0.query.weight": (64 * 16) ** -0.5,
        "decoder.0.feedforward.down.weight": 256**-0.5,
        "decoder.0.key_value.weight": 64**-0.5,
    }
    for name, spread in spreads.items():
        assert float(state[name].std()) == pytest.approx(spread, rel=0.1), name
    qkv = state["encoder.0.qkv.weight"]
    assert float(qkv[:64].std()) == pytest.approx((64 * 16) ** -0.5, rel=0.1)
    assert float(qkv[64:].std()) == pytest.approx(64**-0.5, rel=0.1)


def test_a_state_belongs_to_its_sizes() -> None:
    generator = made()
    fields = {"layers": 2, "depth_layers": 2, "heads": 2, "head_width": 5, "width": 16, "feedforward": 24}
    again = EncoderDecoderGenerator(**fields, history=6, buckets=8, reach=16)  # type: ignore[arg-type]
    batch = IDS.read(random_histories(0, len(IDS), [3, 5]), last=6)
    again.load_state(IDS, generator.state())
    torch.testing.assert_close(again.start(batch)[1], generator.start(batch)[1], rtol=0, atol=0)
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        EncoderDecoderGenerator(**fields, buckets=32).load_state(IDS, generator.state())  # type: ignore[arg-type]


@pytest.mark.parametrize(("buckets", "reach"), [(7, 128), (32, 16)])
def test_buckets_that_do_not_work(buckets: int, reach: int) -> None:
    with pytest.raises(ConfigError, match=f"buckets must be even, .* got {buckets} and {reach}"):
        EncoderDecoderGenerator(buckets=buckets, reach=reach).build(IDS, np.ones(15), seed=0)


def test_targets_are_all_or_the_last() -> None:
    with pytest.raises(ConfigError, match="targets must be one of all, last, got 'first'"):
        EncoderDecoderGenerator(targets="first")
