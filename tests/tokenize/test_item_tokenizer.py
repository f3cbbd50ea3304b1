"""Encoder, tokenizer and collision policy as one thing: planted items in, ids out, new items later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capsid.base.storage.artifacts import folder_kind
from capsid.base.storage.mapped_arrays import in_file
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.data.planted import planted_dataset
from capsid.data.split import leave_one_out
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.encode.text import HashingEncoder
from capsid.errors import ArtifactError, ConfigError, DataError, NotFittedError
from capsid.ids.collisions import Bucket, CollisionPolicy, Reassign, Suffix
from capsid.ids.trie import Trie
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.lookup import Atomic
from capsid.tokenize.rivals.quantisers import ResidualKMeans

NEW = {
    "item_id": ["n0", "n1"],
    "title": ["amber 1 birch 0 cedar 1 item 7", "amber 2 birch 1 cedar 0 item 8"],
    "categories": [["amber 1", "birch 0", "cedar 1"], ["amber 2", "birch 1", "cedar 0"]],
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return planted_dataset(branching=(4, 3, 2), items_per_leaf=3, users=40, length=6)


def make(collisions: CollisionPolicy | None = None, codebooks: tuple[int, ...] = (6, 6)) -> ItemTokenizer:
    return ItemTokenizer(
        encoder=HashingEncoder(dim=24),
        tokenizer=ResidualKMeans(codebooks=codebooks, restarts=1),
        collisions=collisions or Suffix(),
    )


@pytest.fixture(scope="module")
def fitted(data: Dataset) -> ItemTokenizer:
    return make().fit(data, seed=1)


def test_ids_cover_the_catalogue(fitted: ItemTokenizer, data: Dataset) -> None:
    assert fitted.ids.items == data.items
    for item in data.items:
        assert fitted.decode(fitted.ids[item]) == [item]


def test_a_table_and_its_dataset_give_the_same(fitted: ItemTokenizer, data: Dataset) -> None:
    table = ItemTable.from_training(data, leave_one_out(data).train)
    assert make().fit(table, seed=1).ids == fitted.ids
    assert make().fit(planted_dataset(branching=(2, 2), users=9)).fit(data, seed=1).ids == fitted.ids, "refit"


def test_known_items_get_their_own_codes_again(fitted: ItemTokenizer, data: Dataset) -> None:
    frame = data.attributes.with_columns(pl.Series("item_id", list(data.items))).slice(5, 3)
    assert fitted.encode(frame) == {data.items[i]: tuple(fitted.ids.codes[i].tolist()) for i in (5, 6, 7)}


def test_new_items_land_beside_their_like(fitted: ItemTokenizer, data: Dataset) -> None:
    codes = fitted.encode(NEW)
    assert list(codes) == ["n0", "n1"]
    paths = data.attributes["categories"].to_list()
    for item, path in zip(NEW["item_id"], NEW["categories"]):
        siblings = [fitted.ids.codes[i].tolist()[0] for i, p in enumerate(paths) if p == path]
        assert codes[item][0] in siblings


def test_adding_changes_no_old_id_and_extends_the_trie(data: Dataset) -> None:
    tokenizer = make().fit(data, seed=1)
    before = tokenizer.ids
    trie = Trie.build(before.prefix_free)
    grown = tokenizer.with_items(NEW)
    after = grown.ids
    assert tokenizer.ids is before, "the old tokenizer is left alone"
    assert len(tokenizer.vectors_) == len(before)
    assert len(grown.vectors_) == len(after)
    assert list(after.items) == [*before.items, "n0", "n1"]
    assert all(after[item] == before[item] for item in before.items)
    assert after.layout == before.layout, "the generator's vocabulary must not change"
    assert grown.decode(after["n1"]) == ["n1"]
    trie = trie.extend(after.prefix_free.take(np.arange(len(before), len(after))))
    assert trie.rows() == after.prefix_free
    leaf = int(trie.leaf_of(np.array([len(before)]))[0])
    assert trie.path(leaf) == list(after["n0"])
    with pytest.raises(DataError, match="'n0' already has an id"):
        grown.with_items(NEW)
    assert len(grown.ids) == len(before) + 2


@pytest.mark.parametrize("collisions", [Suffix(), Bucket(), Reassign()])
def test_save_and_load(tmp_path: Path, data: Dataset, collisions: CollisionPolicy) -> None:
    tokenizer = make(collisions).fit(data, seed=1)
    tokenizer.save_pretrained(tmp_path / "tok")
    assert folder_kind(tmp_path / "tok") == "tokenizer"
    loaded = ItemTokenizer.from_pretrained(tmp_path / "tok")
    assert loaded == tokenizer
    assert loaded.ids == tokenizer.ids
    assert loaded.encode(NEW) == tokenizer.encode(NEW)
    np.testing.assert_array_equal(loaded.token_vectors(), tokenizer.token_vectors())
    grown = loaded.with_items(NEW)
    assert grown.ids == tokenizer.with_items(NEW).ids
    grown.save_pretrained(tmp_path / "tok")
    again = ItemTokenizer.from_pretrained(tmp_path / "tok")
    assert again.ids == grown.ids, "added items are saved too, over the folder they were read from"


def test_settled_codes_are_read_and_new_items_settle_around_them(data: Dataset, tmp_path: Path) -> None:
    # Codes enough for every item under one prefix, so that nothing has to share.
    tokenizer, other = make(Reassign(), codebooks=(6, 24)), make(Bucket(), codebooks=(6, 24))
    ids, plain = tokenizer.fit(data, seed=1).ids, other.fit(data, seed=1).ids
    assert ids.encoded == plain.codes
    assert ids.codes != plain.codes
    assert ids.statistics().collision_rate == plain.statistics().collision_rate > 0
    assert ids.statistics().collision_rate_final == 0
    tokenizer.save_pretrained(tmp_path / "tok")
    loaded = ItemTokenizer.from_pretrained(tmp_path / "tok")
    frame = data.attributes.with_columns(pl.Series("item_id", list(data.items)))
    for own in (tokenizer, loaded):
        assert list(own.encode(frame).values()) == [tuple(c.tolist()) for c in ids.codes]
    moved = next(i for i in range(len(ids)) if not np.array_equal(ids.codes[i], plain.codes[i]))
    copies = pl.concat([frame[[moved]], frame[[moved]], frame[[0]]]).with_columns(
        pl.Series("item_id", ["twin", "triplet", data.items[0]])
    )
    codes = loaded.encode(copies)
    assert codes[data.items[0]] == tuple(ids.codes[0].tolist())
    assert codes["twin"] == codes["triplet"] == tuple(plain.codes[moved].tolist()), "not settled yet"
    grown = loaded.with_items(copies[:2]).ids
    assert all(grown[item] == ids[item] for item in ids.items)
    assert grown.statistics().collision_rate_final == 0
    assert grown.statistics().collision_rate > ids.statistics().collision_rate


def test_a_policy_that_needs_costs_is_refused_before_anything_is_fitted(data: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"'reassign' needs costs of last codes.*'atomic' does not"):
        ItemTokenizer(tokenizer=Atomic(), collisions=Reassign()).fit(data)


def test_token_vectors_are_the_centres(fitted: ItemTokenizer) -> None:
    vectors, layout = fitted.token_vectors(), fitted.ids.layout
    assert vectors is not None
    assert vectors.shape[0] == layout.vocabulary
    centres = fitted.tokenizer_.centres()
    np.testing.assert_array_equal(vectors[layout.bases[0] : layout.bases[1]], centres[0])
    np.testing.assert_array_equal(vectors[layout.bases[1] : layout.bases[2]], centres[1])
    assert np.isnan(vectors[: layout.bases[0]]).all()
    assert np.isnan(vectors[layout.bases[2] :]).all()


def test_one_token_ids_need_no_encoder(data: Dataset, tmp_path: Path) -> None:
    tokenizer = ItemTokenizer(tokenizer=Atomic()).fit(data)
    assert [tokenizer.ids[i] for i in data.items[:3]] == [(2,), (3,), (4,)]
    assert tokenizer.token_vectors() is None
    tokenizer.save_pretrained(tmp_path / "tok")
    assert ItemTokenizer.from_pretrained(tmp_path / "tok").ids == tokenizer.ids
    with pytest.raises(DataError, match="'n0' was not in the catalogue"):
        tokenizer.with_items(NEW)


def test_vectors_of_known_items_have_one_owner(fitted: ItemTokenizer, data: Dataset, tmp_path: Path) -> None:
    """Vectors that come with the table are kept like those of an encoder, and left out only when asked."""
    table = ItemTable.from_training(data, leave_one_out(data).train).with_block("item", fitted.vectors_)
    given = ItemTokenizer(tokenizer=make().tokenizer, collisions=Suffix()).fit(table, seed=1)
    assert given.ids == fitted.ids
    assert given.vectors_ is table.vectors()
    given.without_vectors().save_pretrained(tmp_path / "bare")
    bare = ItemTokenizer.from_pretrained(tmp_path / "bare")
    assert bare.vectors_ is None
    assert bare.ids == fitted.ids
    assert given.vectors_ is not None, "the tokenizer itself keeps them"


def test_a_loaded_tokenizer_maps_what_has_a_row_for_every_item(data: Dataset, tmp_path: Path) -> None:
    """Vectors from a file are kept by the encoder too; a process that only recommends must not hold them."""
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(len(data.items), 8)).astype(np.float32))
    encoder = PrecomputedEncoder(path=str(tmp_path / "v.npy"))
    fitted = ItemTokenizer(encoder=encoder, tokenizer=make().tokenizer, collisions=Suffix()).fit(data, seed=1)
    fitted.save_pretrained(tmp_path / "tok")
    loaded = ItemTokenizer.from_pretrained(tmp_path / "tok")
    assert in_file(loaded.vectors_)
    assert in_file(loaded.encoder_.vectors_)
    known = {"item_id": [data.items[3], data.items[1]]}
    assert loaded.encode(known) == fitted.encode(known)


def test_unfitted_and_wrong_input(fitted: ItemTokenizer, tmp_path: Path) -> None:
    for ask in (
        lambda t: t.ids,
        lambda t: t.encode(NEW),
        lambda t: t.decode([2]),
        lambda t: t.token_vectors(),
        lambda t: t.save_pretrained(tmp_path / "never"),
    ):
        with pytest.raises(NotFittedError):
            ask(make())
    assert not (tmp_path / "never").exists()
    with pytest.raises(DataError, match=r"need a column 'item_id'.*title"):
        fitted.encode({"title": ["x"]})
    with pytest.raises(ArtifactError, match="there is no folder"):
        ItemTokenizer.from_pretrained(tmp_path / "never")
    with pytest.raises(ConfigError, match="cannot re-tokenise"):
        fitted.revise(ItemTable.new_items(fitted.ids.items, pl.DataFrame(), ()), np.zeros((1, 1)))
