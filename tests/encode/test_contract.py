"""What every encoder promises, asked of every encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsid.base.config import from_dict, to_dict
from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.data.fields import Field
from capsid.data.item_table import ItemTable
from capsid.encode.factorised import AttributeEncoder, CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder, Views
from capsid.encode.kinds import ENCODERS
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.encode.sequence import FieldEncoder, SequenceEncoder
from capsid.encode.text import HashingEncoder, TextEncoder
from capsid.errors import DataError, NotFittedError
from capsid.train.options import Training
from encode.catalogue import COLD, make_table, new_items, permuted, some

HASHING, COLLABORATIVE = HashingEncoder(dim=48), CollaborativeEncoder(dim=8)
MAKERS: dict[str, Callable[[Path], Any]] = {
    "text": lambda folder: TextEncoder(batch_size=8),
    "hashing": lambda folder: HashingEncoder(dim=32),
    "collaborative": lambda folder: CollaborativeEncoder(dim=8),
    "sasrec": lambda folder: SequenceEncoder(dim=8, training=Training(steps=12, batch_size=16)),
    "attributes": lambda folder: AttributeEncoder(dim=8),
    "famae": lambda folder: FieldEncoder(
        fields=(Field(column="brand", least=2), Field(column="categories", level=1, least=2)),
        dim=8,
        training=Training(steps=12, batch_size=16),
    ),
    "precomputed": lambda folder: PrecomputedEncoder(path=str(folder / "own.npz")),
    "joined": lambda folder: JoinedEncoder(parts=(HASHING, COLLABORATIVE), dim=12),
    "joined-zero": lambda folder: JoinedEncoder(parts=(HASHING, COLLABORATIVE), missing="zero"),
    "joined-whole": lambda folder: JoinedEncoder(parts=(HASHING, COLLABORATIVE), block_dim=0, weights=(1.0, 0.5)),
    "joined-nested": lambda folder: JoinedEncoder(parts=(JoinedEncoder(parts=(HASHING,)), AttributeEncoder())),
    "views": lambda folder: Views(item=HASHING, others=(("behaviour", COLLABORATIVE),)),
}
KNOWS_NEW_ITEMS = [name for name in MAKERS if name not in ("collaborative", "sasrec", "precomputed")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vectors = np.random.default_rng(7).normal(size=(40, 6)).astype(np.float32)
    np.savez(tmp_path / "own.npz", vectors=vectors, ids=np.array([f"item-{i}" for i in range(40)]))
    return tmp_path


@pytest.fixture(params=MAKERS)
def encoder(request: pytest.FixtureRequest, folder: Path) -> Any:
    return MAKERS[request.param](folder)


def gram(vectors: np.ndarray) -> np.ndarray:
    return vectors @ vectors.T


def test_every_kind_is_tried() -> None:
    assert {name.split("-")[0] for name in MAKERS} == set(ENCODERS)
    assert all(cls.kind == kind for kind, cls in ENCODERS.items())


def test_fit_and_transform(encoder: Any, table: ItemTable) -> None:
    before = to_dict(encoder)
    assert encoder.fit(table, seed=3) is encoder
    vectors = encoder.transform(table)
    assert vectors.shape[0] == len(table)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    assert np.any(vectors != 0, axis=1).sum() >= len(table) - COLD
    assert to_dict(encoder) == before, "fit changed a hyperparameter"


def test_same_input_same_bits(encoder: Any, table: ItemTable, folder: Path) -> None:
    first = encoder.fit(table, seed=1).transform(table)
    again = from_dict(None, to_dict(encoder), ENCODERS).fit(table, seed=1).transform(table)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, encoder.transform(table))


def test_rows_follow_the_table(encoder: Any, table: ItemTable) -> None:
    order = np.random.default_rng(0).permutation(len(table))
    vectors = encoder.fit(table).transform(table)
    np.testing.assert_allclose(encoder.transform(permuted(table, order)), vectors[order], atol=1e-5)


def test_the_order_of_the_catalogue_means_nothing(encoder: Any, table: ItemTable) -> None:
    order = np.random.default_rng(1).permutation(len(table))
    straight = gram(encoder.fit(table).transform(table))
    shuffled = gram(encoder.fit(permuted(table, order)).transform(permuted(table, order)))
    np.testing.assert_allclose(shuffled, straight[np.ix_(order, order)], atol=2e-4)


def test_an_item_alone_is_the_same_as_in_company(encoder: Any, table: ItemTable) -> None:
    vectors = encoder.fit(table).transform(table)
    np.testing.assert_allclose(encoder.transform(some(table, [5])), vectors[[5]], atol=1e-5)


def test_refit_equals_fresh_fit(encoder: Any, table: ItemTable, folder: Path) -> None:
    other = make_table(items=32, users=40, seed=9)
    refitted = encoder.fit(other).fit(table).transform(table)
    fresh = from_dict(None, to_dict(encoder), ENCODERS).fit(table).transform(table)
    np.testing.assert_array_equal(refitted, fresh)


def test_saved_state_gives_the_same_bits(encoder: Any, table: ItemTable, tmp_path: Path) -> None:
    vectors = encoder.fit(table).transform(table)
    save_arrays(tmp_path / "state.npz", encoder.state())
    loaded = from_dict(None, to_dict(encoder), ENCODERS).load_state(load_arrays(tmp_path / "state.npz"))
    np.testing.assert_array_equal(loaded.transform(table), vectors)


def test_unfitted_says_so(encoder: Any, table: ItemTable) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        encoder.transform(table)
    with pytest.raises(NotFittedError):
        encoder.state()


def test_empty_tables(encoder: Any, table: ItemTable) -> None:
    with pytest.raises(DataError, match="no items"):
        encoder.fit(some(table, []))
    width = encoder.fit(table).transform(table).shape[1]
    assert encoder.transform(some(table, [])).shape == (0, width)


@pytest.mark.parametrize("name", KNOWS_NEW_ITEMS)
def test_new_items_land_beside_their_like(name: str, folder: Path, table: ItemTable) -> None:
    encoder = MAKERS[name](folder).fit(table)
    old, new = encoder.transform(table), encoder.transform(new_items())
    assert new.shape[1] == old.shape[1]
    nearest = (new @ old.T).argmax(axis=1)
    np.testing.assert_array_equal(nearest % 4, np.arange(4))


def test_new_items_without_evidence_are_zeros_or_an_error(folder: Path, table: ItemTable) -> None:
    for name in ("collaborative", "sasrec"):
        assert not MAKERS[name](folder).fit(table).transform(new_items()).any()
    with pytest.raises(DataError, match="no vector for 4 of 4 items: 'new-0'"):
        MAKERS["precomputed"](folder).fit(table).transform(new_items())


def test_cache_key_follows_data_and_hyperparameters(encoder: Any, table: ItemTable) -> None:
    key = encoder.cache_key(table)
    assert key == from_dict(None, to_dict(encoder), ENCODERS).cache_key(make_table())
    assert key == encoder.fit(table).cache_key(table), "learnt state must not change the key"
    assert key != encoder.cache_key(permuted(table, np.arange(len(table))[::-1])), "rows would come in the wrong order"


def test_configuration_round_trip(encoder: Any) -> None:
    rebuilt = from_dict(None, to_dict(encoder), ENCODERS)
    assert rebuilt == encoder
    assert type(rebuilt) is type(encoder)
