"""Several views of an item: named blocks, each cached by itself, stored with the encoder, of new items too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import Watcher

from capsid.base.config import from_dict, override, to_dict
from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.data.item_table import ItemTable
from capsid.encode.cache import encode_blocks, encode_items
from capsid.encode.factorised import AttributeEncoder, CollaborativeEncoder
from capsid.encode.joined import Views, blocks_of
from capsid.encode.kinds import ENCODERS
from capsid.encode.sequence import SequenceEncoder
from capsid.encode.text import HashingEncoder
from capsid.errors import ConfigError
from capsid.train.options import Training
from encode.catalogue import make_table, new_items

TEXT, BEHAVIOUR = HashingEncoder(dim=32), SequenceEncoder(dim=8, training=Training(steps=10, batch_size=16))
VIEWS = Views(item=TEXT, others=(("behaviour", BEHAVIOUR), ("facts", AttributeEncoder(dim=6))))


def test_a_view_is_what_its_encoder_gives(table: ItemTable, tmp_path: Path) -> None:
    fitted, blocks = encode_blocks(VIEWS, table, seed=2, cache=tmp_path)
    assert list(blocks) == ["item", "behaviour", "facts"]
    for name, part in VIEWS.parts.items():
        np.testing.assert_array_equal(blocks[name], encode_items(part, table, seed=2, cache=None)[1])
    np.testing.assert_array_equal(fitted.transform(table), blocks["item"])
    plain = Views(item=TEXT, others=VIEWS.others).fit(table, seed=2).blocks(table)
    assert all(np.array_equal(plain[name], blocks[name]) for name in blocks)
    assert VIEWS.parts_ is None, "the encoder given stays a value"


def test_each_view_is_cached_by_its_own_key(table: ItemTable, tmp_path: Path) -> None:
    encode_items(TEXT, table, cache=tmp_path)
    watcher = Watcher()
    encode_blocks(VIEWS, table, cache=tmp_path, progress=watcher)
    assert [line.split()[0] for line in watcher.lines if "from the cache" in line] == ["hashing"]
    assert {p.name for p in tmp_path.iterdir()} == {part.cache_key(table) for part in VIEWS.parts.values()}
    assert any("items have no vector in the view 'behaviour'" in line for line in watcher.lines)
    again = Watcher()
    encode_blocks(VIEWS, table, cache=tmp_path, progress=again)
    assert sum("from the cache" in line for line in again.lines) == 3
    renamed = Views(item=TEXT, others=(("deeds", BEHAVIOUR),))
    assert renamed.cache_key(table) != Views(item=TEXT, others=(("behaviour", BEHAVIOUR),)).cache_key(table)


def test_new_items_get_all_views_also_after_loading(table: ItemTable, tmp_path: Path) -> None:
    fitted, _ = encode_blocks(VIEWS, table, cache=None)
    blocks = blocks_of(fitted, new_items())
    assert {name: block.shape for name, block in blocks.items()} == {
        "item": (4, 32),
        "behaviour": (4, 8),
        "facts": (4, 6),
    }
    assert blocks["item"].any(1).all()
    assert not blocks["behaviour"].any(), "nobody has taken a new item yet"
    save_arrays(tmp_path / "state.npz", fitted.state())
    loaded = from_dict(None, to_dict(VIEWS), ENCODERS).load_state(load_arrays(tmp_path / "state.npz"))
    for name, block in blocks_of(loaded, new_items()).items():
        np.testing.assert_array_equal(block, blocks[name])
    assert list(blocks_of(TEXT.fit(make_table()), new_items())) == ["item"], "other encoders have one view"


def test_configuration() -> None:
    rebuilt = from_dict(None, to_dict(VIEWS), ENCODERS)
    assert rebuilt == VIEWS
    assert override(VIEWS, "others.0.1.dim", "12", ENCODERS).parts["behaviour"].dim == 12


@pytest.mark.parametrize("name", ["item", "learnt", "", "Big", "a/b", "..", "facts"])
def test_names_that_cannot_be(name: str) -> None:
    others: tuple[tuple[str, Any], ...] = (("facts", TEXT), (name, CollaborativeEncoder()))
    with pytest.raises(ConfigError, match=r"views.others needs a valid, unused name for each view, got"):
        Views(item=TEXT, others=others)


def test_views_hold_no_views() -> None:
    with pytest.raises(ConfigError, match="'item' has views itself"):
        Views(item=VIEWS)
