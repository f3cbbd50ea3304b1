from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from capsid.blocks import cross_entropy
from capsid.blocks.cross_entropy import Added, linear_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 60, 10_000])
def test_value_and_slopes_are_torchs(monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_NUMBERS", chunk)
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
def test_a_number_added_to_some_scores_has_torchs_value_and_slope(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int
) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_NUMBERS", chunk)
    source = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 8, generator=source).requires_grad_() for n in (23, 11))
    targets = torch.randint(0, 11, (23,), generator=source)
    value = torch.tensor(-1.5, requires_grad=True)
    where = torch.rand(23, 11, generator=source) < 0.2
    fast = linear_cross_entropy(
        hidden, weight, targets, label_smoothing=smoothing, added=Added(*where.nonzero(as_tuple=True), value)
    )
    slow = F.cross_entropy(hidden @ weight.T + value * where, targets, label_smoothing=smoothing)
    torch.testing.assert_close(fast, slow)
    inputs = (hidden, weight, value)
    for a, b in zip(torch.autograd.grad(2.5 * fast, inputs), torch.autograd.grad(2.5 * slow, inputs)):
        torch.testing.assert_close(a, b)


def test_large_scores_do_not_overflow() -> None:
    hidden = torch.tensor([[300.0], [-300.0]])
    weight = torch.tensor([[1.0], [-1.0]])
    assert float(linear_cross_entropy(hidden, weight, torch.tensor([0, 1]))) == pytest.approx(0.0)
    assert float(linear_cross_entropy(hidden, weight, torch.tensor([1, 1]))) == pytest.approx(300.0)
