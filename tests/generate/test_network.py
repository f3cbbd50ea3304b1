"""The network's two ways to run agree with each other, with themselves in other company, and with torch's layers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import first_scores, make_ids, next_scores, random_codes, random_generator, random_histories, whole_rows

from capsid.generate.generator import SasRecGenerator, TimelineGenerator, TransformerGenerator
from capsid.generate.network import CausalTransformer
from capsid.generate.shape import TokenVectors
from capsid.ids.reading import TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged

IDS = make_ids(random_codes(3, items=15, sizes=(4, 3, 3), variable=True), (4, 3, 3))
LENGTHS = [1, 4, 6, 2, 9]


def full_logits(generator: TransformerGenerator, batch: TokenBatch) -> Tensor:
    """Logits at every position of whole sequences, without any cache."""
    arrays = (batch.tokens_BL, batch.positions_BL, batch.depths_BL)
    network = generator.network
    with torch.no_grad():
        vectors = network.token.vectors()
        return F.linear(
            network.score_rows(whole_rows(network, *(torch.from_numpy(a) for a in arrays))), vectors.score_VS
        )


def joined(history: np.ndarray, own: list[int], ids: SemanticIds, last: int) -> TokenBatch:
    """A history's tokens and then some tokens of a next item, as one sequence."""
    batch = ids.read(Ragged.from_rows([history]), last=last)
    position = int(batch.positions_B[0])
    return dataclasses.replace(
        batch,
        tokens_BL=np.append(batch.tokens_BL[0], np.array(own, dtype=np.int64))[None],
        positions_BL=np.append(batch.positions_BL[0], np.full(len(own), position))[None],
        depths_BL=np.append(batch.depths_BL[0], np.arange(len(own)))[None],
        lengths_B=batch.lengths_B + len(own),
    )


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), layers=st.integers(1, 3), heads=st.sampled_from([1, 2, 4]))
def test_cached_steps_are_the_full_forward(seed: int, layers: int, heads: int) -> None:
    """Histories of different lengths in one batch, beams that reorder at every step."""
    generator = random_generator(IDS, seed, layers=layers, heads=heads)
    rng = np.random.default_rng(seed)
    histories = random_histories(seed, len(IDS), LENGTHS)
    batch = IDS.read(histories, last=6)
    state, logits = first_scores(generator, batch)
    for user in range(len(histories)):
        alone = full_logits(generator, joined(histories[user], [], IDS, 6))
        torch.testing.assert_close(logits[user], alone[0, -1], rtol=1e-4, atol=1e-4)
    beams: list[list[list[int]]] = [[[]] for _ in histories]
    for width in (3, 5, 2):
        parents = rng.integers(0, len(beams[0]), (len(histories), width))
        tokens = rng.integers(1, IDS.layout.vocabulary, (len(histories), width))
        state, logits = next_scores(generator, state, torch.from_numpy(parents), torch.from_numpy(tokens))
        beams = [[[*beams[u][p], int(t)] for p, t in zip(parents[u], tokens[u])] for u in range(len(histories))]
        for user, own in enumerate(beams):
            for beam, path in enumerate(own):
                alone = full_logits(generator, joined(histories[user], path, IDS, 6))
                torch.testing.assert_close(logits[user, beam], alone[0, -1], rtol=1e-4, atol=1e-4)


def test_a_state_can_be_used_twice() -> None:
    """A step leaves the old state as it was, so one history can serve several searches."""
    generator = random_generator(IDS)
    state, _ = first_scores(generator, IDS.read(random_histories(0, len(IDS), [3, 5]), last=6))
    first, _ = generator.step(state, torch.zeros(2, 2, dtype=torch.long), torch.tensor([[2, 3], [4, 5]]))
    parents, tokens = torch.tensor([[1, 0], [0, 0]]), torch.tensor([[6, 7], [6, 7]])
    _, once = next_scores(generator, first, parents, tokens)
    generator.step(first, parents.flip(1), tokens)
    _, twice = next_scores(generator, first, parents, tokens)
    torch.testing.assert_close(once, twice, rtol=0, atol=0)


def test_padding_changes_nothing() -> None:
    generator = random_generator(IDS, 1)
    histories = random_histories(1, len(IDS), LENGTHS)
    together = full_logits(generator, IDS.read(histories, last=6))
    batch = IDS.read(histories, last=6)
    for user in range(len(histories)):
        alone = IDS.read(histories.take(np.array([user])), last=6)
        length = int(batch.lengths_B[user])
        torch.testing.assert_close(
            together[user, :length], full_logits(generator, alone)[0, :length], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("position", [0, 3, 7])
def test_a_later_token_does_not_change_earlier_scores(position: int) -> None:
    generator = random_generator(IDS, 2)
    batch = IDS.read(random_histories(2, len(IDS), [6]), last=6)
    before = full_logits(generator, batch)
    changed = batch.tokens_BL.copy()
    changed[0, position] = 2 + (changed[0, position] - 1) % (IDS.layout.vocabulary - 2)
    after = full_logits(generator, dataclasses.replace(batch, tokens_BL=changed))
    torch.testing.assert_close(after[0, :position], before[0, :position], rtol=1e-5, atol=1e-5)
    assert (after[0, position:] - before[0, position:]).abs().amax(1).min() > 1e-3, "it must change all later ones"


def test_position_and_depth_matter() -> None:
    generator = random_generator(IDS, 3)
    batch = IDS.read(random_histories(3, len(IDS), [4]), last=6)
    base = full_logits(generator, batch)
    for name in ("positions_BL", "depths_BL"):
        other = dataclasses.replace(batch, **{name: (getattr(batch, name) + 1) % 3})
        assert (full_logits(generator, other) - base).abs().max() > 1e-3


def reference(network: CausalTransformer) -> nn.TransformerEncoder:
    """torch's own pre-norm encoder with the same weights."""
    shape = network.shape
    layer = nn.TransformerEncoderLayer(
        shape.width, shape.heads, shape.feedforward, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    norm = nn.LayerNorm(shape.width)
    encoder = nn.TransformerEncoder(layer, shape.layers, norm=norm, enable_nested_tensor=False).eval()
    pairs = {
        "self_attn.in_proj_weight": "qkv.weight",
        "self_attn.in_proj_bias": "qkv.bias",
        "self_attn.out_proj.weight": "out.weight",
        "self_attn.out_proj.bias": "out.bias",
        "linear1.weight": "up.weight",
        "linear1.bias": "up.bias",
        "linear2.weight": "down.weight",
        "linear2.bias": "down.bias",
        "norm1.weight": "norm_attention.weight",
        "norm1.bias": "norm_attention.bias",
        "norm2.weight": "norm_feedforward.weight",
        "norm2.bias": "norm_feedforward.bias",
    }
    own = network.state_dict()
    state = {f"layers.{i}.{a}": own[f"blocks.{i}.{b}"] for i in range(shape.layers) for a, b in pairs.items()}
    encoder.load_state_dict({**state, "norm.weight": own["norm.weight"], "norm.bias": own["norm.bias"]})
    return encoder


@pytest.mark.parametrize("heads", [1, 4])
def test_parity_with_torchs_encoder(heads: int) -> None:
    generator = random_generator(IDS, 4, layers=3, heads=heads)
    network = generator.network
    batch = IDS.read(random_histories(4, len(IDS), LENGTHS), last=6)
    tokens, places, depths = (torch.from_numpy(a) for a in (batch.tokens_BL, batch.positions_BL, batch.depths_BL))
    with torch.no_grad():
        x = network.token(tokens) + network.place(places) + network.depth(depths)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = reference(network)(x, mask=mask, is_causal=True)
        expected = hidden @ network.token.weight.T
    torch.testing.assert_close(full_logits(generator, batch), expected, rtol=1e-4, atol=1e-4)


def test_gradients_have_parity_too() -> None:
    """The same loss through both: training must see the same slopes."""
    generator = random_generator(IDS, 5, scale=4.0)
    network = generator.network
    batch = IDS.read(random_histories(5, len(IDS), LENGTHS), last=6)
    tokens, places, depths = (torch.from_numpy(a) for a in (batch.tokens_BL, batch.positions_BL, batch.depths_BL))
    whole_rows(network, tokens, places, depths).square().mean().backward()
    own = network.token.weight.grad.clone()
    network.zero_grad()
    encoder = reference(network)
    encoder.norm = None
    x = network.token(tokens) + network.place(places) + network.depth(depths)
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    encoder(x, mask=mask, is_causal=True).square().mean().backward()
    torch.testing.assert_close(own, network.token.weight.grad, rtol=1e-3, atol=1e-6)


def test_fresh_weights_follow_the_seed() -> None:
    def weights(seed: int) -> Tensor:
        generator = TransformerGenerator(layers=2, heads=2, width=16, feedforward=24)
        return generator.build(IDS, np.ones(len(IDS)), seed=seed).network.token.weight

    torch.manual_seed(0)
    first = weights(1)
    torch.manual_seed(1)
    torch.testing.assert_close(weights(1), first, rtol=0, atol=0)
    assert not torch.equal(weights(2), first)
    state = TransformerGenerator(layers=2, width=64).build(IDS, np.ones(len(IDS)), seed=0).state()
    assert float(state["blocks.0.qkv.weight"].std()) == pytest.approx(0.02, rel=0.1)
    assert float(state["blocks.0.down.weight"].std()) == pytest.approx(0.01, rel=0.1)
    assert float(state["blocks.1.norm_attention.weight"].mean()) == 1.0


KINDS: dict[str, tuple[type[TransformerGenerator], dict[str, Any]]] = {
    "transformer": (TransformerGenerator, {}),
    "sasrec": (SasRecGenerator, {}),
    "timeline": (TimelineGenerator, {"reads": "places", "repeats": False}),
    "timeline, sasrec": (TimelineGenerator, {"reads": "sasrec", "repeats": False}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", ["start", "end"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_training_and_search_read_a_history_alike(kind: str, places: str, scale: float) -> None:
    """The rows that predict the tokens of an item are those that a search has after the history, step by step."""
    cls, fields = KINDS[kind]
    generator = random_generator(IDS, 2, kind=cls, positions_from=places, input_scale=scale, **fields)
    target = max(range(len(IDS)), key=lambda item: len(IDS.prefix_free[item]))
    for history in ([4], [1, 2, 3], [5, 6, 7, 8, 9, 10]):
        found = generator.network.predict(IDS.lesson(Ragged.from_rows([[*history, target]]), last=7))
        tokens = IDS.prefix_free[target].tolist()
        # A history of another length beside it, which must not matter.
        state, rows = generator.start(IDS.read(Ragged.from_rows([history, [11, 12]]), last=6))
        beams = torch.zeros(2, 1, dtype=torch.long)
        for depth, trained in enumerate(found.hidden_ND[-len(tokens) :]):
            torch.testing.assert_close(rows[0, 0], trained, rtol=1e-4, atol=1e-4)
            state, rows = generator.step(state, beams, torch.full((2, 1), tokens[depth]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", ["start", "end"])
def test_places_are_counted_from_the_end_that_is_named(kind: str, places: str) -> None:
    """Three items take the first three places, or the last three of the six."""
    cls, fields = KINDS[kind]
    generator = random_generator(IDS, 2, kind=cls, positions_from=places, **fields)
    _, logits = first_scores(generator, IDS.read(Ragged.from_rows([[1, 2, 3], [4]]), last=6))
    place = generator.network.place
    assert place is not None
    (gradient,) = torch.autograd.grad(logits[0].square().sum(), place.weight)
    used = gradient.abs().sum(1).nonzero()[:, 0].tolist()
    assert used == ([0, 1, 2] if places == "start" else [3, 4, 5])


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_scale_multiplies_what_enters_and_not_what_scores(kind: str) -> None:
    cls, fields = KINDS[kind]
    plain, scaled = (random_generator(IDS, 2, kind=cls, input_scale=s, **fields) for s in (1.0, 3.0))
    batch = IDS.read(Ragged.from_rows([[1, 2, 3], [4]]), last=6)
    own = plain.network.token.vectors
    plain.network.token.vectors = lambda: TokenVectors(3.0 * own().enter_VD, own().score_VS)  # type: ignore[method-assign]
    torch.testing.assert_close(scaled.start(batch)[1], plain.start(batch)[1], rtol=1e-5, atol=1e-5)
