"""Blocks: dropout where settings ask for it, and the way that drops attention weights equals torch's own attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capsid.base.blocks.layers import Block, BlockShape, Layer, MixingBlock, NearBlock, SasRecBlock, reset
from capsid.base.blocks.packed import Spread

# Rates are rounded to 1/256, so this one takes the slow way through the attention and drops nothing.
NOTHING = 0.001


def make(kind: Callable[[BlockShape], Layer] = Block, **rates: float) -> Layer:
    shape = BlockShape(layers=1, heads=2, width=8, feedforward=12, history=6, dropout=0.0, **rates)
    block = kind(shape)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source))
    return block


def inputs() -> Tensor:
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", [Block, NearBlock])
def test_attention_that_could_drop_is_attention(kind: Callable[[BlockShape], Layer]) -> None:
    plain, dropping = make(kind).train(), make(kind, attention_dropout=NOTHING).train()
    torch.testing.assert_close(dropping(inputs())[0], plain(inputs())[0], rtol=1e-5, atol=1e-5)


def test_attention_that_could_drop_sees_what_the_padding_allows() -> None:
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] + [True] * 4])
    plain, dropping = make().train(), make(attention_dropout=NOTHING).train()
    expected = plain(inputs(), padding)[0]
    torch.testing.assert_close(dropping(inputs(), padding)[0], expected, rtol=1e-5, atol=1e-5)


def test_short_sequences_end_to_end_drop_as_well() -> None:
    rows, own = inputs().flatten(0, 1), Spread(torch.arange(15), 3, 5)
    plain, dropping = make(), make(attention_dropout=NOTHING).train()
    assert isinstance(plain, Block)
    assert isinstance(dropping, Block)
    torch.testing.assert_close(dropping.ragged(rows, own), plain.ragged(rows, own), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rate", ["attention_dropout", "hidden_dropout"])
@pytest.mark.parametrize("kind", [Block, NearBlock, MixingBlock])
def test_dropout_acts_in_training_only_and_keeps_the_mean(kind: Callable[[BlockShape], Layer], rate: str) -> None:
    """The mean over many draws is the output without dropout where nothing nonlinear follows: of what is added."""
    plain, dropping = make(kind), make(kind, **{rate: 0.5})
    if rate == "attention_dropout":
        with torch.no_grad():
            for block in (plain, dropping):
                block.down.weight.zero_()
    x = inputs()
    torch.testing.assert_close(dropping.eval()(x)[0], plain(x)[0], rtol=0, atol=0)
    dropping.train()
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([dropping(x)[0] for _ in range(4_000)])
        assert draws.std(0).max() > 0.1
        error = (draws.mean(0) - plain(x)[0]).abs() / (draws.std(0) / 4_000**0.5 + 1e-3)
    assert float(error.max()) < 6


def slow_sasrec(block: Block, x_LD: Tensor, empty: int) -> Tensor:
    """Position by position, with rows of zeros in front that every position sees."""
    width, heads = x_LD.shape[1], block.heads
    rows = torch.cat([torch.zeros(empty, width), x_LD])
    q, k, v = (
        (source @ block.qkv.weight[i * width : (i + 1) * width].T + block.qkv.bias[i * width : (i + 1) * width])
        for i, source in enumerate((block.norm_attention(rows), rows, rows))
    )
    out = []
    for place in range(empty, len(rows)):
        mixed = []
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            weights = (k[: place + 1, part] @ q[place, part] / (width / heads) ** 0.5).softmax(0)
            mixed.append(weights @ v[: place + 1, part])
        x = block.norm_feedforward(rows[place] + block.out(torch.cat(mixed)))
        out.append(x + block.down(torch.relu(block.up(x))))
    return torch.stack(out)


@pytest.mark.parametrize("drops", [0.0, NOTHING])
def test_the_block_of_sasrec_is_its_slow_twin(drops: float) -> None:
    block = make(SasRecBlock, attention_dropout=drops).train()
    assert isinstance(block, SasRecBlock)
    empty = torch.tensor([3, 0, 1])
    found, _ = block(inputs(), empty_B=empty)
    for row, expected in enumerate(inputs()):
        torch.testing.assert_close(found[row], slow_sasrec(block, expected, int(empty[row])), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Block, SasRecBlock])
def test_empty_positions_are_zeros_in_front(kind: Callable[[BlockShape], Layer]) -> None:
    """As a causal block sees them that is given the zeros."""
    block = make(kind)
    padded = torch.cat([torch.zeros(3, 2, 8), inputs()], 1)
    found, cache = block(inputs(), empty_B=torch.tensor([2, 2, 2]))
    expected, whole = block(padded)
    torch.testing.assert_close(found, expected[:, 2:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache.keys_UHLK, whole.keys_UHLK, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("initial", ["small", "xavier"])
def test_fresh_weights_have_the_spread_that_is_asked_for(initial: str) -> None:
    block = Block(BlockShape(layers=1, heads=2, width=64, feedforward=192, history=6, dropout=0.0))
    reset(block, 2, torch.Generator().manual_seed(0), initial)
    small = {"qkv": 0.02, "up": 0.02, "out": 0.01, "down": 0.01}
    sizes = {"qkv": 64 + 192, "up": 64 + 192, "out": 64 + 64, "down": 192 + 64}
    for name, linear in (("qkv", block.qkv), ("up", block.up), ("out", block.out), ("down", block.down)):
        expected = small[name] if initial == "small" else (2 / sizes[name]) ** 0.5
        assert float(linear.weight.detach().std()) == pytest.approx(expected, rel=0.05)
        assert not linear.bias.any()
