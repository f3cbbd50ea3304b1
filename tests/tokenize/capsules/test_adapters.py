"""Routing adapters: nothing before they learn, the same poses after folding, and no more churn than allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from worlds import make_table

from capsid.data.planted import planted_vectors
from capsid.errors import ConfigError
from capsid.ids.order import SharedPrefixes
from capsid.ragged import Ragged
from capsid.tokenize.capsules.capsules import CapsuleNetwork, LowRank
from capsid.tokenize.capsules.catalogue import trace
from capsid.tokenize.capsules.stage_two import fold, limit
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.train.options import Training

VECTORS = planted_vectors(branching=(4, 3, 3), items_per_leaf=3)
TABLE = make_table(VECTORS)


def fitted(**fields: Any) -> CapsuleTokenizer:
    training = Training(steps=4, batch_size=32, ema=0.0, validate_every=4)
    return CapsuleTokenizer(**{"codebooks": (4, 4, 4), "training": training, **fields}).fit(TABLE, seed=0)


def learn(adapters: torch.nn.ModuleList, size: float) -> None:
    """What training would do, only at once."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for adapter in adapters:
            adapter.up.copy_(size * torch.randn(adapter.up.shape, generator=rng))


def confidences(network: CapsuleNetwork) -> np.ndarray:
    return trace(network, VECTORS).confidence


@pytest.mark.parametrize("fields", [{}, {"poses": "full"}, {"poses": "full", "routing": "unit", "dim": 5}])
def test_an_adapter_that_learnt_nothing_changes_nothing_and_a_folded_one_stays(fields: dict[str, Any]) -> None:
    tokenizer = fitted(**fields)
    before = confidences(tokenizer.network_)
    names = set(tokenizer.state())
    adapters = tokenizer.begin_adapting(2, seed=1)
    np.testing.assert_array_equal(confidences(tokenizer.network_), before)
    assert len(adapters) == 3
    learn(adapters, 0.5)
    adapted = confidences(tokenizer.network_)
    assert np.abs(adapted - before).max() > 1e-3
    fold(tokenizer.network_)
    # Temperatures of 10 to 100 magnify rounding errors.
    np.testing.assert_allclose(confidences(tokenizer.network_), adapted, atol=1e-4)
    assert set(tokenizer.state()) == names, "a stored tokenizer knows nothing of adapters"


def test_only_adapters_learn() -> None:
    tokenizer = fitted()
    tokenizer.begin_adapting(8)
    learning = {n for n, p in tokenizer.network_.named_parameters() if p.requires_grad}
    assert learning == {f"layers.{d}.adapter.{part}" for d in range(3) for part in ("up", "down")}
    assert len(fitted().begin_adapting(0)) == 0, "without adapters nothing learns"
    with pytest.raises(ConfigError, match="rank of routing adapters must be at least 0, got -1"):
        tokenizer.begin_adapting(-1)


@pytest.mark.parametrize("most", [0.0, 0.1, 1.0])
def test_churn_is_bounded_and_the_change_is_as_large_as_that_allows(most: float) -> None:
    tokenizer = fitted()
    old = tokenizer.encode(TABLE)
    learn(tokenizer.begin_adapting(2, seed=1), 4.0)
    free = tokenizer.encode(TABLE)
    tokenizer.end_adapting(TABLE, old, most)
    new = tokenizer.encode(TABLE)

    def churn(codes: Ragged) -> float:
        return float(np.mean([not np.array_equal(a, b) for a, b in zip(old, codes)]))

    assert churn(free) > 0.1, "the planted change is too small to say anything"
    assert churn(new) <= most
    if most == 1.0:
        assert churn(new) > 0.1


def test_prefix_counts_follow_the_new_codes() -> None:
    tokenizer = fitted()
    old = tokenizer.encode(TABLE)
    learn(tokenizer.begin_adapting(2, seed=1), 4.0)
    tokenizer.end_adapting(TABLE, old, 1.0)
    full_NL = trace(tokenizer.network_, VECTORS).codes
    fresh = SharedPrefixes.count(full_NL, tokenizer.codebooks, tokenizer.max_sharing)
    stale = fitted().shared_prefixes_
    np.testing.assert_array_equal(tokenizer.shared_prefixes_.mask(full_NL), fresh.mask(full_NL))
    assert not np.array_equal(stale.mask(full_NL), fresh.mask(full_NL)), "the planted change must matter"


def test_the_limit_keeps_a_small_change_whole() -> None:
    tokenizer = fitted()
    adapters = tokenizer.begin_adapting(2)
    learn(adapters, 0.5)
    assert limit(tokenizer.network_, lambda: 0.01, 0.05) == 0.01
    for adapter in adapters:
        assert isinstance(adapter, LowRank)
        assert float(adapter.scale) == 1.0
