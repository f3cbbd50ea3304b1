"""The RQ-VAE: planted worlds are found, killed runs end with the same bits, dead codes come back, answers are exact."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Watcher, assert_resumes, make_table

from capsid.data.planted import planted_paths, planted_vectors
from capsid.errors import ArtifactError, ConfigError
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.tokenize.rivals import rqvae_fit as fitting
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_fit import RQVAETraining
from capsid.tokenize.rivals.rqvae_network import RQVAENetwork
from capsid.train.options import Training

BRANCHING = (8, 4, 4)
PATHS = planted_paths(branching=BRANCHING, items_per_leaf=4)
VECTORS = planted_vectors(branching=BRANCHING, items_per_leaf=4)
TABLE = make_table(VECTORS)


def training(steps: int = 20, **more: Any) -> Training:
    return Training(
        **{
            "steps": steps,
            "batch_size": 64,
            "learning_rate": 3e-3,
            "ema": 0.0,
            "validate_every": 10,
            **more,
        }
    )


def small(**fields: Any) -> RQVAE:
    return RQVAE(**{"codebooks": BRANCHING, "hidden": (48, 24), "latent": 12, "training": training(), **fields})


def purity(codes_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Share of the items that sit with the majority of their code."""
    return sum(np.bincount(truth_N[codes_N == c]).max() for c in np.unique(codes_N)) / len(codes_N)


def unexplained(tokenizer: RQVAE) -> float:
    wrong_ND = VECTORS - tokenizer.decode(tokenizer.encode(TABLE))
    return float((wrong_ND**2).sum() / ((VECTORS - VECTORS.mean(0)) ** 2).sum())


def job_of(tokenizer: RQVAE, network: RQVAENetwork, vectors_NI: np.ndarray, progress: Progress) -> RQVAETraining:
    return RQVAETraining(tokenizer.training, network, vectors_NI, vectors_NI, progress, tokenizer)


def test_a_planted_tree_is_found_and_told() -> None:
    short, long = (small(training=training(steps, validate_every=steps)).fit(TABLE) for steps in (1, 200))
    first_N = long.encode(TABLE).dense()[:, 0]
    chance = purity(np.random.default_rng(0).permutation(first_N), PATHS[:, 0])
    assert purity(first_N, PATHS[:, 0]) > 0.7 > 2 * chance
    assert unexplained(long) < 0.4 * unexplained(short)
    assert unexplained(long) < 0.35


def test_more_depths_explain_more() -> None:
    tokenizer = small(training=training(100)).fit(TABLE)
    codes_NL = tokenizer.encode(TABLE).dense()
    errors = [
        float(np.square(VECTORS - tokenizer.decode(Ragged.from_dense(codes_NL[:, :depth]))).sum())
        for depth in (1, 2, 3)
    ]
    assert errors[2] < errors[1] < errors[0] < float(np.square(VECTORS - VECTORS.mean(0)).sum())


def test_codes_are_the_nearest_centres_depth_by_depth() -> None:
    """The slow twin: distances to every centre, one item at a time, in double precision."""
    tokenizer = small().fit(TABLE)
    network = tokenizer.network_
    with torch.no_grad():
        latent_ND = network.encoder((torch.from_numpy(VECTORS) - network.mean) / network.scale).double().numpy()
    for left_D, codes in zip(latent_ND[::7], tokenizer.encode(TABLE).take(np.arange(len(VECTORS))[::7])):
        for centres_KD, code in zip(tokenizer.centres(), codes):
            distances = ((left_D - centres_KD) ** 2).sum(1)
            assert distances[code] <= distances.min() + 1e-4
            left_D = left_D - centres_KD[code]


def test_the_loss_term_by_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder reads centres; its gradient reaches the encoder, and codebooks learn from their own term alone."""
    _, network = planted_dead()
    x_BI = torch.from_numpy(VECTORS[:32])

    def loss(commitment: float) -> torch.Tensor:
        monkeypatch.setattr("capsid.tokenize.rivals.rqvae_network.COMMITMENT", commitment)
        entered_BI = network.enter(x_BI)
        return network.loss_of(entered_BI, network.quantize(network.encoder(entered_BI)))

    entered_BI = network.enter(x_BI)
    z_BD = network.encoder(entered_BI)
    centres = [book[code] for book, code in zip(network.books, network.quantize(z_BD).codes_BL.T)]
    wanted = (network.decoder(sum(centres).detach()) - entered_BI).square().mean()
    left_BD = z_BD
    for centre_BD in centres:
        wanted = wanted + (1 + 0.25) * (left_BD - centre_BD).square().mean()
        left_BD = left_BD - centre_BD
    torch.testing.assert_close(loss(0.25), wanted)
    first = network.encoder[0]
    assert isinstance(first, torch.nn.Linear)
    # Without commitment only the way through the decoder is left to the encoder.
    (gradient,) = torch.autograd.grad(loss(0.0), first.weight)
    assert gradient.abs().max() > 0
    (own,) = torch.autograd.grad(loss(0.25), network.books[1])
    (free,) = torch.autograd.grad(loss(0.0), network.books[1])
    torch.testing.assert_close(own, free)


def test_inputs_lose_mean_and_spread_and_get_them_back() -> None:
    """Far away and a thousand times larger is the same catalogue."""
    tokenizer = small().fit(TABLE)
    moved = make_table(1000 * VECTORS + 500)
    other = small().fit(moved)
    codes, again = tokenizer.encode(TABLE), other.encode(moved)
    assert np.mean(codes.dense() == again.dense()) > 0.9, "only rounding differs"
    mean_N = other.decode(again).mean(1)
    assert abs(mean_N.mean() - (1000 * VECTORS + 500).mean()) < 100


@settings(max_examples=10)
@given(cuts=st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_decoding_ids_of_any_length(cuts: list[int]) -> None:
    torch.manual_seed(0)
    tokenizer = RQVAE(codebooks=(3, 4, 5), hidden=(6,), latent=9)
    tokenizer.network_ = RQVAENetwork(7, (6,), 9, (3, 4, 5)).requires_grad_(False)
    for book in tokenizer.network_.books:
        book.normal_()
    rows = [[2, 3, 4][:cut] for cut in cuts]
    found = tokenizer.decode(Ragged.from_rows(rows))
    for row, vector in zip(rows, found):
        total_D = sum(tokenizer.network_.books[d][c] for d, c in enumerate(row))
        np.testing.assert_allclose(vector, tokenizer.network_.leave(total_D[None])[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("word", ["step 7/20", "step 10/20", "step 13/20"])
def test_killed_and_resumed_with_the_same_bits(word: str, tmp_path: Path) -> None:
    watcher = Watcher()
    busy = small(codebooks=(60, 60, 60), training=training(20))
    whole = busy.fit(TABLE, seed=4, progress=watcher).state()
    assert sum("revived" in line for line in watcher.lines) > 1, "there must be something to do between epochs"
    assert_resumes(busy, TABLE, whole, word, tmp_path)


def planted_dead() -> tuple[RQVAE, RQVAENetwork]:
    """Ten of thirty codes stand far away from everything."""
    tokenizer = small(codebooks=(30, 8))
    network = RQVAENetwork(VECTORS.shape[1], tokenizer.hidden, tokenizer.latent, tokenizer.codebooks)
    network.reset(torch.Generator().manual_seed(0))
    network.measure(torch.from_numpy(VECTORS))
    fitting.start_books(network, torch.from_numpy(VECTORS), 0)
    with torch.no_grad():
        network.books[0][20:] = 1e3
    return tokenizer, network


def test_dead_codes_come_back_to_life() -> None:
    tokenizer, network = planted_dead()
    watcher = Watcher()
    job = job_of(tokenizer, network, VECTORS, watcher)
    before = fitting.look(network, VECTORS)
    alive = np.unique(before.codes_NL[:, 0])
    dead = np.setdiff1d(np.arange(30), alive)
    assert len(dead) >= 10
    kept = network.books[0].detach()[alive].clone()
    # After a revival codes lie on residuals, the worst explained first; what is in use stays.
    error_N = np.linalg.norm(before.residuals_LND[1], axis=1)
    job.revive()
    after = fitting.look(network, VECTORS)
    assert after.utilization[0] > before.utilization[0]
    assert len(np.intersect1d(after.codes_NL[:, 0], dead)) >= len(dead) - 1
    assert torch.equal(network.books[0].detach()[alive], kept)
    worst_D = before.residuals_LND[0][error_N.argmax()]
    assert np.abs(network.books[0].detach().numpy()[dead] - worst_D).sum(1).min() == 0
    assert any("revived unused codes, by depth" in line for line in watcher.lines)


def test_revival_is_a_function_of_the_weights() -> None:
    books = []
    for _ in range(2):
        tokenizer, network = planted_dead()
        torch.manual_seed(len(books))
        job_of(tokenizer, network, VECTORS, Watcher()).revive()
        books.append([b.detach().clone() for b in network.books])
    assert all(torch.equal(a, b) for a, b in zip(*books))


def test_revival_comes_early_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    tokenizer, network = planted_dead()
    monkeypatch.setattr(RQVAETraining, "revive", lambda self: steps.append(now))
    loss = job_of(tokenizer, network, VECTORS, Watcher()).batch_loss(steps_per_epoch=2)
    for now in range(20):
        loss(np.arange(4), now)
    assert steps == [2, 4, 6, 8, 10, 12, 14, 16], "between epochs, while there is time left to learn from it"


def test_equal_residuals_get_one_code() -> None:
    """Twins among the worst explained items must not become twin codes: rounding would choose between them."""
    rows = np.repeat(np.arange(6, dtype=np.float32)[:, None], 5, axis=0)
    np.testing.assert_array_equal(fitting._different(rows, 3)[:, 0], [0, 1, 2])
    assert len(fitting._different(rows[:10], 4)) == 2
    assert len(fitting._different(rows, 0)) == 0


def test_progress_tells_use_reconstruction_and_collisions() -> None:
    watcher = Watcher()
    small().fit(TABLE, progress=watcher)
    assert watcher.lines[0].startswith("rq-vae start: used ")
    told = [line for line in watcher.lines if "unexplained" in line and "collisions" in line]
    assert len(told) == 4, "at the start, at both validations and at the end"
    small(codebooks=(600, 4)).fit(TABLE, progress=watcher)
    assert any("512 different items, so codebooks are reduced to (512, 4)" in line for line in watcher.lines)


def test_what_a_look_sees() -> None:
    tokenizer = small(training=training(40)).fit(TABLE)
    seen = fitting.look(tokenizer.network_, VECTORS)
    codes_NL = tokenizer.encode(TABLE).dense()
    np.testing.assert_array_equal(seen.codes_NL, codes_NL)
    prefixes = [len({tuple(c[:d]) for c in codes_NL.tolist()}) for d in (1, 2, 3)]
    np.testing.assert_allclose(seen.collisions, [1 - n / len(VECTORS) for n in prefixes])
    assert seen.unexplained == pytest.approx(unexplained(tokenizer), rel=1e-3)
    assert all(b < a for a, b in itertools.pairwise([1.0, *seen.left]))


def test_the_best_step_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that gets worse ends with the codes it had before."""
    scores = iter([1.0, 0.0])
    states: list[dict[str, np.ndarray]] = []

    def score(self: RQVAETraining) -> float:
        states.append({n: t.detach().clone().numpy() for n, t in self.network.state_dict().items()})
        return next(scores)

    monkeypatch.setattr(RQVAETraining, "score", score)
    found = small().fit(TABLE).state()
    assert all(np.array_equal(found[name], states[0][name]) for name in found)
    assert not all(np.array_equal(found[name], states[1][name]) for name in found)


@pytest.mark.parametrize(
    ("field", "value"),
    [("codebooks", ()), ("codebooks", (4, 0)), ("hidden", (8, 0)), ("latent", 0)],
)
def test_impossible_settings(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"rq-vae.{field} must be"):
        RQVAE(**{field: value})


def test_no_hidden_layer_is_a_linear_code() -> None:
    assert small(hidden=()).fit(TABLE).decode(Ragged.from_rows([[0, 1, 2]])).shape == (1, VECTORS.shape[1])


def test_a_state_of_other_settings_is_refused() -> None:
    state = small().fit(TABLE).state()
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        small(latent=5).load_state(state)
    del state["books.0"]
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        small().load_state(state)
