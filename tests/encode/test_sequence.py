"""Vectors learnt from sequences: a planted world, what the network is asked, killed and resumed fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch.nn import functional as F
from worlds import Killed, Killer, Watcher

from capsid.base.blocks.layers import BlockShape, reset
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import l2_normalise
from capsid.encode.cache import encode_items
from capsid.encode.networks import SequenceNetwork
from capsid.encode.sequence import SequenceEncoder
from capsid.encode.text import HashingEncoder
from capsid.errors import DataError
from capsid.ragged import Ragged
from capsid.train.options import Training
from encode.catalogue import table_of

BRANCHES, EACH = 4, 6
ENCODER = SequenceEncoder(dim=16, training=Training(steps=120, batch_size=32, learning_rate=1e-2, validate_every=1_000))


def planted(users: int = 160, seed: int = 0) -> ItemTable:
    """Users stay within a branch; the items' only text is the same for all of them. The last item is never taken."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(EACH)[:5] + EACH * (user % BRANCHES) for user in range(users)]
    items = Vocabulary(f"i{n:02d}" for n in range(BRANCHES * EACH + 1))
    return table_of(items, pl.DataFrame({"title": ["a thing"] * len(items)}), Ragged.from_rows(rows, np.int64))


def same_branch_share(vectors_ND: np.ndarray) -> float:
    """Share of items whose nearest other item is of their own branch."""
    unit_ND = l2_normalise(vectors_ND)[: BRANCHES * EACH]
    cosine_NN = unit_ND @ unit_ND.T - 2 * np.eye(len(unit_ND))
    return float((cosine_NN.argmax(1) // EACH == np.arange(len(unit_ND)) // EACH).mean())


def test_items_of_a_branch_come_together_though_text_says_nothing() -> None:
    table = planted()
    vectors = replace(ENCODER).fit(table, seed=1).transform(table)
    assert same_branch_share(vectors) == 1.0
    text = HashingEncoder(dim=16, fields=("title",)).fit(table).transform(table)
    assert same_branch_share(text) < 0.5, "the text alone does not tell branches apart"
    assert not vectors[-1].any()
    assert vectors[:-1].any(1).all()


def test_an_item_without_behaviour_may_be_the_mean_of_the_others() -> None:
    table = planted()
    few = replace(ENCODER, training=Training(steps=2, batch_size=8))
    zeros, mean = (replace(few, unseen=unseen).fit(table, seed=1).transform(table) for unseen in ("zeros", "mean"))
    np.testing.assert_array_equal(zeros[:-1], mean[:-1])
    np.testing.assert_allclose(mean[-1], zeros[:-1].mean(0), rtol=1e-5, atol=1e-7)
    fitted = replace(few, unseen="mean").fit(table, seed=1)
    new = ItemTable.new_items(Vocabulary(["new"]), pl.DataFrame({"title": ["a thing"]}), ("title",))
    np.testing.assert_array_equal(fitted.transform(new)[0], mean[-1])


def test_an_item_in_no_history_of_two_has_zeros() -> None:
    table = planted()
    alone = Ragged.from_rows([*table.sequences, [BRANCHES * EACH]], np.int64)
    vectors = replace(ENCODER, training=Training(steps=2, batch_size=8)).fit(replace(table, sequences=alone))
    assert not vectors.transform(table)[-1].any()
    short = replace(table, sequences=Ragged.from_rows([[0], [1]], np.int64))
    with pytest.raises(DataError, match="no training history has two items"):
        replace(ENCODER).fit(short)


@pytest.mark.parametrize("length", [2, 5])
def test_the_loss_is_that_of_every_next_item_one_sequence_at_a_time(length: int) -> None:
    shape = BlockShape(layers=2, heads=1, width=8, feedforward=16, history=6, dropout=0.3)
    network = SequenceNetwork(11, shape).eval()
    reset(network, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8)
    rows = [[1, 2, 3, 4, 5, 6, 7][:length], [8, 9], [10, 0, 1]]
    losses = []
    for row in rows:
        for end in range(1, len(row)):
            scores = network(torch.tensor([row[:end]]))[0, -1] @ network.item.weight.T
            losses.append(F.cross_entropy(scores, torch.tensor(row[end])))
    found = network.loss(Ragged.from_rows(rows, np.int64))
    torch.testing.assert_close(found, torch.stack(losses).mean())


def test_a_killed_fit_goes_on_from_the_cache_with_the_same_bits(tmp_path: Path) -> None:
    table = planted()
    encoder = replace(ENCODER, training=replace(ENCODER.training, steps=60, validate_every=25))
    _, whole = encode_items(encoder, table, seed=2, cache=None)
    with pytest.raises(Killed):
        encode_items(encoder, table, seed=2, cache=tmp_path, progress=Killer("step 40/"))
    assert [p.suffix for p in tmp_path.iterdir()] == [".checkpoint"]
    watcher = Watcher()
    _, resumed = encode_items(encoder, table, seed=2, cache=tmp_path, progress=watcher)
    assert any("resuming from step" in line for line in watcher.lines)
    np.testing.assert_array_equal(resumed, whole)
    assert [p.name for p in tmp_path.iterdir()] == [encoder.cache_key(table, seed=2)], "no checkpoint is left"
    assert encoder.cache_key(table, seed=2) != encoder.cache_key(table, seed=3)
