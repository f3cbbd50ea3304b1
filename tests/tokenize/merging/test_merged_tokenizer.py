"""An item tokenizer whose ids are merged: fitted, saved, loaded, given new items, revised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from merge_worlds import QUICK

from capsid.base.run_options import CheckpointFile
from capsid.data.dataset import Dataset
from capsid.data.planted import planted_dataset
from capsid.encode.text import HashingEncoder
from capsid.ids.collisions import Bucket, Suffix
from capsid.ids.merges import MergeTable
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans

NEW = {
    "item_id": ["n0", "n1", "n2"],
    "title": ["amber 1 birch 0 cedar 1 item 7", "amber 2 birch 1 cedar 0 item 8", "amber 3 birch 2 cedar 0 item 1"],
    "categories": [["amber 1", "birch 0", "cedar 1"], ["amber 2", "birch 1", "cedar 0"], ["amber 3", "birch 2"]],
}
MERGES = SemanticBPE(size=9, min_count=2, theta=(0.5, -1.0), training=QUICK)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return planted_dataset(branching=(4, 3, 2), items_per_leaf=3, users=40, length=6)


def make(collisions: Suffix | Bucket | None = None, merges: SemanticBPE | None = MERGES) -> ItemTokenizer:
    return ItemTokenizer(
        encoder=HashingEncoder(dim=24),
        tokenizer=ResidualKMeans(codebooks=(6, 6, 3), restarts=1),
        collisions=collisions or Suffix(),
        merges=merges,
    )


@pytest.mark.parametrize("collisions", [Suffix(), Bucket()])
def test_fit_save_load_and_add(data: Dataset, tmp_path: Path, collisions: Suffix | Bucket) -> None:
    plain = make(collisions, None).fit(data, seed=1)
    tokenizer = make(collisions).fit(data, seed=1)
    ids = tokenizer.ids
    assert (ids.codes, ids.unmerged) == (plain.ids.codes, plain.ids.tokens)
    assert 0 < len(ids.layout.merges) <= 9
    assert ids.layout.merges == tokenizer.merges_.table_
    assert ids.statistics().mean_tokens < plain.ids.statistics().mean_tokens
    assert ids.statistics().collision_rate_final == plain.ids.statistics().collision_rate_final
    for item in data.items:
        assert item in tokenizer.decode(ids[item])
    tokenizer.save_pretrained(tmp_path / "tok")
    loaded = ItemTokenizer.from_pretrained(tmp_path / "tok")
    assert loaded == tokenizer
    assert loaded.ids == ids
    assert loaded.merges_.table_ == tokenizer.merges_.table_
    np.testing.assert_array_equal(loaded.token_vectors(), tokenizer.token_vectors())
    assert loaded.with_items(NEW).ids == tokenizer.with_items(NEW).ids
    tokenizer, plain = tokenizer.with_items(NEW), plain.with_items(NEW)
    assert tokenizer.ids.layout == ids.layout
    assert all(tokenizer.ids[item] == ids[item] for item in data.items)
    assert tokenizer.ids.codes == plain.ids.codes
    assert any(tokenizer.ids[item] != plain.ids[item] for item in NEW["item_id"]), "new ids are merged as well"


def test_merged_tokens_start_from_their_members(data: Dataset) -> None:
    tokenizer = make().fit(data, seed=1)
    vectors, layout = tokenizer.token_vectors(), tokenizer.ids.layout
    assert vectors is not None
    assert vectors.shape[0] == layout.vocabulary
    for i, members in enumerate(layout.merges.members):
        wanted = vectors[members].sum(0) / np.sqrt(len(members))
        np.testing.assert_allclose(vectors[layout.merges.first + i], wanted, rtol=1e-5)
    assert np.isnan(vectors[layout.bases[-1] : layout.merges.first]).all(), "suffixes have none"


def test_a_folder_from_before_there_were_merges(data: Dataset, tmp_path: Path) -> None:
    make(merges=None).fit(data, seed=1).save(tmp_path)
    about = json.loads((tmp_path / "tokenizer.json").read_text())
    assert about.pop("merges") is None
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    loaded = ItemTokenizer.load(tmp_path)
    assert loaded.merges is loaded.merges_ is None
    assert loaded.ids.layout.merges == MergeTable()


def test_the_checkpoint_has_its_own_file(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    fit = SemanticBPE.fit
    monkeypatch.setattr(SemanticBPE, "fit", lambda self, *a, **k: asked.append(k["checkpoint"]) or fit(self, *a, **k))
    make().fit(data, seed=1, checkpoint=CheckpointFile(tmp_path / "work", 0.0))
    assert asked == [CheckpointFile(tmp_path / "work.merges", 0.0)]
