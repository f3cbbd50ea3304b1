from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worlds import Watcher

from capsid.base.storage.artifacts import MANIFEST
from capsid.data.item_table import ItemTable
from capsid.encode.cache import cached_parts, encode_items
from capsid.encode.factorised import CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.encode.text import HashingEncoder, TextEncoder
from capsid.errors import DataError
from capsid.ragged import Ragged
from encode.catalogue import COLD, make_table, new_items, table_of

JOINED = JoinedEncoder(parts=(HashingEncoder(), CollaborativeEncoder(dim=8)))


@pytest.fixture
def transforms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which encoders computed vectors."""
    done: list[str] = []
    for cls in (HashingEncoder, CollaborativeEncoder):
        original = cls.transform

        def transform(self, *args, _original=original, **options):
            done.append(self.kind)
            return _original(self, *args, **options)

        monkeypatch.setattr(cls, "transform", transform)
    return done


def shorter(table: ItemTable) -> ItemTable:
    """Another split of the same data: the last interaction of every user is held out."""
    rows = [row[:-1] for row in table.sequences]
    return table_of(table.items, table.attributes, Ragged.from_rows(rows))


def test_second_time_from_the_cache_with_the_same_bits(table: ItemTable, tmp_path: Path, transforms: list) -> None:
    first, vectors = encode_items(JOINED, table, cache=tmp_path)
    assert transforms == ["hashing", "collaborative"]
    watcher = Watcher()
    second, again = encode_items(JOINED, table, cache=tmp_path, progress=watcher)
    assert transforms == ["hashing", "collaborative"]
    assert "from the cache" in watcher.lines[0]
    np.testing.assert_array_equal(again, vectors)
    np.testing.assert_array_equal(second.transform(new_items()), first.transform(new_items()))
    assert JOINED.parts_ is None, "the encoder given stays a value"


def test_parts_can_be_computed_one_by_one(table: ItemTable, tmp_path: Path, transforms: list) -> None:
    """Processes that share a cache wait for each other part by part; the whole then computes none of them."""
    parts = cached_parts(JOINED)
    assert [part.kind for part in parts] == ["hashing", "collaborative"]
    for part in parts:
        encode_items(part, table, cache=tmp_path)
    assert transforms == ["hashing", "collaborative"]
    _, whole = encode_items(JOINED, table, cache=tmp_path)
    assert transforms == ["hashing", "collaborative"]
    np.testing.assert_array_equal(whole, encode_items(JOINED, table, cache=None)[1])
    assert cached_parts(parts[0]) == [parts[0]]


def test_cached_equals_plain(table: ItemTable, tmp_path: Path) -> None:
    _, vectors = encode_items(JOINED, table, seed=4, cache=tmp_path)
    np.testing.assert_array_equal(vectors, JoinedEncoder(parts=JOINED.parts).fit_transform(table, seed=4))
    np.testing.assert_array_equal(vectors, encode_items(JOINED, table, seed=4, cache=None)[1])


def test_parts_are_kept_on_their_own(table: ItemTable, tmp_path: Path, transforms: list) -> None:
    encode_items(JOINED, table, cache=tmp_path)
    transforms.clear()
    encode_items(JoinedEncoder(parts=JOINED.parts, dim=5), table, cache=tmp_path)
    encode_items(HashingEncoder(), table, cache=tmp_path)
    assert transforms == []
    encode_items(JOINED, shorter(table), cache=tmp_path)
    assert transforms == ["collaborative"], "text does not depend on the split"
    encode_items(JOINED, table, seed=1, cache=tmp_path)
    assert transforms == ["collaborative", "collaborative"], "text does not depend on the seed"


def test_text_key_ignores_what_cannot_matter(table: ItemTable) -> None:
    key = TextEncoder().cache_key(table)
    assert key == TextEncoder(batch_size=3).cache_key(shorter(table), seed=5)
    assert key == TextEncoder(fields=table.text_fields).cache_key(table)
    assert key != TextEncoder(max_tokens=16).cache_key(table)
    assert key != TextEncoder(fields=("title",)).cache_key(table)


@pytest.mark.parametrize("damage", ["byte", "manifest", "file", "empty", "swap"])
def test_a_damaged_entry_is_computed_again(damage: str, tmp_path: Path, table: ItemTable, transforms: list) -> None:
    _, vectors = encode_items(HashingEncoder(), table, cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    stored = folder / "vectors.npz"
    if damage == "byte":
        data = bytearray(stored.read_bytes())
        data[len(data) // 2] ^= 1
        stored.write_bytes(data)
    elif damage == "manifest":
        (folder / MANIFEST).unlink()
    elif damage == "file":
        stored.unlink()
    elif damage == "empty":
        for file in folder.iterdir():
            file.unlink()
    else:
        (folder / MANIFEST).write_text("{")
    watcher = Watcher()
    _, again = encode_items(HashingEncoder(), table, cache=tmp_path, progress=watcher)
    assert transforms == ["hashing", "hashing"]
    assert any("damaged and will be recomputed" in line for line in watcher.lines)
    np.testing.assert_array_equal(again, vectors)
    encode_items(HashingEncoder(), table, cache=tmp_path)
    assert len(transforms) == 2, "the repaired entry serves again"


def test_a_cache_that_cannot_be_written_costs_no_run(table: ItemTable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    watcher = Watcher()
    _, vectors = encode_items(HashingEncoder(), table, cache=tmp_path / "file", progress=watcher)
    assert vectors.any()
    assert any("could not be cached" in line for line in watcher.lines)


def test_no_cache_writes_nothing(table: ItemTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path))
    encode_items(HashingEncoder(), table, cache=None)
    assert list(tmp_path.iterdir()) == []
    encode_items(HashingEncoder(), table)
    assert len(list((tmp_path / "stages" / "vectors").iterdir())) == 1


def test_a_changed_file_of_vectors_is_noticed(table: ItemTable, tmp_path: Path) -> None:
    encoder = PrecomputedEncoder(path=str(tmp_path / "v.npy"))
    for value in (1.0, 2.0):
        np.save(tmp_path / "v.npy", np.full((len(table), 3), value))
        _, vectors = encode_items(encoder, table, cache=tmp_path / "cache")
        assert (vectors == value).all()


def test_vectors_that_are_no_numbers_stop_the_run(
    table: ItemTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashingEncoder, "transform", lambda self, table, progress: np.full((len(table), 2), np.nan))
    with pytest.raises(DataError, match="NaN or infinity: 'item-0'"):
        encode_items(HashingEncoder(), table, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_items_without_a_vector_are_told(tmp_path: Path) -> None:
    watcher = Watcher()
    _, vectors = encode_items(CollaborativeEncoder(), make_table(), cache=tmp_path, progress=watcher)
    assert (~vectors.any(axis=1)).sum() == COLD
    assert watcher.lines[-1] == "2 items have no vector: 'item-22', 'item-23'"
