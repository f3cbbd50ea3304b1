"""Evaluates a retriever on held-out cases: ranks of the targets, metrics, coverage, exposure, accuracy of first codes.

Per-user values are kept, so that any two runs can be compared user by user. Knows numbers only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsid.base.popularity import TIERS, popularity_tiers
from capsid.data.split import Cases
from capsid.decode.exact import exact_scores
from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel
from capsid.decode.ranked import Buckets, KeepsRoots, RankedLeaves, RanksLeaves, Retriever, expand
from capsid.decode.watch import RootScores
from capsid.errors import DataError
from capsid.evaluate.metrics import TargetRanks, check_ks, gains, of_lists, per_user
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import ROOT, Trie
from capsid.progress import Progress, duration, silent
from capsid.ragged import Ragged

# Cases that are ranked together.
TOGETHER = 64
TOPS = (1, 5)
BATCH = 16


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of one evaluation. `values` holds one number per case for every metric."""

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
    filter_history: bool = True,
    batch: int = TOGETHER,
    progress: Progress = silent,
) -> Evaluation:
    """Rank the whole catalogue for every case. Cases are processed by length; results keep the order of the cases."""
    if not len(cases):
        raise DataError(
            f"there are no cases to evaluate in {split!r}", hint="only users with at least three items have cases"
        )
    ks = check_ks(ks)
    began = time.monotonic()
    found = _ranked(
        retriever, cases, max(ks), filter_history=filter_history, batch=batch, codes=True, progress=progress, of=split
    )
    values = {**per_user(found.ranks, ks), "rank": found.ranks.expanded, "first_code_rank": found.code_ranks}
    metrics = {name: float(v.mean()) for name, v in values.items() if "@" in name and ":" not in name}
    extras = {**_extras(retriever, values, counts, cases.targets, max(ks)), **of_lists(found.items_UK, counts, max(ks))}
    seconds = time.monotonic() - began
    users = len(np.unique(cases.users))
    return Evaluation(split, users, filter_history, ks, seconds, metrics, values, extras)


def metric_values(
    retriever: Retriever, cases: Cases, metric: str, *, filter_history: bool, part: tuple[int, int]
) -> np.ndarray:
    """One metric (`recall@10`) of every case. Of `part` (number, count), only every count-th batch is ranked; cases of
    other parts have 0, so the sum over all parts has every value. Shape: (cases,)."""
    name, _, k = metric.partition("@")
    found = _ranked(retriever, cases, int(k), filter_history=filter_history, batch=TOGETHER, part=part)
    return gains(name, found.ranks.expanded, int(k))


@dataclass(frozen=True, eq=False)
class _Found:
    """The lists of all cases, the ranks of their targets, and the ranks of the targets' first codes if asked for."""

    items_UK: np.ndarray
    ranks: TargetRanks
    code_ranks: np.ndarray


def _ranked(
    retriever: Retriever,
    cases: Cases,
    k: int,
    *,
    filter_history: bool,
    batch: int,
    codes: bool = False,
    progress: Progress = silent,
    of: str = "",
    part: tuple[int, int] = (0, 1),
) -> _Found:
    """The lists in the order of the cases, which are ranked by length. Cases of other parts have no items and rank 0.

    Parts are whole batches, so that a case is ranked with the same others, and to the same bits, whoever does it.
    """
    began, number, count = time.monotonic(), *part
    shown = np.full((len(cases), k), -1, dtype=np.int64)
    ranks, code_ranks = np.zeros((4, len(cases)), dtype=np.int64), np.zeros(len(cases), dtype=np.int64)
    order = np.argsort(cases.histories.lengths, kind="stable")
    for start in range(number * batch, len(order), count * batch):
        rows = order[start : start + batch]
        histories, targets = cases.histories.take(rows), cases.targets[rows]
        allowed = retriever.filter(histories, filter_history=filter_history)
        shown[rows], own, first_UC = _rank(retriever, histories, targets, k, allowed)
        ranks[:, rows] = own.expanded, own.optimistic, own.before, own.size
        if codes:
            code_ranks[rows] = first_code_ranks(retriever.model, first_UC, targets)
        _tell(progress, of, start + len(rows), len(order), began)
    return _Found(shown, TargetRanks(*ranks), code_ranks)


def _rank(
    retriever: Retriever, histories: Ragged, targets: np.ndarray, k: int, allowed: Filter | None
) -> tuple[np.ndarray, TargetRanks, np.ndarray]:
    """The lists of a batch, the ranks of their targets, and the scores of the root's children."""
    model, ranker = retriever.model, retriever.ranker
    first = RootScores()
    if not isinstance(ranker, RanksLeaves):
        if isinstance(ranker, KeepsRoots):
            items_UK = ranker.rank_with_roots(model, histories, k, allowed, first).items_UK
        else:
            items_UK = ranker.rank(model, histories, k, allowed).items_UK
        first_UC = first.scores_UC if first.scores_UC is not None else model.root_scores(histories)
        return items_UK, item_ranks(items_UK, targets), first_UC
    leaves = ranker.leaves(model, histories, min(k, len(model.trie)), allowed, first)
    buckets = expand(model.trie, leaves, k, allowed)
    # A ranker that does not search does not call the watch.
    first_UC = first.scores_UC if first.scores_UC is not None else model.root_scores(histories)
    return buckets.items.items_UK, bucket_ranks(model.trie, leaves, buckets, targets), first_UC


def item_ranks(items_UK: np.ndarray, targets: np.ndarray) -> TargetRanks:
    """Ranks of the targets in lists of items."""
    hit_UK = items_UK == targets[:, None]
    rank = np.where(hit_UK.any(1), hit_UK.argmax(1) + 1, 0)
    return TargetRanks(rank, rank, np.maximum(rank - 1, 0), (rank > 0).astype(np.int64))


def bucket_ranks(trie: Trie, leaves: RankedLeaves, buckets: Buckets, targets: np.ndarray) -> TargetRanks:
    """Ranks of the targets among ranked buckets."""
    match_UF = leaves.leaves_UF == trie.leaf_of(targets)[:, None]
    found = match_UF.any(1)
    where = match_UF.argmax(1)
    users = np.arange(len(targets))
    before = np.where(found, buckets.before_UF[users, where], 0)
    size = np.where(found, buckets.sizes_UF[users, where], 0)
    expanded = item_ranks(buckets.items.items_UK, targets).expanded
    return TargetRanks(expanded, np.where(found, where + 1, 0), before, size)


def first_code_ranks(model: FittedModel, first_UC: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rank of the target's first code among the codes that begin an id, from the scores of the root's children.

    A code's probability is that of all tokens that begin with it: itself, and the merged ones.
    """
    order_C, group_C = _first_codes(model)
    code_of = model.ids.layout.first_code[model.trie.children(np.array([ROOT])).token[order_C]]
    codes = codes_of(model)
    own_U = codes.values[codes.offsets[:-1][targets]]
    starts = np.flatnonzero(np.diff(group_C, prepend=-1))
    scores_UG = log_sums(first_UC[:, order_C], starts)
    own = scores_UG[np.arange(len(targets)), np.searchsorted(code_of[starts], own_U)]
    return 1 + (scores_UG > own[:, None]).sum(1)


def log_sums(log_UC: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Logarithms of the sums of probabilities over runs of columns.

    The largest of a run is taken out first, so a run of one column keeps its value exactly.
    """
    largest_UG = np.maximum.reduceat(log_UC, starts, axis=1)
    finite_UG = np.where(np.isneginf(largest_UG), 0, largest_UG)
    lengths = np.diff(starts, append=log_UC.shape[1])
    with np.errstate(divide="ignore"):
        rest_UG = np.log(np.add.reduceat(np.exp(log_UC - np.repeat(finite_UG, lengths, axis=1)), starts, axis=1))
    return finite_UG + rest_UG


def codes_of(model: FittedModel) -> Ragged:
    """The codes of all items, which only ids in memory have."""
    assert isinstance(model.ids, SemanticIds), "runs are loaded whole to be measured"
    return model.ids.codes


def _first_codes(model: FittedModel) -> tuple[np.ndarray, np.ndarray]:
    """The root's children in order of their first code; and the index of that code among the codes in use."""
    code = model.ids.layout.first_code[model.trie.children(np.array([ROOT])).token]
    order = np.argsort(code, kind="stable")
    return order, np.unique(code[order], return_inverse=True)[1]


def _extras(
    retriever: Retriever,
    values: dict[str, np.ndarray],
    counts: np.ndarray,
    targets: np.ndarray,
    k: int,
) -> dict[str, Any]:
    starts = len(np.unique(_first_codes(retriever.model)[1]))
    tiers = popularity_tiers(counts)
    by_tier = {name: tiers[targets] == t for t, name in enumerate(TIERS)}
    by_warmth = {"warm": counts[targets] > 0, "cold": counts[targets] == 0}
    recall = values[f"recall@{k}"]
    mean = {name: float(v.mean()) for name, v in values.items() if ":" in name}
    return {
        "variants": mean,
        "code_recall@10": float((values["first_code_rank"] <= 10).mean()),
        "code_recall@50": float((values["first_code_rank"] <= 50).mean()),
        "code_chance@50": min(1.0, 50 / max(starts, 1)),
        f"recall@{k}_by_tier": {n: float(recall[m].mean()) if m.any() else None for n, m in by_tier.items()},
        "users_by_tier": {n: int(m.sum()) for n, m in by_tier.items()},
        "cases": len(targets),
        "by_warmth": {n: metrics_of(values, m) for n, m in by_warmth.items()},
    }


def metrics_of(values: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, Any]:
    """Size and metrics of some of the cases; no metrics if there are none."""
    if not chosen.any():
        return {"cases": 0}
    found = {name: float(v[chosen].mean()) for name, v in values.items() if "@" in name and ":" not in name}
    return {"cases": int(chosen.sum()), **found}


def _tell(progress: Progress, split: str, done: int, total: int, began: float) -> None:
    speed = done / max(time.monotonic() - began, 1e-9)
    progress.update(f"{split}: {done:,}/{total:,} users  {speed:,.0f} users/s  ETA {duration((total - done) / speed)}")


@dataclass(frozen=True)
class PositionAccuracy:
    """Shares by position over the `users` whose target reaches it; `choices`: mean number of possible codes."""

    top1: tuple[float, ...]
    top5: tuple[float, ...]
    users: tuple[int, ...]
    choices: tuple[float, ...]


def position_accuracy(
    model: FittedModel, cases: Cases, *, users: int = 500, progress: Progress = silent
) -> PositionAccuracy:
    """How often the right code is ranked first or among the first five, by position (CapsID, 2605.05096, appendix B.1).

    A code's probability is the sum over all items that continue the target's prefix with it. It is computed from scores
    of whole items, so that merged and unmerged ids are measured on the same codes. That is slow: over an evenly spaced
    sample of the cases.
    """
    rows = np.linspace(0, len(cases) - 1, min(users, len(cases))).astype(np.int64)
    sample = cases.take(rows)
    ranks, choices = [], []
    for start in range(0, len(sample), BATCH):
        part = sample.take(np.arange(start, min(start + BATCH, len(sample))))
        scores_UN = exact_scores(model, part.histories).numpy().astype(np.float64)
        found = code_ranks(scores_UN, codes_of(model), part.targets)
        ranks.append(found[0])
        choices.append(found[1])
        progress.update(f"accuracy by position: {start + len(part):,}/{len(sample):,} users")
    return _summary(np.concatenate(ranks), np.concatenate(choices))


def code_ranks(scores_UN: np.ndarray, codes: Ragged, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of the target's code at every position given its earlier codes, and the number of possible codes.

    0 where the target's id has ended. `scores` are log-probabilities of items. Shapes: (users, depths).
    """
    dense_NL = codes.dense()
    ranks, choices = (np.zeros((len(targets), dense_NL.shape[1]), dtype=np.int64) for _ in range(2))
    for user, target in enumerate(targets):
        alike = np.arange(len(dense_NL))
        for depth in range(int(codes.lengths[target])):
            own = dense_NL[target, depth]
            if own < 0:  # no token at this depth: nothing to predict
                alike = alike[dense_NL[alike, depth] < 0]
                continue
            alike = alike[dense_NL[alike, depth] >= 0]
            here = dense_NL[alike, depth]
            values, place = np.unique(here, return_inverse=True)
            weights = np.bincount(place, weights=np.exp(scores_UN[user, alike] - scores_UN[user, alike].max()))
            mine = weights[np.searchsorted(values, own)]
            ranks[user, depth] = 1 + int((weights > mine).sum())
            choices[user, depth] = len(values)
            alike = alike[here == own]
    return ranks, choices


def _summary(ranks_UL: np.ndarray, choices_UL: np.ndarray) -> PositionAccuracy:
    there_UL = ranks_UL > 0
    users_L = there_UL.sum(0)
    kept = users_L > 0

    def share(hit_UL: np.ndarray) -> tuple[float, ...]:
        return tuple(float(v) for v in (hit_UL & there_UL).sum(0)[kept] / users_L[kept])

    top1, top5 = (share(ranks_UL <= k) for k in TOPS)
    mean = np.where(there_UL, choices_UL, 0).sum(0)[kept] / users_L[kept]
    return PositionAccuracy(top1, top5, tuple(int(n) for n in users_L[kept]), tuple(float(m) for m in mean))
