"""Histories read as mixtures of codes, from fit to new items: exact where nothing is mixed, kept with the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import small, world

from capsid.errors import ConfigError
from capsid.generate.generator import TimelineGenerator
from capsid.generate.timeline import TimelineTransformer
from capsid.ragged import Ragged
from capsid.recommender import Recommender


def fitted(name: str, strongest: int, *more: str) -> Recommender:
    settings = (f"generator.soft_input={strongest}", *more)
    return Recommender(small(name, 30).with_settings(settings)).fit(world())


def histories() -> list[list[str]]:
    data = world()
    return [data.items.ids(data.sequences[u][:n]) for u, n in ((0, 1), (1, 3), (2, 7))]


@pytest.mark.parametrize("name", ["capsid", "capsid-bpe", "rq-kmeans", "tiger"])
def test_one_code_is_as_before_to_the_bit(name: str) -> None:
    hard, one, soft = (fitted(name, strongest) for strongest in (0, 1, 4))
    assert hard.fitted.tokenizer.ids.mixtures is None
    for key, tensor in hard.fitted.generator.state().items():
        assert torch.equal(one.fitted.generator.state()[key], tensor)
    lists = [r.recommend_many(histories(), 9) for r in (hard, one, soft)]
    assert [a.scores for a in lists[0]] == [b.scores for b in lists[1]]
    assert [a.scores for a in lists[0]] != [b.scores for b in lists[2]]


def test_the_timeline_reads_the_mixture() -> None:
    soft = fitted("capsid", 4)
    ids, generator = soft.fitted.tokenizer.ids, soft.fitted.generator
    assert isinstance(generator, TimelineGenerator)
    network, mixtures = generator.network, ids.mixtures
    assert isinstance(network, TimelineTransformer)
    assert mixtures is not None
    table_VD = network.token.vectors().enter_VD
    x_D = torch.zeros(table_VD.shape[1])
    for depth in range(int(ids.codes.lengths[5])):
        tokens = torch.from_numpy(ids.layout.bases[depth] + mixtures.codes_NLK[5, depth])
        x_D = x_D + torch.from_numpy(mixtures.weights_NLK[5, depth]) @ table_VD[tokens]
    x_D = x_D + sum(table_VD[int(t)] for t in ids.prefix_free[5] if ids.layout.spans[t] == 0)
    for block in [*network.blocks, *network.depth_blocks]:
        x_D = block(x_D.view(1, 1, -1))[0].flatten()
    _, rows_UWD = generator.start(ids.read(Ragged.from_rows([[5]]), last=8))
    torch.testing.assert_close(rows_UWD.flatten(), x_D, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["capsid", "capsid-bpe"])
def test_saved_loaded_and_with_new_items(name: str, tmp_path: Path) -> None:
    soft = fitted(name, 3, "generator.soft_sharpness=2.0")
    soft.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert [a.scores for a in loaded.recommend_many(histories(), 9)] == [
        a.scores for a in soft.recommend_many(histories(), 9)
    ]
    data = world()
    twin = {c: [data.attributes[c][5]] for c in data.attributes.columns}
    loaded.add_items({"item_id": ["twin"], **twin})
    tokenizer = loaded.fitted.tokenizer
    mixtures, trace = tokenizer.ids.mixtures, tokenizer.tokenizer_.trace_vectors(tokenizer.vectors_, strongest=3)
    assert mixtures is not None
    assert len(mixtures) == len(data.items) + 1
    assert mixtures.sharpness == 2.0
    np.testing.assert_array_equal(mixtures.codes_NLK, trace.strongest)
    squares = trace.strongest_weight**2
    np.testing.assert_allclose(mixtures.weights_NLK, squares / squares.sum(2, keepdims=True), rtol=1e-4)
    assert loaded.recommend(["twin"], 3).personal


@pytest.mark.parametrize("name", ["rq-kmeans", "tiger"])
def test_codebooks_mix_nearby_codes(name: str, tmp_path: Path) -> None:
    soft = fitted(name, 3)
    tokenizer = soft.fitted.tokenizer
    mixtures = tokenizer.ids.mixtures
    assert mixtures is not None
    np.testing.assert_array_equal(mixtures.codes_NLK[:, :, 0], tokenizer.ids.codes.dense())
    assert (mixtures.weights_NLK[:, :, 0] < 1).any()
    soft.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    data = world()
    loaded.add_items({"item_id": ["twin"], **{c: [data.attributes[c][5]] for c in data.attributes.columns}})
    found = loaded.fitted.tokenizer.ids.mixtures
    assert found is not None
    assert len(found) == len(data.items) + 1
    assert loaded.recommend(["twin"], 3).personal


def test_a_tokenizer_without_weights_has_no_mixtures() -> None:
    with pytest.raises(ConfigError, match="has no weights of codes"):
        fitted("frequency", 4)


@pytest.mark.parametrize("generator", ["timeline", "encoder-decoder"])
def test_merged_tokens_without_their_members_cannot_be_softened(generator: str) -> None:
    soft = ["generator.soft_input=3", "generator.compose=false"]
    with pytest.raises(ConfigError, match=r"needs generator\.compose=true where tokens are merged"):
        small("capsid-bpe").with_settings([f"generator={generator}", *soft])
    for fine in (["generator.compose=true"], ["generator.soft_input=0"], ["merges=null"]):
        small("capsid-bpe").with_settings([f"generator={generator}", *soft, *fine])
