"""Vectors learnt from masked fields: a planted world, what the network is asked, new items, refused tables."""

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
from capsid.data.fields import Field
from capsid.data.item_table import ItemTable
from capsid.encode.base import l2_normalise
from capsid.encode.cache import encode_items
from capsid.encode.networks import FieldNetwork, draw_ends, draw_masks
from capsid.encode.sequence import FieldEncoder
from capsid.errors import ConfigError, DataError
from capsid.ragged import Ragged
from capsid.train.options import Training
from encode.catalogue import table_of

KINDS, EACH = 4, 6
FIELDS = (Field(column="brand", least=2), Field(column="categories", level=1, least=2))
ENCODER = FieldEncoder(fields=FIELDS, dim=16, training=Training(steps=120, batch_size=32, learning_rate=1e-2))
FEW = Training(steps=3, batch_size=8)


def planted(users: int = 160, seed: int = 0) -> ItemTable:
    """Users stay with brands that belong together: 0 with 1, 2 with 3. Categories say nothing. One item is new."""
    rng = np.random.default_rng(seed)
    pair = lambda user: np.arange(2 * EACH) + 2 * EACH * (user % 2)  # noqa: E731
    rows = [rng.permutation(pair(user))[:5] for user in range(users)]
    items = [f"i{n:02d}" for n in range(KINDS * EACH + 1)]
    brands = [f"brand {n // EACH % KINDS}" for n in range(len(items))]
    categories = [["all", f"kind {n % 3}"] for n in range(len(items))]
    frame = pl.DataFrame({"brand": brands, "categories": categories})
    return table_of(Vocabulary(items), frame, Ragged.from_rows(rows, np.int64))


def test_brands_that_are_taken_together_come_together() -> None:
    encoder = replace(ENCODER).fit(planted(), seed=1)
    unit_VD = l2_normalise(encoder.tables_[0])[1:]
    cosine_VV = unit_VD @ unit_VD.T
    assert min(cosine_VV[0, 1], cosine_VV[2, 3]) > max(cosine_VV[0, 2], cosine_VV[0, 3], cosine_VV[1, 2]) + 0.3


def test_a_vector_is_the_items_own_embeddings_side_by_side() -> None:
    table = planted()
    encoder = replace(ENCODER, training=FEW).fit(table)
    vectors_ND = encoder.transform(table)
    assert vectors_ND.shape == (25, 3 * 16)
    np.testing.assert_array_equal(vectors_ND[7, 16:32], encoder.tables_[0][2])
    np.testing.assert_array_equal(vectors_ND[7, 32:], encoder.tables_[1][2])
    assert vectors_ND[7, :16].any()
    assert not vectors_ND[-1, :16].any(), "an item in no history has no id of its own"
    np.testing.assert_array_equal(vectors_ND[-1, 16:32], encoder.tables_[0][1])


def test_a_new_item_has_its_fields_and_nothing_known_is_zeros() -> None:
    encoder = replace(ENCODER, training=FEW).fit(planted())
    frame = pl.DataFrame({"brand": ["brand 1", "never heard of", None], "categories": [["all"], ["x", "kind 2"], []]})
    late = encoder.transform(ItemTable.new_items(Vocabulary("abc"), frame, ()))
    np.testing.assert_array_equal(late[0], np.concatenate([np.zeros(16), encoder.tables_[0][2], encoder.tables_[1][0]]))
    np.testing.assert_array_equal(late[1, 16:], np.concatenate([encoder.tables_[0][0], encoder.tables_[1][3]]))
    assert not late[2].any()
    bare = ItemTable.new_items(Vocabulary("a"), pl.DataFrame({"title": ["x"]}), ("title",))
    assert not encoder.transform(bare).any(), "a table without the columns"


def test_the_loss_field_by_field_one_piece_at_a_time() -> None:
    shape = BlockShape(layers=2, heads=2, width=8, feedforward=16, history=6, dropout=0.3)
    network = FieldNetwork((5, 3, 4), shape).eval()
    reset(network, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8)
    fields_BLF = torch.from_numpy(np.random.default_rng(0).integers(0, 3, size=(3, 4, 3)))
    last_B = torch.tensor([3, 1, 2])
    masked_BF = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    wanted = []
    for row, last in enumerate(last_B.tolist()):
        alone = network(fields_BLF[[row], : last + 1], last_B[[row]], masked_BF[[row]])[0]
        for field, table in enumerate(network.values):
            if masked_BF[row, field]:
                cosines = F.cosine_similarity(table, alone[None])
                wanted.append(F.cross_entropy(8**0.5 * cosines, fields_BLF[row, last, field]))
    torch.testing.assert_close(network.loss(fields_BLF, last_B, masked_BF), torch.stack(wanted).sum() / 3)


def test_a_masked_field_of_the_last_item_is_not_seen() -> None:
    network = FieldNetwork((5, 3), BlockShape(layers=1, heads=1, width=8, feedforward=8, history=4, dropout=0.0)).eval()
    reset(network, 1, torch.Generator().manual_seed(0))
    one, other = torch.tensor([[[0, 1], [2, 0]]]), torch.tensor([[[0, 1], [2, 2]]])
    last, hidden, shown = torch.tensor([1]), torch.tensor([[False, True]]), torch.tensor([[True, False]])
    assert torch.equal(network(one, last, hidden), network(other, last, hidden))
    assert not torch.equal(network(one, last, shown), network(other, last, shown))
    history = torch.tensor([[[0, 2], [2, 0]]])
    assert not torch.equal(network(one, last, hidden), network(history, last, hidden)), "the history is never masked"


def test_draws_reach_every_number_of_masks_and_every_place_but_the_first() -> None:
    torch.manual_seed(0)
    counts = draw_masks(4_000, 4).sum(1)
    assert counts.unique().tolist() == [1, 2, 3, 4]
    assert np.bincount(counts.numpy())[1:].min() > 850
    ends = draw_ends(np.full(4_000, 5))
    assert ends.unique().tolist() == [1, 2, 3, 4]
    assert draw_ends(np.array([2, 2])).tolist() == [1, 1]


def test_a_killed_fit_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    table = planted()
    encoder = replace(ENCODER, training=replace(ENCODER.training, steps=20, validate_every=9))
    _, whole = encode_items(encoder, table, seed=2, cache=None)
    with pytest.raises(Killed):
        encode_items(encoder, table, seed=2, cache=tmp_path, progress=Killer("step 12/"))
    watcher = Watcher()
    _, resumed = encode_items(encoder, table, seed=2, cache=tmp_path, progress=watcher)
    assert any("resuming from step" in line for line in watcher.lines)
    np.testing.assert_array_equal(resumed, whole)
    other = replace(table, attributes=table.attributes.with_columns(brand=pl.lit("same")))
    assert encoder.cache_key(table) != encoder.cache_key(other)


def test_what_is_told_and_refused() -> None:
    table, watcher = planted(), Watcher()
    one = replace(table, attributes=table.attributes.with_columns(brand=pl.lit("same")))
    replace(ENCODER, training=FEW).fit(one, progress=watcher)
    assert "field brand has one value for all items, so it carries no information" in watcher.lines
    with pytest.raises(ConfigError, match="the items have no column 'brand'"):
        replace(ENCODER).fit(replace(table, attributes=table.attributes.drop("brand")))
    with pytest.raises(DataError, match=r"no item has a value of the field categories\[7\]"):
        replace(ENCODER, fields=(Field(column="categories", level=7),)).fit(table)
    with pytest.raises(DataError, match="no training history has two items"):
        replace(ENCODER).fit(replace(table, sequences=Ragged.from_rows([[0], [1]], np.int64)))
    with pytest.raises(ConfigError, match=r"famae\.dim must be a multiple of its 4 attention heads, got 6"):
        replace(ENCODER, dim=6).fit(table)
