"""Stage 1: planted worlds are found again, killed runs end with the same bits, and trouble is answered and said."""

from __future__ import annotations

import operator
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Watcher, assert_resumes, make_table, ragged_codes

from capsid.data.planted import planted_paths, planted_vectors
from capsid.errors import ConfigError
from capsid.ragged import Ragged
from capsid.settings import check_together
from capsid.tokenize.capsules import stage_one
from capsid.tokenize.capsules.algorithm import agree, one_depth
from capsid.tokenize.capsules.capsules import CapsuleNetwork
from capsid.tokenize.capsules.catalogue import trace
from capsid.tokenize.capsules.centres import fit_centres
from capsid.tokenize.capsules.inspection import CollapseWarning
from capsid.tokenize.capsules.settings import stage_one_training
from capsid.tokenize.capsules.start import calibrate, calibrate_all, fit_outputs, start_from_data
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.train.options import Training

BRANCHING = (8, 4, 4)
PATHS = planted_paths(branching=BRANCHING, items_per_leaf=4)
VECTORS = planted_vectors(branching=BRANCHING, items_per_leaf=4)
TABLE = make_table(VECTORS)


def training(steps: int = 20, **more: Any) -> Training:
    return Training(**{"steps": steps, "batch_size": 64, "ema": 0.0, "validate_every": 10, **more})


def small(**fields: Any) -> CapsuleTokenizer:
    return CapsuleTokenizer(**{"codebooks": BRANCHING, "training": training(), **fields})


def fixed(**fields: Any) -> CapsuleTokenizer:
    return small(**{"confidence": 1.0, "residual": 0.0, "max_sharing": 0, **fields})


def purity(codes_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Share of the items that sit with the majority of their code."""
    return sum(np.bincount(truth_N[codes_N == c]).max() for c in np.unique(codes_N)) / len(codes_N)


@pytest.mark.parametrize("winner", ["soft", "hard"])
def test_a_planted_tree_is_found(winner: str) -> None:
    codes_ND = fixed(winner=winner, training=training(60)).fit(TABLE).encode(TABLE).dense()
    assert purity(codes_ND[:, 0], PATHS[:, 0]) > 0.97
    whole = lambda c: c[:, 0] * 16 + c[:, 1] * 4 + c[:, 2]  # noqa: E731
    assert purity(whole(codes_ND), whole(PATHS)) > 0.9


def test_tokens_alone_tell_the_vectors() -> None:
    tokenizer = fixed(training=training(60)).fit(TABLE)
    unit_ND = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    left_N = np.linalg.norm(unit_ND - tokenizer.decode(tokenizer.encode(TABLE)), axis=1)
    assert left_N.mean() < 0.2
    # The trace and decode are two ways to the same residual.
    np.testing.assert_allclose(left_N, tokenizer.trace(TABLE).hard[:, -1], atol=1e-5)


@pytest.mark.parametrize("word", ["step 7/20", "step 10/20", "step 13/20"])
@pytest.mark.parametrize("kind", [{"codebooks": (40, 9, 9)}, {"poses": "full", "routing": "unit", "dim": 5}])
def test_killed_and_resumed_with_the_same_bits(kind: dict[str, Any], word: str, tmp_path: Path) -> None:
    busy = small(**kind, training=training(20, patience_from=0.4))
    whole = busy.fit(TABLE, seed=4).state()
    assert_resumes(busy, TABLE, whole, word, tmp_path)


def test_calibration_meets_its_mass() -> None:
    settings = fixed()
    network = CapsuleNetwork(settings, VECTORS.shape[1], torch.Generator().manual_seed(0))
    start_from_data(network, torch.from_numpy(VECTORS), settings, 0)
    layer, unit_ND = network.depths[0], network.enter(torch.from_numpy(VECTORS))
    with torch.no_grad():
        for mass in (0.4, 0.7, 0.9):
            calibrate(layer, unit_ND, mass)
            weights = agree(layer.votes(unit_ND), len(layer), layer.form, layer.kappa)[0]
            assert float(weights.max(1).values.mean()) == pytest.approx(mass, abs=0.02)


@pytest.mark.parametrize(
    "fields",
    [{}, {"winner": "hard"}, {"routing": "unit", "dim": 5, "poses": "full"}, {"routing": "dot"}, {"poses": "full"}],
)
def test_a_depth_is_fitted_to_what_it_does(fields: dict[str, Any]) -> None:
    settings = fixed(**fields)
    network = CapsuleNetwork(settings, VECTORS.shape[1], torch.Generator().manual_seed(0)).requires_grad_(False)
    start_from_data(network, torch.from_numpy(VECTORS), settings, 0)
    unit_ND = network.enter(torch.from_numpy(VECTORS))
    # The residuals that the fit of a depth hands on are those that the fitted depth leaves.
    step = fit_outputs(network.depths[0], unit_ND)
    torch.testing.assert_close(step.r_BD, one_depth(network.depths[0], unit_ND).r_BD, rtol=1e-4, atol=1e-5)


def test_without_steps_the_start_is_kept() -> None:
    tokenizer = CapsuleTokenizer(codebooks=BRANCHING, confidence=1.0, max_sharing=0)
    assert tokenizer.training.steps == 0
    codes_ND = tokenizer.fit(TABLE).encode(TABLE).dense()
    assert purity(codes_ND[:, 0], PATHS[:, 0]) > 0.97
    network = CapsuleNetwork(tokenizer, VECTORS.shape[1], torch.Generator().manual_seed(0)).requires_grad_(False)
    start_from_data(network, torch.from_numpy(VECTORS), tokenizer, 0)
    for ours, theirs in zip(tokenizer.network_.depths, network.depths, strict=True):
        for name in ("outputs", "poses.bias", "kappa"):
            fitted, started = (operator.attrgetter(name)(layer) for layer in (ours, theirs))
            assert torch.equal(fitted, started), name
    np.testing.assert_allclose(tokenizer.trace(TABLE).mass.mean(0), tokenizer.masses, atol=0.05)


def test_random_capsules_start_with_the_temperatures_of_the_target_masses() -> None:
    settings = fixed(winner_mass=(0.6, 0.7, 0.8), start="random", poses="full")
    network = CapsuleNetwork(settings, VECTORS.shape[1], torch.Generator().manual_seed(0)).requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    calibrate_all(network, torch.from_numpy(VECTORS), settings)
    masses = trace(network, VECTORS).mass.mean(0)
    np.testing.assert_allclose(masses, settings.masses, atol=0.02)
    after = network.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        f"layers.{depth}.fixed_kappa" for depth in range(3)
    }


def test_nothing_is_overwritten_after_training() -> None:
    """The weights that training ends with are those of the tokenizer; only the centres follow from the codes."""
    still = training(1, learning_rate=1e-9)
    tokenizer = fixed(winner_mass=(0.6, 0.7, 0.8), training=still).fit(TABLE)
    np.testing.assert_allclose(tokenizer.trace(TABLE).mass.mean(0), [0.6, 0.7, 0.8], atol=0.05)
    moved = fixed(winner_mass=(0.6, 0.7, 0.8), spread_weight=5.0, training=training(60, learning_rate=0.02)).fit(TABLE)
    masses = moved.trace(TABLE).mass.mean(0)
    assert np.abs(masses - [0.6, 0.7, 0.8]).max() > 0.1, "a temperature that is set again would meet its target"
    assert np.abs(moved.network_.depths[0].outputs.numpy()).sum() > 0


def with_growth(watcher: Watcher, **fields: Any) -> stage_one.CapsuleTraining:
    """Capsules at whose second depth residuals grow."""
    settings = fixed(**fields)
    network = CapsuleNetwork(settings, VECTORS.shape[1], torch.Generator().manual_seed(0))
    start_from_data(network, torch.from_numpy(VECTORS), settings, 0)
    with torch.no_grad():
        network.depths[1].outputs *= 6
    rows = TABLE.sequences
    return stage_one.CapsuleTraining(settings.training, network, VECTORS, VECTORS, watcher, settings, rows, 0)


def test_growing_residuals_shorten_the_step() -> None:
    watcher = Watcher()
    job = with_growth(watcher)
    network, grew = job.network, job.look().grew
    assert grew[1] > 0.5
    for _ in range(8):
        job.answer(early=True)
    assert float(network.depths[0].step) == 1.0
    assert float(network.depths[1].step) < 0.5
    assert job.look().grew[1] < grew[1]
    assert any("grew at depth 2; its step is now" in line for line in watcher.lines)


def test_collapse_is_said_loudly() -> None:
    literal = CapsuleTokenizer(
        codebooks=(20, 20),
        poses="full",
        routing="dot",
        rounds=1,
        start="random",
        max_sharing=0,
        training=training(4),
    )
    watcher = Watcher()
    with pytest.warns(CollapseWarning, match="depths \\[1, 2\\] use less than 20 %"):
        codes = literal.fit(TABLE, progress=watcher).encode(TABLE)
    assert any(line.startswith("WARNING: the capsules collapsed") for line in watcher.lines)
    assert len({tuple(c.tolist()) for c in codes}) == 1, "to the letter, T=1 gives every item the same id"


def test_a_sound_fit_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CollapseWarning)
        fixed().fit(TABLE)


def test_the_projection_does_not_collapse() -> None:
    tokenizer = fixed(projection=10, training=training(60)).fit(TABLE)
    network = tokenizer.network_
    with torch.no_grad():
        unit_ND = network.enter(torch.from_numpy(VECTORS)).numpy()
    cosines = unit_ND @ unit_ND.T
    assert cosines[np.triu_indices(len(cosines), 1)].mean() < 0.5
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    decoded = tokenizer.decode(tokenizer.encode(TABLE))
    assert decoded.shape == VECTORS.shape
    assert np.linalg.norm(unit - decoded, axis=1).mean() < 0.6
    assert purity(tokenizer.encode(TABLE).dense()[:, 0], PATHS[:, 0]) > 0.8


def one_sweep(x_ND: np.ndarray, codes: Ragged, centres: list[np.ndarray]) -> None:
    """The slow twin: every prefix of every id that reaches a depth wants what the prefix leaves unexplained."""
    for depth, table in enumerate(centres):
        wanted: dict[int, list[np.ndarray]] = {}
        for x_D, row in zip(x_ND, codes):
            for length in range(depth + 1, len(row) + 1):
                rest = sum(centres[d][c] for d, c in enumerate(row[:length]) if d != depth)
                wanted.setdefault(int(row[depth]), []).append(x_D - rest)
        for code, values in wanted.items():
            table[code] = np.mean(values, axis=0)


@settings(max_examples=20, deadline=None)
@given(ragged_codes(size=3, depths=3, most=12), st.integers(0, 99))
def test_a_sweep_of_centres_is_the_plain_one(rows: list[list[int]], seed: int) -> None:
    rng, codes = np.random.default_rng(seed), Ragged.from_rows(rows)
    x_ND = rng.normal(size=(len(rows), 2)).astype(np.float32)
    start = [rng.normal(size=(3, 2)).astype(np.float32) for _ in range(3)]
    plain = [table.astype(np.float64) for table in start]
    for _ in range(2):
        one_sweep(x_ND, codes, plain)
    for ours, theirs in zip(fit_centres(x_ND, codes.dense(), codes.lengths, start, sweeps=2), plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_centres_are_the_least_squares_solution() -> None:
    rng = np.random.default_rng(2)
    x_ND, lengths_N = rng.normal(size=(80, 5)), rng.integers(1, 4, size=80)
    codes_NL = rng.integers(0, 4, size=(80, 3))
    start = [np.zeros((4, 5), dtype=np.float32)] * 3
    fitted = fit_centres(x_ND, codes_NL, lengths_N, start, sweeps=300)
    rows, targets = [], []
    for i in range(80):
        row = np.zeros(12)
        for depth in range(lengths_N[i]):
            row[4 * depth + codes_NL[i, depth]] = 1
            rows.append(row.copy())
            targets.append(x_ND[i])
    best = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]
    error = lambda table: ((np.array(rows) @ table - np.array(targets)) ** 2).sum()  # noqa: E731
    assert error(np.concatenate(fitted)) == pytest.approx(error(best), rel=1e-6)


def test_unused_codes_keep_their_start() -> None:
    start = [np.full((3, 2), 7, dtype=np.float32)]
    fitted = fit_centres(np.ones((4, 2)), np.array([[0], [0], [2], [2]]), np.ones(4, dtype=int), start)
    np.testing.assert_array_equal(fitted[0], [[1, 1], [7, 7], [1, 1]])


def test_prefix_rule_gives_short_prefix_free_ids() -> None:
    table = make_table(np.random.default_rng(0).normal(size=(300, 12)))
    codes = small(codebooks=(16, 16, 16), confidence=0.0).fit(table).encode(table)
    rows = {tuple(c.tolist()) for c in codes}
    assert not any(a != b and b[: len(a)] == a for a in rows for b in rows)
    assert 2 <= codes.lengths.mean() < 3


VARIANTS: dict[str, dict[str, Any]] = {
    "hard winner": {"winner": "hard"},
    "T=1": {"rounds": 1},
    "T=5": {"rounds": 5},
    "fixed length 2": {"codebooks": (8, 8), "confidence": 1.0, "residual": 0.0, "max_sharing": 0},
    "cap of 8": {"codebooks": (8,) * 8},
    "tau .75": {"confidence": 0.75},
    "no spread": {"spread_weight": 0.0},
    "full poses": {"poses": "full"},
    "narrow votes": {"dim": 6},
    "the paper's routing": {"dim": 6, "routing": "dot", "poses": "full"},
    "unit votes": {"dim": 6, "routing": "unit", "poses": "full"},
    "mean rival": {"rivals": "mean"},
    "the paper's stop": {"max_sharing": 0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_setting(name: str) -> None:
    tokenizer = small(**VARIANTS[name]).fit(TABLE)
    codes = tokenizer.encode(TABLE)
    about = tokenizer.stop(tokenizer.trace(TABLE)).shares(with_prefix=True)
    assert sum(about.values()) == pytest.approx(1)
    if name.startswith("fixed"):
        assert set(codes.lengths) == {2}
        assert about["cap"] == 1
    assert isinstance(codes, Ragged)
    first = codes.values[codes.offsets[:-1]]
    assert len(np.unique(first)) > 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"winner": "medium"}, "capsules.winner must be one of soft, hard, got 'medium'"),
        ({"codebooks": ()}, "capsules.codebooks must be 1 or more whole numbers, each at least 1"),
        ({"rounds": 0}, "capsules.rounds must be at least 1, got 0"),
        (
            {"winner_mass": (0.5, 1.0)},
            "capsules.winner_mass must be 1 or more finite numbers, each above 0 and below 1",
        ),
        ({"routing": "cosine"}, "capsules.routing must be one of dot, unit, calibrated, got 'cosine'"),
        ({"start": "random", "training": training()}, "capsules that share a pose matrix cannot start at random"),
        ({"start": "random", "training": stage_one_training()}, "capsules that start at random need training"),
    ],
)
def test_wrong_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_together(small(**fields))
