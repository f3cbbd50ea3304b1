"""How often the right code is ranked first or among the first five, by position (CapsID, 2605.05096, appendix B.1).

A code's probability is the sum over all items that continue the target's prefix with it. It is computed from scores of
whole items, so that merged and unmerged ids are measured on the same codes. Exact scoring is slow: use a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.data.split import Cases
from capsid.decode.exact import exact_scores
from capsid.decode.model import FittedModel
from capsid.evaluate.evaluator import codes_of
from capsid.progress import Progress, silent
from capsid.ragged import Ragged

TOPS = (1, 5)
BATCH = 16


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
    """Over an evenly spaced sample of the cases."""
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
