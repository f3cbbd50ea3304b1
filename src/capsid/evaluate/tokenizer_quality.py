"""How good ids are before a generator is trained on them: collisions, use of codes, similarity, reconstruction.

Ids, vectors and a function from codes to vectors in, numbers out; a routing tokenizer adds more. Knows no file and no
kind of tokenizer. What a tokenizer does not have (stop causes, winner mass, ...) is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from capsid.evaluate.capsule_report import (
    Routing,
    RoutingConvergence,
    RoutingQuality,
    routing_quality,
    spread,
)
from capsid.evaluate.merge_report import MergeReport, merge_report
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.item_tokenizer import ItemTokenizer

# What the ids themselves count.
COUNTED = (
    *("items", "collision_rate", "collision_rate_final", "items_sharing_an_id", "largest_bucket"),
    *("mean_length", "mean_tokens", "length_histogram"),
)
# What only routing has.
ROUTED = ("stop_causes", "winner_mass", "norm_increasing_share", "confidences", "routing_convergence")
Decode = Callable[[Ragged], np.ndarray | None]


@dataclass(frozen=True)
class Reconstruction:
    """Mean norm of what the first depths leave unexplained, by depth: `soft` by mixtures, `hard` by codes alone.

    For a routing tokenizer both are in its own space, where items have norm 1; otherwise in that of the vectors.
    """

    soft: tuple[float, ...] | None = None
    hard: tuple[float, ...] | None = None


@dataclass(frozen=True)
class TokenizerQuality:
    """What `capsid tokenizer report` shows. `utilization` and `gini` are means over the depths.

    `sampled_items` is the number of items whose vectors were used, if not those of all items.
    `others` are the reports on other ids of the items, if they have several.
    """

    items: int
    collision_rate: float
    collision_rate_final: float
    items_sharing_an_id: int
    largest_bucket: int
    utilization: float
    utilization_by_depth: tuple[float, ...]
    gini: float
    gini_by_depth: tuple[float, ...]
    intra_code_similarity: float | None
    mean_similarity: float | None
    mean_length: float
    mean_tokens: float
    length_histogram: dict[int, int]
    stop_causes: dict[str, float] | None
    winner_mass: tuple[float, ...] | None
    norm_increasing_share: tuple[float, ...] | None
    reconstruction: Reconstruction
    confidences: tuple[float, ...] | None = None
    routing_convergence: RoutingConvergence | None = None
    merges: MergeReport | None = None
    sampled_items: int | None = None
    others: tuple[TokenizerQuality, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def quality_of(tokenizer: ItemTokenizer, *, most: int | None = None) -> TokenizerQuality:
    """The report on the ids of a fitted tokenizer."""
    fitted = tokenizer.tokenizer_
    first = tokenizer_quality(tokenizer.ids, tokenizer.vectors_, fitted.decode, fitted, tokenizer.merges_, most=most)
    others = []
    for other in tokenizer.others_:
        # All ids are made from vectors that the first tokenizer holds.
        made, vectors_ND = other.tokenizer_, tokenizer.blocks_.get(other.block)
        others.append(tokenizer_quality(other.ids, vectors_ND, made.decode, made, most=most))
    return replace(first, others=tuple(others))


def tokenizer_quality(
    ids: SemanticIds,
    vectors_ND: np.ndarray | None = None,
    decode: Decode | None = None,
    tokenizer: Any = None,
    merges: Any = None,
    *,
    most: int | None = None,
) -> TokenizerQuality:
    """The report on these ids. `vectors_ND` are the items' vectors, `decode` maps codes to vectors.

    `tokenizer` is the fitted one that made the codes, for the numbers of routing. `merges` are the fitted ones, if any;
    only those of SemanticBPE are reported.
    The vectors of at most `most` items are used, spread evenly over the catalogue; None: of all. Counts are exact.
    """
    about = ids.statistics()
    similar = overall = None
    hard = None
    routing: RoutingQuality | None = None
    codes, sampled = ids.codes, None
    if vectors_ND is not None and most is not None and most < len(vectors_ND):
        rows = spread(len(vectors_ND), most)
        vectors_ND, codes, sampled = vectors_ND[rows], codes.take(rows), len(rows)
    if vectors_ND is not None and len(vectors_ND):
        first_N = codes.values[codes.offsets[:-1]]
        similar = intra_code_similarity(vectors_ND, first_N)
        overall = intra_code_similarity(vectors_ND, np.zeros(len(first_N), dtype=np.int64))
        if isinstance(tokenizer, Routing):
            routing = routing_quality(tokenizer, vectors_ND)
            hard = routing.hard
        elif decode is not None:
            hard = unexplained_by_depth(vectors_ND, codes, decode)
    routed: dict[str, Any] = {name: getattr(routing, name, None) for name in ROUTED}
    return TokenizerQuality(
        **{name: getattr(about, name) for name in COUNTED},
        utilization=_mean(about.utilization),
        utilization_by_depth=about.utilization,
        gini=_mean(about.gini),
        gini_by_depth=about.gini,
        intra_code_similarity=similar,
        mean_similarity=overall,
        reconstruction=Reconstruction(getattr(routing, "soft", None), hard),
        merges=merge_report(ids, merges) if isinstance(merges, SemanticBPE) else None,
        sampled_items=sampled,
        **routed,
    )


def intra_code_similarity(vectors_ND: np.ndarray, codes_N: np.ndarray) -> float | None:
    """Mean cosine over all pairs of items with the same code, pair-weighted; None if no two items share one.

    Exact without listing pairs: in a group of n unit vectors the cosines of the ordered pairs sum to
    ||sum x||^2 - n. Items with an all-zero vector have no direction and are left out.
    """
    exact_ND = np.asarray(vectors_ND, dtype=np.float64)
    norms_N = np.linalg.norm(exact_ND, axis=1)
    known = norms_N > 0
    unit_MD = exact_ND[known] / norms_N[known, None]
    groups_M = np.unique(codes_N[known], return_inverse=True)[1]
    sizes_G = np.bincount(groups_M)
    members = Ragged.grouped(np.arange(len(groups_M)), groups_M, len(sizes_G))
    sums_GD = members.sums(unit_MD[members.values])
    pairs = float((sizes_G * (sizes_G - 1.0)).sum())
    return float(((sums_GD**2).sum() - len(unit_MD)) / pairs) if pairs else None


def unexplained_by_depth(vectors_ND: np.ndarray, codes: Ragged, decode: Decode) -> tuple[float, ...] | None:
    """Mean norm of x minus the vector of its first 1, 2, ... codes; a shorter id counts with all its codes."""
    out = []
    for depth in range(1, int(codes.lengths.max()) + 1):
        stands_for_ND = decode(codes.first(depth))
        if stands_for_ND is None:
            return None
        out.append(float(np.linalg.norm(vectors_ND - stands_for_ND, axis=1).mean()))
    return tuple(out)


def _mean(values: tuple[float, ...]) -> float:
    return float(np.mean(values)) if values else 0.0
