"""Ranking metrics from ranks: arrays in, arrays out, one value a user. NumPy only, no models, no files.

A rank counts from 1; 0 means that the target was not among the ranked items. With several items on one id there are
three readings (methods 6.9 and 9.9): `expanded` (bucket in its fixed order; the default), `expected` (mean over all
orders of the bucket) and `optimistic` (an id match is a hit; never a headline).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class TargetRanks:
    """Where each user's target came. `before` items stood in better buckets, `size` in its own; 0 size: not found."""

    expanded: np.ndarray
    optimistic: np.ndarray
    before: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.expanded)


def gains(metric: str, ranks: np.ndarray, k: int) -> np.ndarray:
    """Recall, NDCG or MRR at k of every user, with one relevant item. Shape: (users,)."""
    hit = (ranks >= 1) & (ranks <= k)
    safe = np.where(hit, ranks, 1).astype(np.float64)
    if metric == "recall":
        return hit.astype(np.float64)
    if metric == "ndcg":
        return np.where(hit, 1.0 / np.log2(safe + 1.0), 0.0)
    if metric == "mrr":
        return np.where(hit, 1.0 / safe, 0.0)
    raise ValueError(f"unknown metric {metric!r}: recall, ndcg or mrr")


def expected_gains(metric: str, ranks: TargetRanks, k: int) -> np.ndarray:
    """Mean gain over all orders of the target's bucket. Shape: (users,)."""
    discounts = gains(metric, np.arange(1, k + 1), k)
    running = np.concatenate([[0.0], np.cumsum(discounts)])
    first = np.minimum(ranks.before, k)
    last = np.minimum(ranks.before + ranks.size, k)
    return np.where(ranks.size > 0, (running[last] - running[first]) / np.maximum(ranks.size, 1), 0.0)


def per_user(ranks: TargetRanks, ks: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Every metric at every k: `recall@10`, and `recall@10:expected`, `recall@10:optimistic`."""
    out: dict[str, np.ndarray] = {}
    for k in ks:
        for metric in ("recall", "ndcg", "mrr"):
            name = f"{metric}@{k}"
            out[name] = gains(metric, ranks.expanded, k)
            out[f"{name}:expected"] = expected_gains(metric, ranks, k)
            out[f"{name}:optimistic"] = gains(metric, ranks.optimistic, k)
    return out


def coverage(items_UK: np.ndarray, catalogue: int) -> float:
    """Share of the catalogue that somebody was recommended."""
    return len(np.unique(items_UK[items_UK >= 0])) / max(catalogue, 1)


def exposure(items_UK: np.ndarray, tiers: np.ndarray) -> tuple[float, float, float]:
    """Share of all recommended places that went to head, torso and tail."""
    shown = items_UK[items_UK >= 0]
    counts = np.bincount(tiers[shown], minlength=3)
    head, torso, tail = (float(c) / max(len(shown), 1) for c in counts)
    return head, torso, tail


def ndcg_recall_slope(recall5: float, recall10: float, ndcg5: float, ndcg10: float) -> float | None:
    """(N@10 - N@5) / (R@10 - R@5): with one target a user it lies in [0.289, 0.356] (methods 6.0, R1)."""
    if recall10 == recall5:
        return None
    return (ndcg10 - ndcg5) / (recall10 - recall5)
