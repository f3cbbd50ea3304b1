"""Rows without padding: a block gives them the values and slopes of padded sequences, and drops the same of them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from capsid.base.blocks.layers import Block, BlockShape, MixingBlock, NearBlock, SasRecBlock
from capsid.base.blocks.packed import Packed, Spread, dropout

Kind = TypeVar("Kind", Block, SasRecBlock, NearBlock, MixingBlock)
# Short and long ones in any order, so that there are several groups.
LENGTHS = np.array([3, 9, 1, 20, 4, 5, 17, 2])


def make(kind: type[Kind], rate: float) -> Kind:
    shape = BlockShape(
        layers=1,
        heads=2,
        width=8,
        feedforward=12,
        history=20,
        dropout=rate,
        attention_dropout=rate,
        hidden_dropout=rate,
    )
    block = kind(shape).train()
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source))
    return block


def slopes(block: nn.Module, rows_RD: Tensor, inputs: Tensor) -> list[Tensor]:
    factors = torch.randn(rows_RD.shape, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad((rows_RD * factors).sum(), [inputs, *block.parameters()]))


@pytest.mark.parametrize("rate", [0.0, 0.6])
@pytest.mark.parametrize(
    ("kind", "empty"),
    [
        (Block, False),
        (Block, True),
        (SasRecBlock, False),
        (SasRecBlock, True),
        (NearBlock, False),
        (MixingBlock, False),
    ],
)
def test_a_block_on_real_rows_is_the_block_on_padded_sequences(kind: type[Kind], empty: bool, rate: float) -> None:
    """To the same random numbers: what is dropped of one is dropped of the other."""
    block, packed = make(kind, rate), Packed.of(LENGTHS, 20)
    assert len(packed.groups) > 2
    empty_B = torch.as_tensor(20 - LENGTHS) if empty else None
    x_BLD = torch.randn(len(LENGTHS), 20, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.manual_seed(3)
    before: dict[str, Any] = {} if kind is MixingBlock else {"empty_B": empty_B}
    expected = packed.among.rows(block(x_BLD, **before)[0])
    after = torch.get_rng_state()
    torch.manual_seed(3)
    found = block.packed(packed.among.rows(x_BLD), packed, empty_B)
    assert torch.equal(torch.get_rng_state(), after)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(slopes(block, found, x_BLD), slopes(block, expected, x_BLD)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12), more=st.integers(0, 3))
def test_every_row_has_one_place(lengths: list[int], more: int) -> None:
    width = max(lengths) + more
    packed = Packed.of(np.array(lengths), width)
    slots = packed.among.slots_R
    there = {row * width + place for row, length in enumerate(lengths) for place in range(length)}
    assert len(slots) == len(there)
    assert set(slots.tolist()) == there
    assert torch.equal(packed.rows_at(slots), torch.arange(len(slots)))
    # The groups divide the rows in turn, and place each of them in its own sequence, at its own place.
    assert [g.rows.start for g in packed.groups] == [0, *(g.rows.stop for g in packed.groups)][:-1]
    for group in packed.groups:
        own, own_slots = group.own, slots[group.rows]
        sequence, place = own.slots_R // own.width, own.slots_R % own.width
        assert torch.equal(group.numbers_G[sequence] * width + place, own_slots)
    assert packed.groups[-1].rows.stop == len(slots)


def test_a_group_holds_lengths_up_to_twice_the_shortest() -> None:
    groups = Packed.of(LENGTHS, 20).groups
    assert [sorted(LENGTHS[g.numbers_G.numpy()].tolist()) for g in groups] == [[1, 2, 3, 4], [5], [9], [17, 20]]
    assert [g.own.width for g in groups] == [4, 5, 9, 20]


def test_what_is_dropped_of_rows_is_dropped_of_padded_sequences() -> None:
    packed = Packed.of(LENGTHS, 20)
    x_BLD = torch.ones(len(LENGTHS), 20, 3)
    torch.manual_seed(4)
    expected = packed.among.rows(dropout(x_BLD, 0.5, True))
    torch.manual_seed(4)
    assert torch.equal(dropout(packed.among.rows(x_BLD), 0.5, True, packed.among), expected)
    assert dropout(x_BLD, 0.5, False, packed.among) is x_BLD


@pytest.mark.parametrize("kind", [Block, SasRecBlock])
def test_dead_beams_are_left_out_of_a_step(kind: type[Block]) -> None:
    """Two steps: in the second one, beams continue live and dead ones. Live rows are what they are without `live`."""
    block = make(kind, 0.0).eval()
    source = torch.Generator().manual_seed(1)
    _, cache = block(torch.randn(3, 5, 8, generator=source))
    found, expected = cache, cache
    padding_UL = torch.arange(5) >= torch.tensor([5, 2, 4])[:, None]
    live_UW = torch.tensor([[True, True, False, False], [True, False, False, False], [True, True, True, False]])
    parents_UW = torch.zeros(3, 4, dtype=torch.int64)
    for _ in range(2):
        x_UWD = torch.randn(3, 4, 8, generator=source)
        rows, found = block.step(x_UWD, found, parents_UW, padding_UL, Spread.where(live_UW))
        whole, expected = block.step(x_UWD, expected, parents_UW, padding_UL)
        torch.testing.assert_close(rows[live_UW], whole[live_UW], rtol=1e-5, atol=1e-5)
        assert not rows[~live_UW].any()
        parents_UW = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [2, 0, 1, 0]])
