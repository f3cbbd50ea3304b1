from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from capsid.base.blocks import cross_entropy
from capsid.base.blocks.cross_entropy import Added, linear_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 60, 10_000])
@pytest.mark.parametrize("tile", [1, 4, 512])
def test_value_and_slopes_are_torchs(monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int, tile: int) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_NUMBERS", chunk)
    monkeypatch.setattr(cross_entropy, "TILE_TOKENS", tile)
    source = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=source).requires_grad_() for n in (23, 11))
    targets = torch.randint(0, 11, (23,), generator=source)
    fast = linear_cross_entropy(hidden, weight, targets, label_smoothing=smoothing)
    found = torch.autograd.grad(2.5 * fast, (hidden, weight))
    slow = F.cross_entropy(hidden @ weight.T, targets, label_smoothing=smoothing)
    expected = torch.autograd.grad(2.5 * slow, (hidden, weight))
    torch.testing.assert_close(fast, slow)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 60, 10_000])
@pytest.mark.parametrize("tile", [1, 4, 512])
def test_numbers_added_to_some_scores_have_torchs_values_and_slopes(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int, tile: int
) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_NUMBERS", chunk)
    monkeypatch.setattr(cross_entropy, "TILE_TOKENS", tile)
    source = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 8, generator=source).requires_grad_() for n in (23, 11))
    targets = torch.randint(0, 11, (23,), generator=source)
    where = torch.rand(23, 11, generator=source) < 0.2
    values = torch.randn(int(where.sum()), generator=source).requires_grad_()
    added = Added(*where.nonzero(as_tuple=True), values)
    fast = linear_cross_entropy(hidden, weight, targets, label_smoothing=smoothing, added=added)
    dense = torch.zeros(23, 11).index_put(where.nonzero(as_tuple=True), values)
    slow = F.cross_entropy(hidden @ weight.T + dense, targets, label_smoothing=smoothing)
    torch.testing.assert_close(fast, slow)
    inputs = (hidden, weight, values)
    for a, b in zip(torch.autograd.grad(2.5 * fast, inputs), torch.autograd.grad(2.5 * slow, inputs)):
        torch.testing.assert_close(a, b)


def test_numbers_of_two_kinds_are_summed_where_they_meet() -> None:
    rows, tokens = torch.tensor([0, 0, 2]), torch.tensor([1, 4, 0])
    one = Added(rows, tokens, torch.tensor([1.0, 2.0, 3.0]))
    two = Added(torch.tensor([0, 1]), torch.tensor([4, 0]), torch.tensor([10.0, 20.0]))
    both = one.joined(two)
    found = list(zip(both.rows_E.tolist(), both.tokens_E.tolist(), both.values_E.tolist()))
    assert found == [(0, 1, 1.0), (0, 4, 12.0), (1, 0, 20.0), (2, 0, 3.0)]


def test_large_scores_do_not_overflow() -> None:
    hidden = torch.tensor([[300.0], [-300.0]])
    weight = torch.tensor([[1.0], [-1.0]])
    assert float(linear_cross_entropy(hidden, weight, torch.tensor([0, 1]))) == pytest.approx(0.0)
    assert float(linear_cross_entropy(hidden, weight, torch.tensor([1, 1]))) == pytest.approx(300.0)
