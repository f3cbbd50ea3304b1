"""Ranking metrics in two tables: those of each user, and those of all lists together. NumPy only, no models, no files.

`evaluate`, its `--help` and its tables read `METRICS` and `LIST_METRICS`, so a new metric is one entry here.

A rank counts from 1; 0 means that the target was not among the ranked items. If several items share an id there are
three variants: `expanded` (bucket in its fixed order; the default), `expected` (mean over all orders of the bucket) and
`optimistic` (an id match is a hit; never a headline).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.base.popularity import TIERS, popularity_tiers
from capsid.errors import ConfigError
from capsid.settings import short

# A longer list is surely a mistake, and would take memory for every user.
MOST_K = 100_000


def check_k(k: Any, what: str = "k") -> int:
    """A checked k."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= MOST_K:
        raise ConfigError(
            f"{what} must be a whole number from 1 to {MOST_K:,}, got {short(k, 40)}", hint=f"such as {what} 10"
        )
    return int(k)


def check_ks(ks: Any) -> tuple[int, ...]:
    """Lengths of lists, increasing."""
    numbers = (ks,) if isinstance(ks, int | np.integer) else ks
    if isinstance(numbers, str | bytes) or not isinstance(numbers, Iterable) or not tuple(numbers):
        raise ConfigError(f"ks must be whole numbers such as (5, 10), got {ks!r}", hint="pass ks=(5, 10)")
    return tuple(sorted({check_k(k) for k in numbers}))


@dataclass(frozen=True, eq=False)
class TargetRanks:
    """Rank of each user's target. `before` counts items in better buckets, `size` those in its own; 0: not found."""

    expanded: np.ndarray
    optimistic: np.ndarray
    before: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.expanded)


@dataclass(frozen=True)
class Metric:
    """A metric per user with one relevant item. `label` heads its column, `about` is one sentence for people.

    `gain` is the value of a hit at each rank. Shape: (users,) to (users,).
    """

    name: str
    label: str
    about: str
    gain: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ListMetric:
    """A metric of all users' lists together, from the lists (padded with -1) and the items' training counts."""

    name: str
    about: str
    value: Callable[[np.ndarray, np.ndarray], float | dict[str, float]]


def gains(metric: str, ranks: np.ndarray, k: int) -> np.ndarray:
    """One of the `METRICS` at k of every user, with one relevant item. Shape: (users,)."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}, must be one of: {', '.join(METRICS)}")
    hit = (ranks >= 1) & (ranks <= k)
    return np.where(hit, METRICS[metric].gain(np.where(hit, ranks, 1).astype(np.float64)), 0.0)


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
        for metric in METRICS:
            name = f"{metric}@{k}"
            out[name] = gains(metric, ranks.expanded, k)
            out[f"{name}:expected"] = expected_gains(metric, ranks, k)
            out[f"{name}:optimistic"] = gains(metric, ranks.optimistic, k)
    return out


def of_lists(items_UK: np.ndarray, counts_N: np.ndarray, k: int) -> dict[str, Any]:
    """Every one of the `LIST_METRICS` at k: `coverage@10` and so on."""
    return {f"{name}@{k}": metric.value(items_UK[:, :k], counts_N) for name, metric in LIST_METRICS.items()}


def coverage(items_UK: np.ndarray, counts_N: np.ndarray) -> float:
    """Share of the catalogue that is recommended to at least one user."""
    return len(np.unique(items_UK[items_UK >= 0])) / max(len(counts_N), 1)


def exposure(items_UK: np.ndarray, counts_N: np.ndarray) -> dict[str, float]:
    """Shares of head, torso and tail among all recommended items."""
    shown = items_UK[items_UK >= 0]
    shown_by_tier = np.bincount(popularity_tiers(counts_N)[shown], minlength=len(TIERS))
    return {tier: float(n) / max(len(shown), 1) for tier, n in zip(TIERS, shown_by_tier)}


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("recall", "Recall", "share of the users whose target is among the best k", np.ones_like),
        Metric(
            "ndcg", "NDCG", "as recall, but a hit at rank r counts 1 / log2(r + 1)", lambda r: 1.0 / np.log2(r + 1.0)
        ),
        Metric("mrr", "MRR", "as recall, but a hit at rank r counts 1 / r", lambda r: 1.0 / r),
    )
}
LIST_METRICS: dict[str, ListMetric] = {
    m.name: m
    for m in (
        ListMetric("coverage", "share of the catalogue that is recommended to at least one user", coverage),
        ListMetric("exposure", "shares of head, torso and tail items among the recommended ones", exposure),
    )
}


def ndcg_recall_slope(recall5: float, recall10: float, ndcg5: float, ndcg10: float) -> float | None:
    """(N@10 - N@5) / (R@10 - R@5); None where nothing was found between the ranks.

    With one target per user it lies in [0.289, 0.356]: a hit at rank 6 to 10 adds 1 to recall and 1 / log2(rank + 1)
    to NDCG.
    """
    if recall10 == recall5:
        return None
    return (ndcg10 - ndcg5) / (recall10 - recall5)
