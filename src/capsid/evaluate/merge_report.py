"""What merging did to ids: how many pairs could be merged, which the gate merged, and which items use them.

Ids and fitted merges in, numbers out. Popular pairs might fill the whole vocabulary (CapsID, section 3.3), so numbers
are also given by popularity tier. Training counts are those of the fit; items added later are in no tier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.base.popularity import TIERS, popularity_tiers
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE


@dataclass(frozen=True)
class Shortening:
    """Mean number of tokens (suffix included, end token not) without and with merges, by item and by interaction."""

    item_before: float
    item_after: float
    interaction_before: float
    interaction_after: float


@dataclass(frozen=True)
class TierOfMerges:
    """A tier's share of all training interactions; its mean share of the items with a merge; its lengths."""

    interactions: float
    merges: float
    tokens: Shortening


@dataclass(frozen=True)
class MergeReport:
    """`count` merges out of `candidates` pairs, of which the share `above_theta` passes the final threshold.

    `used` of the merges occur in some item's id; the others lose to a stronger overlapping merge everywhere.
    `precision` and `recall` compare the gate with its targets; None if there are none.
    """

    count: int
    used: int
    candidates: int
    above_theta: float
    precision: float | None
    recall: float | None
    tokens: Shortening
    tiers: dict[str, TierOfMerges]


@dataclass(frozen=True)
class MergeUse:
    """A merged token: its codes from `depth` (from 0) on, the pair's count and cosine at the fit, its items now.

    `taken` counts training interactions with the items that have it, `tiers` are the shares of those items.
    """

    token: int
    depth: int
    codes: tuple[int, ...]
    strength: float
    count: int
    cosine: float
    items: tuple[int, ...]
    taken: int
    tiers: tuple[float, float, float]
    tokens_before: float
    tokens_after: float


def merge_report(ids: SemanticIds, merges: SemanticBPE) -> MergeReport:
    """All numbers about these merges."""
    pairs = merges.candidates_
    chosen = pairs.merge >= 0
    right = int((chosen & pairs.target).sum())
    counts_N = merges.counts_
    tier_N = popularity_tiers(counts_N)
    shares = [use.tiers for use in merge_uses(ids, merges) if use.items]
    mean_3 = np.mean(shares, axis=0) if shares else np.zeros(3)
    total = max(int(counts_N.sum()), 1)
    tiers = {
        name: TierOfMerges(
            interactions=float(counts_N[tier_N == t].sum() / total),
            merges=float(mean_3[t]),
            tokens=_shortening(ids, counts_N, tier_N == t),
        )
        for t, name in enumerate(TIERS)
    }
    return MergeReport(
        count=len(ids.layout.merges),
        used=len(shares),
        candidates=len(pairs),
        above_theta=float((pairs.cosine > merges.theta[1]).mean()) if len(pairs) else 0.0,
        precision=right / int(chosen.sum()) if chosen.any() else None,
        recall=right / int(pairs.target.sum()) if pairs.target.any() else None,
        tokens=_shortening(ids, counts_N, np.ones(len(counts_N), dtype=bool)),
        tiers=tiers,
    )


def merge_uses(ids: SemanticIds, merges: SemanticBPE) -> tuple[MergeUse, ...]:
    """Every merge in the order of the table."""
    table, layout, pairs = ids.layout.merges, ids.layout, merges.candidates_
    carriers = token_carriers(ids)
    # Items that were added after the fit have no counts.
    counts_N = np.concatenate([merges.counts_, np.zeros(len(ids) - len(merges.counts_), dtype=np.int64)])
    tier_N = np.full(len(ids), -1, dtype=np.int64)
    tier_N[: len(merges.counts_)] = popularity_tiers(merges.counts_)
    row_of = {int(m): row for row, m in enumerate(pairs.merge) if m >= 0}
    before_N, after_N = ids.unmerged.lengths, ids.tokens.lengths
    out = []
    for i in range(len(table)):
        token, rows = table.first + i, carriers[table.first + i]
        known = tier_N[rows][tier_N[rows] >= 0]
        head, torso, tail = (float((known == t).mean()) if len(known) else 0.0 for t in range(3))
        out.append(
            MergeUse(
                token=token,
                depth=int(layout.depth_of[token]),
                codes=layout.codes_of(token),
                strength=table.strength[i],
                count=int(pairs.count[row_of[i]]),
                cosine=float(pairs.cosine[row_of[i]]),
                items=tuple(int(r) for r in rows),
                taken=int(counts_N[rows].sum()),
                tiers=(head, torso, tail),
                tokens_before=float(before_N[rows].mean()) if len(rows) else 0.0,
                tokens_after=float(after_N[rows].mean()) if len(rows) else 0.0,
            )
        )
    return tuple(out)


def token_carriers(ids: SemanticIds) -> Ragged:
    """The items whose ids have each token, by token."""
    return Ragged.grouped(ids.tokens.row_numbers, ids.tokens.values, ids.layout.vocabulary)


def _shortening(ids: SemanticIds, counts_N: np.ndarray, which_N: np.ndarray) -> Shortening:
    n, weight = len(counts_N), counts_N[which_N]
    lengths = ids.unmerged.lengths[:n][which_N], ids.tokens.lengths[:n][which_N]
    weights = (np.ones(len(weight)), weight)
    return Shortening(*(float(a @ w / w.sum()) if w.sum() else 0.0 for w in weights for a in lengths))
