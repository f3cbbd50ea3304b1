from __future__ import annotations

import pytest
import torch

from capsid.base.blocks.packed import dropout


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.9])
def test_rate_and_mean(rate: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(1000, 301), rate, True)
    real = round(rate * 256) / 256
    assert float((out == 0).float().mean()) == pytest.approx(real, abs=0.005)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - real)))


def test_decisions_are_independent() -> None:
    """Eight decisions come from one number: they must not know of each other, nor of their place."""
    torch.manual_seed(1)
    dropped = (dropout(torch.ones(40_000, 8), 0.5, True) == 0).float()
    correlation = torch.corrcoef(dropped.T) - torch.eye(8)
    assert correlation.abs().max() < 0.03
    assert (dropped.mean(0) - 0.5).abs().max() < 0.02


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 0)])
def test_any_shape_and_the_same_state_the_same_decisions(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    torch.manual_seed(2)
    first = dropout(x, 0.5, True)
    assert first.shape == x.shape
    torch.manual_seed(2)
    assert torch.equal(dropout(x, 0.5, True), first)


def test_gradient_is_the_mask() -> None:
    x = torch.full((50, 50), 3.0, requires_grad=True)
    torch.manual_seed(3)
    out = dropout(x, 0.25, True)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), x.detach() * x.grad)


def test_nothing_happens_outside_training_or_at_rate_zero() -> None:
    x = torch.ones(5)
    state = torch.get_rng_state()
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
    assert torch.equal(torch.get_rng_state(), state)
