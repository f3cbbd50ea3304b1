"""Parity with transformers' T5: the same logits for the same weights, and the same lists as its `generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from worlds import ids_of_form, make_ids, next_scores, random_codes, random_histories, reader_of

from capsid.decode.beam import BeamSearch
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.ids.layout import END
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged

transformers = pytest.importorskip("transformers")

IDS = make_ids(random_codes(3, items=15, sizes=(4, 3, 3), variable=True), (4, 3, 3))
SIZES = {"layers": 2, "depth_layers": 2, "heads": 3, "head_width": 5, "width": 16, "feedforward": 24}
SMALL = {**SIZES, "history": 12, "buckets": 8, "reach": 20, "targets": "last", "repeats": False}
LENGTHS = [1, 4, 12, 2, 9]


def saved_t5(folder: Path, vocabulary: int, **other: Any) -> Any:
    """A T5 with random weights and SMALL's sizes, written as transformers writes it."""
    config = transformers.T5Config(
        **{
            "vocab_size": vocabulary,
            "d_model": 16,
            "d_kv": 5,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "decoder_start_token_id": 0,
            **other,
        }
    )
    torch.manual_seed(5)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape))
            if "relative" in name:
                parameter.mul_(4)
    model.save_pretrained(folder)
    return model


def ours(ids: SemanticIds, folder: Path, **fields: Any) -> EncoderDecoderGenerator:
    made = EncoderDecoderGenerator(**{**SMALL, "t5": str(folder), **fields})
    return made.build(ids, np.ones(len(ids)), seed=0)


def their_logits(model: Any, batch: Any, own: list[list[int]]) -> torch.Tensor:
    tokens = torch.from_numpy(batch.tokens_BL)
    begun = torch.tensor([[0, *row] for row in own])
    with torch.no_grad():
        return model(input_ids=tokens, attention_mask=tokens != 0, decoder_input_ids=begun).logits


@pytest.mark.parametrize(("activation", "layers"), [("relu", 3), ("gated-gelu", 2)])
def test_logits_are_those_of_transformers(tmp_path: Path, activation: str, layers: int) -> None:
    model = saved_t5(tmp_path, IDS.layout.vocabulary, feed_forward_proj=activation, num_decoder_layers=layers)
    generator = ours(IDS, tmp_path, activation=activation, depth_layers=layers)
    histories = random_histories(1, len(IDS), LENGTHS)
    batch = IDS.read(histories, last=12)
    own = torch.randint(2, IDS.layout.vocabulary, (len(LENGTHS), 3), generator=torch.Generator().manual_seed(0))
    expected = their_logits(model, batch, own.tolist())
    state, rows = generator.start(batch)
    found = generator.scores(state, rows)
    parents = torch.zeros(len(LENGTHS), 1, dtype=torch.long)
    for depth in range(4):
        torch.testing.assert_close(found[:, 0], expected[:, depth], rtol=1e-4, atol=1e-4)
        if depth < 3:
            state, found = next_scores(generator, state, parents, own[:, depth : depth + 1])
    # The same in training, where whole items are read at once.
    sequences = Ragged.from_rows([[*history, 7] for history in histories])
    predicted = generator.network.predict(IDS.lesson(sequences, last=13).latest())
    tokens = IDS.prefix_free[7].tolist()
    expected = their_logits(model, batch, [tokens[:-1]] * len(LENGTHS)).flatten(0, 1)
    found = predicted.scores_NV
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Ended:
    """Ids that have ended are filled up with padding at no cost."""

    def __init__(self, items: list[tuple[int, ...]]) -> None:
        self.items = set(items)

    def __contains__(self, sequence: torch.Tensor) -> bool:
        return tuple(token for token in sequence[1:].tolist() if token) in self.items

    def __call__(self, sequences: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ended = torch.tensor([sequence in self for sequence in sequences])
        scores[ended, 0] = 0.0
        return scores


@pytest.mark.parametrize(("form", "width"), [("fixed", 8), ("suffix", 8), ("variable", 20)])
def test_lists_are_those_of_generate(tmp_path: Path, form: str, width: int) -> None:
    """Ids of one length, with suffixes, and of several lengths with end tokens: the lists of all users are equal.

    `generate` keeps ids that have ended among its beams, so ids of several lengths get a beam for each item.
    """
    ids = ids_of_form(4, form)
    model, generator = saved_t5(tmp_path, ids.layout.vocabulary), ours(ids, tmp_path)
    histories = random_histories(2, len(ids), LENGTHS)
    found = BeamSearch(width=width).rank(reader_of(generator, ids, history=12), histories, 5)
    items = [tuple(row.tolist()) for row in ids.prefix_free]
    longest = max(map(len, items))

    ended = Ended(items)

    def allowed(_: int, sequence: torch.Tensor) -> list[int]:
        taken = tuple(sequence[1:].tolist())
        return [0] if sequence in ended else sorted({i[len(taken)] for i in items if i[: len(taken)] == taken} or {0})

    batch = ids.read(histories, last=12)
    theirs = model.generate(
        torch.from_numpy(batch.tokens_BL),
        attention_mask=torch.from_numpy(batch.tokens_BL != 0).long(),
        num_beams=width,
        num_return_sequences=5,
        max_new_tokens=longest,
        do_sample=False,
        length_penalty=0.0,
        early_stopping=False,
        # Ids end at leaves of the trie, which generate does not know.
        eos_token_id=None,
        logits_processor=transformers.LogitsProcessorList([ended]),
        prefix_allowed_tokens_fn=allowed,
        return_dict_in_generate=True,
        output_scores=True,
    )
    lists = [items.index(tuple(t for t in row[1:].tolist() if t)) for row in theirs.sequences]
    assert found.items_UK.tolist() == np.array(lists).reshape(-1, 5).tolist()
    np.testing.assert_allclose(found.scores_UK, theirs.sequences_scores.numpy().reshape(-1, 5), rtol=1e-4, atol=1e-4)
    assert form != "variable" or any(row[-1] == END for row in items)


def test_a_composed_token_is_loaded_as_it_is(tmp_path: Path) -> None:
    ids = ids_of_form(4, "merged")
    model = saved_t5(tmp_path, ids.layout.vocabulary)
    vectors = ours(ids, tmp_path).network.token.vectors()
    torch.testing.assert_close(vectors.enter_VD, model.shared.weight, rtol=1e-5, atol=1e-5)


def test_layers_alone_and_sharded_files(tmp_path: Path) -> None:
    model = saved_t5(tmp_path, 99, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    with pytest.raises(ConfigError, match="has 99 tokens, these ids have 12"):
        ours(IDS, tmp_path, activation="gated-gelu")
    one, other = (
        ours(IDS, folder, activation="gated-gelu", t5_tokens=False).state()
        for folder in (tmp_path, tmp_path / "sharded")
    )
    fresh = EncoderDecoderGenerator(**{**SMALL, "activation": "gated-gelu"}).build(IDS, np.ones(15), seed=0).state()
    assert torch.equal(one["token.weight"], fresh["token.weight"])
    theirs = model.state_dict()["decoder.block.1.layer.1.EncDecAttention.q.weight"]
    assert torch.equal(one["decoder.1.query.weight"], theirs)
    assert all(torch.equal(one[name], other[name]) for name in one)
    saved_t5(tmp_path, IDS.layout.vocabulary, tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="not tied"):
        ours(IDS, tmp_path)


def test_other_sizes_are_told_with_what_to_set(tmp_path: Path) -> None:
    saved_t5(tmp_path, IDS.layout.vocabulary)
    with pytest.raises(
        ConfigError, match=r"generator.width is 8 and must be 16, generator.layers is 1 and must be 2"
    ) as e:
        ours(IDS, tmp_path, layers=1, width=8)
    assert e.value.hint == "--set generator.width=16 --set generator.layers=2"


def test_broken_folders(tmp_path: Path) -> None:
    def refused(match: str, kind: type[Exception] = ArtifactError) -> None:
        with pytest.raises(kind, match=match):
            ours(IDS, tmp_path)

    refused("has no config.json")
    saved_t5(tmp_path, IDS.layout.vocabulary)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    good, tensors = config.read_text(), load_file(weights)
    name = "encoder.block.1.layer.0.SelfAttention.k.weight"
    save_file({**tensors, name: torch.zeros(15, 3)}, weights)
    refused(f"{name} has the shape 15 x 3 in model.safetensors, but config.json says 15 x 16")
    save_file({n: t for n, t in tensors.items() if n != name}, weights)
    refused(f"has no weights {name}")
    save_file({**tensors, name: torch.full((15, 16), float("nan"))}, weights)
    refused("not all finite")
    weights.write_bytes(weights.read_bytes()[:100])
    refused("is not a usable file of weights")
    weights.rename(tmp_path / "pytorch_model.bin")
    refused("has no model.safetensors")
    config.write_text(json.dumps({**json.loads(good), "model_type": "bert"}))
    save_file(tensors, weights)
    refused("a model of type bert, not one of t5, mt5", ConfigError)
    config.write_text("[1, 2")
    refused("is not a usable configuration")
