from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.errors import ConfigError
from capsid.train.options import Training


@given(
    steps=st.integers(1, 300),
    warmup=st.floats(0, 1),
    rate=st.floats(1e-6, 1.0),
    final=st.floats(0, 1),
)
def test_the_rate_rises_then_falls_between_its_bounds(steps: int, warmup: float, rate: float, final: float) -> None:
    options = Training(steps=steps, warmup=warmup, learning_rate=rate, final_rate=final)
    rates = [options.rate(s) for s in range(steps)]
    warm = max(1, round(warmup * steps))
    assert all(0 < r <= rate * (1 + 1e-9) for r in rates)
    assert rates[: warm - 1] == sorted(rates[: warm - 1])
    assert rates[warm:] == sorted(rates[warm:], reverse=True)
    assert options.rate(warm - 1) == pytest.approx(rate)
    if warm < steps:
        assert options.rate(steps) == pytest.approx(final * rate)
        assert options.rate(10 * steps) == pytest.approx(final * rate)


def test_the_rate_by_hand() -> None:
    options = Training(steps=110, warmup=10 / 110, learning_rate=2.0, final_rate=0.5)
    assert [options.rate(s) for s in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert options.rate(60) == pytest.approx(1.5), "half-way between 2 and 1"
    assert options.rate(35) == pytest.approx(1 + 0.5 * (1 + math.cos(math.pi / 4)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("batch_size", 0),
        ("validate_every", 0),
        ("patience", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("clip", -1.0),
        ("warmup", 1.1),
        ("ema", -0.1),
        ("beta2", 2.0),
    ],
)
def test_impossible_options(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"training.{field} must be"):
        Training(**{field: value})
