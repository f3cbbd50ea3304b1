"""Popular items first, then the others (SA2CRQ): frozen codes, truncated losses, lengths that follow popularity."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds import Watcher, assert_resumes, make_table, shared_prefixes

from capsid.base.popularity import most_popular
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_fit import fit_rqvae
from capsid.tokenize.rivals.rqvae_network import RQVAENetwork, encode
from capsid.train.options import Training

TRAINING = Training(steps=30, batch_size=32, learning_rate=5e-3, ema=0.0, validate_every=15)


def world(items: int = 160, seed: int = 0) -> ItemTable:
    """Popular items crowd into a few dense groups, rare ones lie anywhere."""
    rng = np.random.default_rng(seed)
    popular_N = np.arange(items) < items // 2
    centres = 4 * rng.normal(size=(3, 10))
    dense = centres[rng.integers(0, 3, size=items)] + 0.5 * rng.normal(size=(items, 10))
    vectors = np.where(popular_N[:, None], dense, 4 * rng.normal(size=(items, 10)))
    counts = np.where(popular_N, 50 + np.arange(items), 1 + np.arange(items) % 3)
    return dataclasses.replace(make_table(vectors), counts=counts)


def small(**fields: Any) -> RQVAE:
    plain = {"codebooks": (4, 6, 6), "hidden": (24,), "latent": 6, "training": TRAINING}
    return RQVAE(**{**plain, "head": 0.8, "extra": 0.5, "crowd": 2, **fields})


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.sampled_from([0.1, 0.5, 0.8, 1.0]))
def test_the_fewest_items_with_a_share_of_the_interactions(counts: list[int], share: float) -> None:
    counts_N = np.array(counts)
    head = most_popular(counts_N, share)
    if share == 1 or not counts_N.sum():
        assert head.tolist() == list(range(len(counts)))
        return
    assert counts_N[head].sum() >= share * counts_N.sum()
    assert np.sort(counts_N)[::-1][: len(head) - 1].sum() < share * counts_N.sum()
    others = np.setdiff1d(np.arange(len(counts)), head)
    assert counts_N[head].min() >= counts_N[others].max(initial=0)


def test_without_stages_and_crowds_the_bits_are_the_plain_ones() -> None:
    table = world()
    plain = small(head=1.0, extra=0.0, crowd=0).fit(table, seed=2)
    wanted = fit_rqvae(plain, table, seed=2, checkpoint=None, progress=silent).state_dict()
    assert plain.state().keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(plain.state()[name], tensor.numpy())
    assert plain.encode(table) == encode(plain.network_, table.vectors())


def test_codes_of_the_first_stage_keep_their_bits_and_new_ones_learn() -> None:
    table = world()
    watcher = Watcher()
    tokenizer = small().fit(table, seed=2, progress=watcher)
    popular = table.take(most_popular(table.counts, 0.8))
    first = fit_rqvae(tokenizer, popular, seed=2, checkpoint=None, progress=silent)
    assert tokenizer.sizes == (6, 9, 9)
    for book_KD, old_KD in zip(tokenizer.network_.books, first.books):
        assert torch.equal(book_KD[: len(old_KD)], old_KD)
        assert book_KD[len(old_KD) :].abs().sum() > 0
    assert not torch.equal(tokenizer.network_.encoder[0].weight, first.encoder[0].weight), "the encoder learns on"
    codes = tokenizer.encode(table)
    new = codes.values >= np.array([4, 6, 6])[codes.positions]
    rare = np.setdiff1d(np.arange(160), most_popular(table.counts, 0.8))
    assert np.isin(codes.row_numbers[new], rare).mean() > 0.8, "new codes are for the others"
    assert any("others follow" in line for line in watcher.lines)


def test_no_new_codes_without_extra() -> None:
    assert small(extra=0.0).fit(world()).sizes == (4, 6, 6)


def test_an_id_ends_at_its_first_sparse_prefix_after_two_codes() -> None:
    table = world()
    tokenizer = small().fit(table)
    full_NL = encode(tokenizer.network_, table.vectors()).dense()
    shared = shared_prefixes(full_NL[most_popular(table.counts, 0.8)].tolist(), 2, "items")
    codes = tokenizer.encode(table)
    for own, full in zip(codes, full_NL.tolist()):
        ends = [length for length in (2, 3) if tuple(full[:length]) not in shared]
        assert len(own) == (ends[0] if ends else 3)
        assert own.tolist() == full[: len(own)]
    assert set(codes.lengths.tolist()) == {2, 3}


def test_popular_items_have_longer_ids() -> None:
    table = world()
    lengths_N = small().fit(table).encode(table).lengths
    assert lengths_N[:80].mean() > lengths_N[80:].mean() + 0.3


def test_the_loss_counts_the_depths_of_an_id_alone() -> None:
    """The slow twin: item by item, with its first codes only."""
    torch.manual_seed(0)
    network = RQVAENetwork(5, (), 3, (4, 4, 4))
    network.reset(torch.Generator().manual_seed(0))
    for book in network.books:
        torch.nn.init.normal_(book)
    x_BI, length_B = torch.randn(6, 5), torch.tensor([1, 2, 3, 2, 3, 1])
    found = network.quantize(network.encoder(x_BI))
    wanted = torch.zeros(())
    for row, length in enumerate(length_B.tolist()):
        z_D, total_D = network.encoder(x_BI[row]), torch.zeros(3)
        for depth in range(length):
            centre_D = network.books[depth][found.codes_BL[row, depth]]
            wanted = wanted + 1.25 * (z_D - total_D - centre_D).square().mean() / 6
            total_D = total_D + centre_D
        wanted = wanted + (network.decoder(total_D) - x_BI[row]).square().mean() / 6
    torch.testing.assert_close(network.loss_of(x_BI, found, length_B), wanted)
    everywhere = torch.full((6,), 3)
    torch.testing.assert_close(network.loss_of(x_BI, found, everywhere), network.loss_of(x_BI, found))
    (gradient,) = torch.autograd.grad(network.loss_of(x_BI, found, torch.full((6,), 1)), network.books[2])
    assert not gradient.any(), "a depth that no id reaches learns nothing"


def test_revival_leaves_frozen_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far-away codes of the first stage stay dead; without the guard the next inspection would move them."""
    from capsid.tokenize.rivals import rqvae_fit as stages

    plain = fit_rqvae

    def with_dead(*given: Any, **more: Any) -> RQVAENetwork:
        network = plain(*given, **more)
        network.books[0][0] = 1e3
        return network

    monkeypatch.setattr(stages, "fit_rqvae", with_dead)
    tokenizer = small(codebooks=(20, 20)).fit(world())
    assert (tokenizer.network_.books[0][0] == 1e3).all()


def test_a_new_item_is_cut_by_the_counts_of_the_fit() -> None:
    table = world()
    tokenizer = small().fit(table)
    late = make_table(np.repeat(table.vectors()[[120]], 9, axis=0), names=[f"late-{i}" for i in range(9)])
    own = tokenizer.encode(table)[120].tolist()
    assert [row.tolist() for row in tokenizer.encode(late)] == [own] * 9, "nine more items change no length"
    assert tokenizer.decode(Ragged.from_rows([own])).shape == (1, 10)


@pytest.mark.parametrize("word", ["step 7/30", "step 15/30", "others follow", "rq-vae done"])
def test_killed_in_either_stage_and_resumed_with_the_same_bits(word: str, tmp_path: Path) -> None:
    table = world()
    assert_resumes(small(), table, small().fit(table, seed=4).state(), word, tmp_path)


def test_killed_in_the_second_stage(tmp_path: Path) -> None:
    """The first stage is not trained again."""
    from worlds import Killed, Killer

    from capsid.base.run_options import CheckpointFile

    class Later(Killer):
        def update(self, text: str) -> None:
            self.armed = getattr(self, "armed", False) or "others follow" in text
            if self.armed:
                super().update(text)

    table, checkpoint = world(), CheckpointFile(tmp_path / "checkpoint", 0.0)
    with pytest.raises(Killed):
        small().fit(table, seed=4, checkpoint=checkpoint, progress=Later("step 7/30"))
    watcher = Watcher()
    resumed = small().fit(table, seed=4, checkpoint=checkpoint, progress=watcher).state()
    assert [line for line in watcher.lines if "resuming" in line] == [
        "rq-vae: resuming from step 30",
        "rq-vae: resuming from step 7",
    ]
    for name, array in small().fit(table, seed=4).state().items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"], "the second stage's own file is gone"


@pytest.mark.parametrize(("field", "value"), [("head", 0.0), ("head", 1.5), ("extra", -0.1), ("crowd", -1)])
def test_impossible_settings(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"rq-vae.{field} must be"):
        small(**{field: value})
