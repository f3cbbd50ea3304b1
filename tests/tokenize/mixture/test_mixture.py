"""The mixture of quantisers (ADA-SID): closed experts, the losses that close and open them, gates, resumed fits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F
from worlds import assert_resumes, make_table

from capsid.data.item_table import ItemTable
from capsid.errors import ArtifactError, ConfigError, DataError
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.tokenize.rivals import mixture_fit as fitting
from capsid.tokenize.rivals.mixture import Mixture, richness
from capsid.tokenize.rivals.mixture_fit import (
    SparsityWeights,
    alignment,
    alignment_weight,
    codebook_loss,
    reconstruction,
)
from capsid.tokenize.rivals.mixture_network import MixtureNetwork, encode
from capsid.train.options import Training

TRAINING = Training(steps=20, batch_size=32, learning_rate=5e-3, ema=0.0, validate_every=10)


def world(items: int = 120, seed: int = 0) -> tuple[ItemTable, np.ndarray]:
    """Content of four kinds; behaviour grows with popularity, and the last ten items have none."""
    rng = np.random.default_rng(seed)
    kind_N, group_N = rng.integers(0, 4, size=items), rng.integers(0, 5, size=items)
    content = 3 * rng.normal(size=(4, 10))[kind_N] + rng.normal(size=(items, 10))
    popularity_N = np.where(np.arange(items) < items - 10, np.linspace(3, 0.2, items), 0)
    behaviour = popularity_N[:, None] * (rng.normal(size=(5, 6))[group_N] + 0.3 * rng.normal(size=(items, 6)))
    table = dataclasses.replace(make_table(content), counts=np.round(3 ** (2 * popularity_N) - 1).astype(np.int64))
    return table.with_block("behaviour", behaviour.astype(np.float32)), popularity_N


def rows_of(table: ItemTable) -> np.ndarray:
    parts = table.vectors(), table.vectors("behaviour"), richness(table.counts)[:, None]
    return np.concatenate(parts, axis=1)


def small(**fields: Any) -> Mixture:
    return Mixture(**{"codebook": 8, "dim": 12, "training": TRAINING, **fields})


def random_network(experts: tuple[int, int, int] = (2, 2, 3), seed: int = 0) -> tuple[MixtureNetwork, np.ndarray]:
    network = MixtureNetwork((10, 6), experts, 8, (5,) * sum(experts))
    network.reset(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for book in network.books:
            book.normal_(generator=torch.Generator().manual_seed(seed + 1))
        network.router[-1].weight.mul_(30)
        network.router[-1].bias.zero_()
    table, _ = world()
    both = rows_of(table)
    network.measure(torch.from_numpy(both))
    return network.requires_grad_(True), both


def test_an_open_router_gives_all_items_with_behaviour_seven_codes() -> None:
    network, both = random_network()
    with torch.no_grad():
        network.router[-1].bias.fill_(1e3)
        codes_NE = encode(network, both).dense()
    assert codes_NE.shape[1] == 7
    assert (codes_NE[:110] >= 0).all()
    assert (codes_NE[110:, :4] >= 0).all()
    assert (codes_NE[110:, 4:] == -1).all(), "no behaviour: shared and content codes alone"


def test_codes_have_the_largest_cosine_to_their_experts() -> None:
    network, both = random_network()
    found = network(torch.from_numpy(both))
    for expert, book_KD in enumerate(network.books):
        cosines = F.cosine_similarity(found.outputs_BED[:, expert, None], book_KD, dim=2)
        assert torch.equal(cosines.argmax(1), found.codes_BE[:, expert])


def test_permuting_behaviour_experts_permutes_their_slots() -> None:
    network, both = random_network()
    before = encode(network, both).dense()
    order = [2, 0, 1]
    with torch.no_grad():
        experts, books = list(network.expert), list(network.books)
        network.expert = torch.nn.ModuleList([*experts[:4], *(experts[4 + i] for i in order)])
        network.books = torch.nn.ParameterList([*books[:4], *(books[4 + i] for i in order)])
        network.router[-1].weight.copy_(network.router[-1].weight[order])
        network.router[-1].bias.copy_(network.router[-1].bias[order])
    after = encode(network, both).dense()
    np.testing.assert_array_equal(after[:, :4], before[:, :4])
    np.testing.assert_array_equal(after[:, 4:], before[:, 4:][:, order])


def job_of(network: MixtureNetwork, both: np.ndarray) -> fitting.MixtureTraining:
    return fitting.MixtureTraining(TRAINING, network, both, both, silent, small())


def test_sparsity_closes_experts_of_items_below_their_target_and_opens_those_of_items_above() -> None:
    """By the sign of the gradient at every gate. The target falls as behaviour grows."""
    network, both = random_network()
    found = network(torch.from_numpy(both))
    (gradient_BE,) = torch.autograd.grad(job_of(network, both)._closing(found), found.gates_BE)
    assert not gradient_BE[:, :4].any(), "shared and content experts are never closed"
    assert not gradient_BE[110:].any(), "nor is anything opened for an item without behaviour"
    open_BE = found.gates_BE[:110, 4:] > 0
    target_B = 0.6 * (1 - found.richness_B[:110])
    closed_B = 1 - open_BE.float().mean(1)
    closing_BE = (closed_B < target_B)[:, None] & open_BE
    opening_BE = (closed_B > target_B)[:, None] & ~open_BE
    assert closing_BE.any()
    assert opening_BE.any()
    wanted_BE = closing_BE.float() - opening_BE.float()
    assert torch.equal(gradient_BE[:110, 4:].sign(), wanted_BE)


def test_of_one_fit_items_with_much_behaviour_have_longer_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """True of this seed, not in general: seeds 0 to 6 give rank correlations from -0.07 to 0.27."""
    table, popularity_N = world()
    longer = dataclasses.replace(TRAINING, steps=300, validate_every=300)
    monkeypatch.setattr(fitting, "SPARSITY", 0.01)
    lengths_N = (small(training=longer).fit(table).encode(table).dense() >= 0).sum(1)
    # Items without behaviour are left out: they would raise the correlation whatever the router does.
    assert spearmanr(lengths_N[:110], popularity_N[:110]).statistic > 0.25
    assert lengths_N[:40].mean() > lengths_N[70:110].mean() + 0.3
    assert (lengths_N[110:] == 4).all()


def test_gates_and_the_loss_item_by_item() -> None:
    """The slow twin of the forward pass, in the paper's terms."""
    network, both = random_network()
    x_BI = torch.from_numpy(both[100:])
    found = network(x_BI)
    losses, codebooks = [], []
    for row in range(len(x_BI)):
        content, behaviour, rich = x_BI[row, :10], x_BI[row, 10:16], x_BI[row, 16]
        content, scaled = (content - network.mean) / network.scale[0], behaviour / network.scale[1]
        h_t, h_b = network.content(content), network.behaviour(scaled)
        gates = [1.0, 1.0, *network.gate(content).softmax(0)]
        router = network.router(torch.cat([F.normalize(scaled, dim=0), rich[None]]))
        gates += list(rich.sigmoid() * router.relu() * float(behaviour.abs().sum() > 0))
        reads = [torch.cat([h_t, h_b])] * 2 + [h_t] * 2 + [h_b] * 3
        total, codebook = torch.zeros(8), torch.zeros(())
        for gate, expert, read, book_KD, code in zip(
            gates, network.expert, reads, network.books, found.codes_BE[row], strict=True
        ):
            total = total + gate * book_KD[code]
            if float(torch.as_tensor(gate).detach()) > 0:
                codebook = codebook + 1.25 * (expert(read) - book_KD[code]).square().mean()
        error = (network.decoder(total) - torch.cat([content, scaled])).square()
        losses.append(error[:10].sum() + (error[10:].sum() if behaviour.any() else 0))
        codebooks.append(codebook)
    torch.testing.assert_close(reconstruction(network, found), torch.stack(losses).mean() / 16)
    torch.testing.assert_close(codebook_loss(found), torch.stack(codebooks).mean())


def test_alignment_is_symmetric_and_spares_items_with_little_behaviour() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(6, 4, generator=rng), torch.randn(6, 4, generator=rng)
    torch.testing.assert_close(alignment(a, b, 0.5), alignment(b, a, 0.5))
    scores = F.cosine_similarity(a[2], b) / 0.5, F.cosine_similarity(a, b[2]) / 0.5
    wanted = sum(torch.logsumexp(s, 0) - s[2] for s in scores) / 2
    torch.testing.assert_close(alignment(a, b, 0.5)[2], wanted)
    assert float(alignment(a, 3 * a, 0.01).mean()) < 0.01
    weights = alignment_weight(torch.tensor([0.0, 0.4, 1.0]))
    assert weights[0] < 1e-3
    assert weights[1] < 0.01
    assert float(weights[2]) == pytest.approx(1)


def test_the_weight_of_sparsity_follows_its_target_by_group() -> None:
    weights = SparsityWeights(1e-3)
    richness = torch.tensor([0.05, 0.05, 0.95, 0.5])
    weights.adapt(richness, torch.tensor([0.0, 0.3, 0.5, 0.2]), torch.tensor([0.6, 0.6, 0.0, 0.2]))
    found = weights.of(torch.tensor([0.05, 0.95, 0.5, 0.3]))
    np.testing.assert_allclose(found, [1.1e-3, 1.1e-3, 1e-3 / 1.1, 1e-3], rtol=1e-5)
    for _ in range(500):
        weights.adapt(richness, torch.zeros(4), torch.ones(4))
    assert float(weights.weight_G.max()) == pytest.approx(1.0)


def test_one_outlier_does_not_make_all_others_poor() -> None:
    counts = np.array([10**9, *[50] * 150, *[5] * 40, 0])
    rich = richness(counts)
    assert rich[0] == 1
    assert rich[1] == 1
    assert 0.3 < rich[160] < 0.6
    assert rich[-1] == 0
    assert (richness(np.zeros(3, dtype=np.int64)) == 1).all(), "without counts nothing is known to be poor"


def test_what_codes_mean_without_their_gates() -> None:
    table, _ = world()
    tokenizer = small(training=dataclasses.replace(TRAINING, steps=200, validate_every=200)).fit(table)
    wrong_ND = table.vectors() - tokenizer.decode(tokenizer.encode(table))
    around_ND = table.vectors() - table.vectors().mean(0)
    assert (wrong_ND**2).sum() < 0.6 * (around_ND**2).sum()
    assert tokenizer.decode(Ragged.from_rows([[1], [1, 2, 3, 0, -1, 2]])).shape == (2, 10)


def test_dead_codes_come_back() -> None:
    table, _ = world()
    both = rows_of(table)
    network, _ = random_network()
    fitting.start_books(network, both, 0)
    with torch.no_grad():
        network.books[0][:3] = -1e3 * network.books[0][3]
    used = len(np.unique(encode(network, both).dense()[:, 0]))
    job_of(network, both).revive()
    assert len(np.unique(encode(network, both).dense()[:, 0])) > used


@pytest.mark.parametrize("word", ["step 7/20", "step 10/20", "step 13/20"])
def test_killed_and_resumed_with_the_same_bits(word: str, tmp_path: Path) -> None:
    table, _ = world()
    assert_resumes(small(), table, small().fit(table, seed=4).state(), word, tmp_path)


def test_what_is_refused() -> None:
    table, _ = world()
    with pytest.raises(DataError, match="no vectors 'behaviour'"):
        small().fit(make_table(table.vectors()))
    with pytest.raises(DataError, match="the vectors 'behaviour' of all items are zeros"):
        small().fit(table.with_block("behaviour", np.zeros((120, 6), dtype=np.float32)))
    with pytest.raises(ConfigError, match=r"mixture\.codebook must be at least 1, got 0"):
        small(codebook=0)
    state = small().fit(table).state()
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        small(dim=5).load_state(state)
    with pytest.raises(DataError, match="5 wide, expected 6"):
        small().load_state(state).encode(table.with_block("behaviour", np.ones((120, 5), dtype=np.float32)))


@pytest.mark.parametrize("experts", [(1, 0, 0), (1, 0, 2), (2, 3, 0)])
def test_kinds_of_experts_may_be_missing(experts: tuple[int, int, int]) -> None:
    table, _ = world()
    shared, content, behaviour = experts
    tokenizer = small(shared_experts=shared, content_experts=content, behaviour_experts=behaviour).fit(table)
    assert len(tokenizer.sizes) == sum(experts)
    assert (tokenizer.encode(table).dense()[:, : shared + content] >= 0).all()
