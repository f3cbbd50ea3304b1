"""Evaluate a retriever on held-out cases: ranks of the targets, metrics, coverage, exposure, accuracy of first codes.

Per-user values are kept, so that any two runs can be compared user by user. Knows numbers only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.data.split import Cases
from capsid.decode.retrieve import RankedItems, Retriever
from capsid.errors import DataError
from capsid.evaluate.metrics import TargetRanks, of_lists, per_user
from capsid.ids.trie import ROOT
from capsid.popularity import TIERS, popularity_tiers
from capsid.progress import Progress, duration, silent


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What one evaluation found. `values` holds one number a case for every metric."""

    split: str
    users: int
    filter_history: bool
    ks: tuple[int, ...]
    seconds: float
    metrics: dict[str, float]
    values: dict[str, np.ndarray]
    extras: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """Plain values, as `capsid evaluate --json` prints them."""
        return {
            "split": self.split,
            "users": self.users,
            "filter_history": self.filter_history,
            "metrics": self.metrics,
            **self.extras,
            "seconds": round(self.seconds, 2),
        }


def evaluate(
    retriever: Retriever,
    cases: Cases,
    counts: np.ndarray,
    *,
    split: str = "test",
    ks: tuple[int, ...] = (5, 10),
    filter_history: bool = False,
    batch: int = 64,
    progress: Progress = silent,
) -> Evaluation:
    """Rank the whole catalogue for every case. Cases are read longest last, results keep the cases' order."""
    if not len(cases):
        raise DataError(f"there are no cases to evaluate in {split!r}", hint="users with three items give cases")
    began = time.monotonic()
    parts, shown = [], np.full((len(cases), max(ks)), -1, dtype=np.int64)
    code_ranks = np.zeros(len(cases), dtype=np.int64)
    order = np.argsort(cases.histories.lengths, kind="stable")
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        ranked = retriever.rank(cases.histories.take(rows), max(ks), filter_history=filter_history)
        parts.append(target_ranks(retriever, ranked, cases.targets[rows]))
        shown[rows] = ranked.items_UK
        code_ranks[rows] = _first_code_ranks(retriever, ranked, cases.targets[rows])
        _tell(progress, split, start + len(rows), len(order), began)
    back = np.argsort(order, kind="stable")
    names = ("expanded", "optimistic", "before", "size")
    ranks = TargetRanks(*(np.concatenate([getattr(p, n) for p in parts])[back] for n in names))
    values = {**per_user(ranks, ks), "rank": ranks.expanded, "first_code_rank": code_ranks}
    metrics = {name: float(v.mean()) for name, v in values.items() if "@" in name and ":" not in name}
    extras = {**_extras(retriever, values, counts, cases.targets, max(ks)), **of_lists(shown, counts, max(ks))}
    seconds = time.monotonic() - began
    return Evaluation(split, len(cases), filter_history, ks, seconds, metrics, values, extras)


def target_ranks(retriever: Retriever, ranked: RankedItems, targets: np.ndarray) -> TargetRanks:
    """Where the targets stand among the ranked buckets."""
    trie = retriever.trie
    leaf_U1 = trie.leaf_of(targets)[:, None]
    match_UF = ranked.leaves.leaves_UF == leaf_U1
    found = match_UF.any(1)
    where = match_UF.argmax(1)
    users = np.arange(len(targets))
    before = np.where(found, ranked.before_UF[users, where], 0)
    size = np.where(found, ranked.sizes_UF[users, where], 0)
    hit_UK = ranked.items_UK == targets[:, None]
    expanded = np.where(hit_UK.any(1), hit_UK.argmax(1) + 1, 0)
    return TargetRanks(expanded, np.where(found, where + 1, 0), before, size)


def _first_code_ranks(retriever: Retriever, ranked: RankedItems, targets: np.ndarray) -> np.ndarray:
    """Rank of the target's first code among the codes that begin an id (methods 6.10, CodeRecall).

    A code's probability is that of all tokens that begin with it: itself, and the merged ones.
    """
    tokens, group_T = _first_codes(retriever)
    code_of = retriever.ids.layout.first_code[tokens]
    own_U = retriever.ids.codes.values[retriever.ids.codes.offsets[:-1][targets]]
    scores_UT = ranked.leaves.first_UV[:, tokens]
    # Summed in logarithms, so that a code of one token keeps its score to the last bit.
    starts = np.flatnonzero(np.diff(group_T, prepend=-1))
    scores_UG = np.logaddexp.reduceat(scores_UT, starts, axis=1)
    own = scores_UG[np.arange(len(targets)), np.searchsorted(code_of[starts], own_U)]
    return 1 + (scores_UG > own[:, None]).sum(1)


def _first_codes(retriever: Retriever) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that begin an id, by their first code; and the number of that code among those in use."""
    tokens = retriever.trie.children(np.array([ROOT])).token
    code = retriever.ids.layout.first_code[tokens]
    order = np.argsort(code, kind="stable")
    return tokens[order], np.unique(code[order], return_inverse=True)[1]


def _extras(
    retriever: Retriever,
    values: dict[str, np.ndarray],
    counts: np.ndarray,
    targets: np.ndarray,
    k: int,
) -> dict[str, Any]:
    starts = len(np.unique(_first_codes(retriever)[1]))
    tiers = popularity_tiers(counts)
    by_tier = {name: tiers[targets] == t for t, name in enumerate(TIERS)}
    recall = values[f"recall@{k}"]
    mean = {name: float(v.mean()) for name, v in values.items() if ":" in name}
    return {
        "variants": mean,
        "code_recall@10": float((values["first_code_rank"] <= 10).mean()),
        "code_recall@50": float((values["first_code_rank"] <= 50).mean()),
        "code_chance@50": min(1.0, 50 / max(starts, 1)),
        f"recall@{k}_by_tier": {n: float(recall[m].mean()) if m.any() else None for n, m in by_tier.items()},
        "users_by_tier": {n: int(m.sum()) for n, m in by_tier.items()},
    }


def _tell(progress: Progress, split: str, done: int, total: int, began: float) -> None:
    speed = done / max(time.monotonic() - began, 1e-9)
    progress.update(f"{split}: {done:,}/{total:,} users  {speed:,.0f} users/s  ETA {duration((total - done) / speed)}")
