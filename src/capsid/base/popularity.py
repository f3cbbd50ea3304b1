"""Items ordered by their number of training interactions, and the popularity tiers used in reports.

NumPy only: counts in, item numbers out. Does not know where the counts come from.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

TIERS = ("head", "torso", "tail")
# The most popular 20 % of the items are the head, the next 40 % the torso.
_HEAD, _TORSO = 0.2, 0.6


def popularity_order(counts: np.ndarray, ids: Iterable[str] | None = None) -> np.ndarray:
    """Item numbers, most popular first; ties are broken by id if `ids` are given, else by number.

    Ids make the order independent of the order in which a file lists the items.
    """
    ties = np.arange(len(counts)) if ids is None else np.array(list(ids), dtype=np.str_)
    return np.lexsort([ties, -counts])


def popularity_ranks(counts: np.ndarray, ids: Iterable[str] | None = None) -> np.ndarray:
    """The rank of every item in `popularity_order`, 0 for the most popular."""
    order = popularity_order(counts, ids)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def most_popular(counts: np.ndarray, share: float, ids: Iterable[str] | None = None) -> np.ndarray:
    """The fewest items that have this share of all interactions, in item order; all items if the share is 1.

    Without any interaction all items are equally popular, so none is left out. Shape: (items,).
    """
    order = popularity_order(counts, ids)
    if share >= 1 or not counts.sum():
        return np.sort(order)
    reached = np.cumsum(counts[order]) >= share * counts.sum()
    return np.sort(order[: int(reached.argmax()) + 1])


def popularity_tiers(counts: np.ndarray) -> np.ndarray:
    """The tier of every item, as an index into `TIERS`. Tiers have fixed sizes; ties are broken by item number."""
    order = popularity_order(counts)
    tiers = np.empty(len(counts), dtype=np.int64)
    head, torso = round(_HEAD * len(counts)), round(_TORSO * len(counts))
    tiers[order[:head]], tiers[order[head:torso]], tiers[order[torso:]] = 0, 1, 2
    return tiers
