"""LETTER's terms on codes: their formulas, where their gradients go, and what they are for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from worlds import assert_resumes, make_table

from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError, DataError
from capsid.tokenize.rivals import rqvae_fit as fitting
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_network import RQVAENetwork
from capsid.tokenize.rivals.rqvae_terms import BoundDiversity, BoundMatch, CodeDiversity, CodeStep, CollaborativeMatch
from capsid.train.options import Training

TRAINING = Training(steps=30, batch_size=32, learning_rate=3e-3, ema=0.0, validate_every=15)
MATCH, DIVERSITY = CollaborativeMatch(weight=0.5), CodeDiversity(weight=0.1)


def world(items: int = 96, seed: int = 0) -> tuple[ItemTable, np.ndarray]:
    """The text says A and behaviour says B: two partitions of the items that know nothing of each other."""
    rng = np.random.default_rng(seed)
    text_N, behaviour_N = rng.integers(0, 4, size=items), rng.integers(0, 4, size=items)
    vectors = 3 * rng.normal(size=(4, 10))[text_N] + rng.normal(size=(4, 10))[behaviour_N]
    vectors += 0.3 * rng.normal(size=(items, 10))
    behaviour = 3 * np.eye(6)[behaviour_N] + 0.1 * rng.normal(size=(items, 6))
    return make_table(vectors).with_block("behaviour", behaviour.astype(np.float32)), behaviour_N


def small(**fields: Any) -> RQVAE:
    return RQVAE(**{"codebooks": (8, 8), "hidden": (24,), "latent": 6, "training": TRAINING, **fields})


def step_of(table: ItemTable, rows: int = 32) -> tuple[RQVAENetwork, CodeStep]:
    network = RQVAENetwork(10, (24,), 6, (8, 8))
    network.reset(torch.Generator().manual_seed(0))
    x_NI = torch.from_numpy(table.vectors())
    network.measure(x_NI)
    fitting.start_books(network, x_NI, 0)
    found = network.quantize(network.encoder(network.enter(x_NI[:rows])))
    return network, CodeStep(np.arange(rows), found, list(network.books))


def gradients(network: RQVAENetwork, loss: torch.Tensor) -> tuple[float, float]:
    """Largest gradient at the encoder and at the codebooks."""
    network.zero_grad()
    loss.backward()
    largest = lambda parameters: max((float(p.grad.abs().max()) for p in parameters if p.grad is not None), default=0.0)  # noqa: E731
    return largest(network.encoder.parameters()), largest(network.books)


def test_match_is_a_softmax_over_the_batch_and_teaches_the_encoder_alone() -> None:
    table, _ = world()
    network, step = step_of(table)
    loss = BoundMatch(table.vectors("behaviour"), 6).loss(step)
    centres_BD = sum(book[code] for book, code in zip(network.books, step.found.codes_BL.T))
    scores = (centres_BD @ torch.from_numpy(table.vectors("behaviour")[:32]).T).detach()
    wanted = -np.mean([float(scores[i, i] - torch.logsumexp(scores[i], 0)) for i in range(32)])
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-4)
    encoder, books = gradients(network, loss)
    assert encoder > 0
    assert books == 0


def test_items_without_behaviour_take_no_part() -> None:
    table, _ = world()
    _, step = step_of(table)
    holes = table.vectors("behaviour").copy()
    holes[5:] = 0
    five = CodeStep(
        step.rows_B[:5], dataclasses.replace(step.found, residuals_LBD=[r[:5] for r in step.found.residuals_LBD]), []
    )
    term = BoundMatch(holes, 6)
    assert float(term.loss(step).detach()) == pytest.approx(float(term.loss(five).detach()))
    holes[1:] = 0
    assert float(BoundMatch(holes, 6).loss(step).detach()) == 0.0


def test_diversity_term_by_term_and_teaches_the_codebooks_alone() -> None:
    table, _ = world()
    network, step = step_of(table)
    term = BoundDiversity((8, 8), 3, 2, 6)
    term.begin(step.books)
    torch.manual_seed(7)
    loss = term.loss(step)
    torch.manual_seed(7)
    wanted = []
    for depth, book_KD in enumerate(network.books):
        codes, group_K = step.found.codes_BL[:, depth], term.group_of(depth)
        mates = torch.stack([(group_K == group_K[c]) & (torch.arange(8) != c) for c in codes])
        drawn = torch.multinomial(mates.float(), 1)[:, 0]
        each = []
        for code, mate in zip(codes.tolist(), drawn.tolist()):
            assert group_K[mate] == group_K[code]
            assert mate != code
            others = [k for k in range(8) if k != code]
            scores = book_KD[others] @ book_KD[code]
            each.append(F.cross_entropy(scores[None], torch.tensor([others.index(mate)])))
        wanted.append(torch.stack(each).mean())
    torch.testing.assert_close(loss, torch.stack(wanted).mean())
    encoder, books = gradients(network, loss)
    assert encoder == 0
    assert books > 0


@pytest.mark.parametrize("size", [1, 2, 3, 8, 40])
def test_groups_have_bounded_sizes_whatever_the_codebook(size: int) -> None:
    book_KD = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
    term = BoundDiversity((size,), 5, 3, 12)
    term.begin([book_KD])
    sizes = np.bincount(term.group_of(0).numpy())
    assert sizes.min() >= min(3, size)
    assert sizes.max() <= 12
    before = term.group_of(0).clone()
    term.begin([book_KD])
    assert torch.equal(term.group_of(0), before), "a function of the codebook alone"


def test_a_lonely_code_costs_nothing() -> None:
    table, _ = world()
    _, step = step_of(table)
    term = BoundDiversity((8, 8), 3, 2, 6)
    for depth in (0, 1):
        term.group_of(depth).copy_(torch.arange(8))
    assert float(term.loss(step).detach()) == 0.0


def test_terms_without_weight_leave_the_bits_alone() -> None:
    table, _ = world()
    plain = small().fit(table, seed=2).state()
    idle = (dataclasses.replace(MATCH, weight=0.0), dataclasses.replace(DIVERSITY, weight=0.0))
    for name, array in small(terms=idle).fit(table, seed=2).state().items():
        np.testing.assert_array_equal(array, plain[name])
    busy = small(terms=(MATCH, DIVERSITY)).fit(table, seed=2).state()
    assert busy.keys() == plain.keys(), "groups of codes are not part of the tokenizer"
    assert not np.array_equal(busy["books.0"], plain["books.0"])


def purity(codes_N: np.ndarray, truth_N: np.ndarray) -> float:
    return sum(np.bincount(truth_N[codes_N == c]).max() for c in np.unique(codes_N)) / len(codes_N)


def test_codes_follow_behaviour_as_the_match_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is three times as loud as behaviour in the vectors; only the term makes first codes say B."""
    monkeypatch.setattr(fitting.RQVAETraining, "revive", lambda self: None)
    table, behaviour_N = world()
    longer = dataclasses.replace(TRAINING, steps=400, batch_size=48, learning_rate=5e-3, validate_every=400)
    found = []
    for weight in (0.0, 0.5, 2.0):
        terms = (dataclasses.replace(MATCH, weight=weight),)
        tokenizer = small(codebooks=(4, 4), terms=terms, training=longer).fit(table)
        found.append(purity(tokenizer.encode(table).dense()[:, 0], behaviour_N))
    assert found[2] > found[1] > found[0] + 0.1
    assert found[2] > 0.8


def test_a_bounded_start_spreads_a_skewed_world_over_the_codes() -> None:
    """Nine of ten items in one tight cloud: plain k-means spends its centres on the rest."""
    rng = np.random.default_rng(0)
    wide_N1 = np.where(rng.random(200)[:, None] < 0.9, 0.05, 3.0)
    x_NI = torch.from_numpy((wide_N1 * rng.normal(size=(200, 10))).astype(np.float32))
    largest = []
    for bounded in (False, True):
        network = RQVAENetwork(10, (), 6, (8, 8))
        network.reset(torch.Generator().manual_seed(0))
        network.measure(x_NI)
        fitting.start_books(network, x_NI, 0, bounded=bounded)
        codes_N = network.quantize(network.encoder(network.enter(x_NI))).codes_BL[:, 0]
        largest.append(int(np.bincount(codes_N.numpy(), minlength=8).max()))
    assert largest[1] < 0.7 * largest[0]


@pytest.mark.parametrize("word", ["step 2/30", "step 7/30", "step 15/30"])
def test_killed_inside_an_epoch_and_resumed_with_the_same_bits(word: str, tmp_path: Path) -> None:
    """Three batches an epoch: the groups of the epoch's beginning are in the checkpoint."""
    table, _ = world()
    make = lambda: small(terms=(MATCH, DIVERSITY), start="bounded")  # noqa: E731
    assert_resumes(make(), table, make().fit(table, seed=4).state(), word, tmp_path)


def test_what_is_refused() -> None:
    table, _ = world()
    with pytest.raises(ConfigError, match=r"'behaviour' must be as wide as the latent \(9\), got 6"):
        small(terms=(MATCH,), latent=9).fit(table)
    with pytest.raises(DataError, match="no vectors 'behaviour'"):
        small(terms=(MATCH,)).fit(make_table(table.vectors()))
    with pytest.raises(DataError, match="the vectors 'behaviour' of all items are zeros"):
        small(terms=(MATCH,)).fit(table.with_block("behaviour", np.zeros((96, 6), dtype=np.float32)))


def test_diversity_alone_draws_groups_together_and_apart_from_each_other() -> None:
    """What the term does by itself; nothing here shows that more codes are used."""
    table, _ = world()
    network, step = step_of(table)
    term = BoundDiversity((8, 8), 3, 2, 6)
    term.begin(step.books)
    group_K, book_KD = term.group_of(0), network.books[0]
    alike_KK = (group_K[:, None] == group_K) & ~torch.eye(8, dtype=torch.bool)
    apart_KK = group_K[:, None] != group_K

    def contrast() -> float:
        scores_KK = (book_KD @ book_KD.T).detach()
        return float(scores_KK[alike_KK].mean() - scores_KK[apart_KK].mean())

    before = contrast()
    torch.manual_seed(0)
    for _ in range(20):
        chosen = [book[code] for book, code in zip(network.books, step.found.codes_BL.T)]
        found = dataclasses.replace(step.found, chosen_LBD=chosen)
        (gradient,) = torch.autograd.grad(term.loss(CodeStep(step.rows_B, found, list(network.books))), book_KD)
        with torch.no_grad():
            book_KD -= 0.5 * gradient
    assert contrast() > before + 0.5
