"""Several readings of one history, each searched by beam search, and their lists fused by rank.

An item's score is the sum of 1 / log2(rank + 1) over the lists that hold it (ActionPiece, Hou et al. 2025, arXiv
2502.13581, section 3.3). If histories can be read in only one way, one list is made. Knows protocols, not networks.
Shapes: U users, F leaves of one list, E leaves of all lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedLeaves, RanksLeaves, Searches
from capsid.decode.watch import Watch
from capsid.ragged import Ragged
from capsid.settings import setting


@dataclass(kw_only=True, frozen=True)
class Ensemble(Searches, RanksLeaves):
    """How a recipe decodes that reads a history in several ways."""

    kind: ClassVar[str] = "ensemble"
    times: int = setting(5, "How many readings of a history are searched.", least=1, most=100)

    @property
    def quick(self) -> Ensemble:
        """One reading: what validations during training use."""
        return replace(self, times=1)

    def leaves(
        self, model: FittedModel, histories: Ragged, k: int, allowed: Filter | None = None, watch: Watch | None = None
    ) -> RankedLeaves:
        """The k best leaves after every history. The watch sees the search of the first reading."""
        search = BeamSearch(width=self.width)
        # Lists of one reading need no more leaves than are asked for, because fusing keeps their order.
        times = self.times if model.item_ids.reading.varies else 1
        most = k if times == 1 else min(max(self.width, k), len(model.trie))
        lists = []
        for number in range(times):
            # Variant 0 is not random.
            started: tuple[Any, Tensor] = model.start(histories, variant=number + 1)
            seen = watch if number == 0 else None
            lists.append(search.leaves(model, histories, most, allowed, seen, started))
        return fused(lists, k)


def fused(lists: list[RankedLeaves], k: int) -> RankedLeaves:
    """The k best leaves of all lists by the sum of 1 / log2(rank + 1), ranks from 1."""
    users, width = lists[0].leaves_UF.shape
    leaf_UE = np.concatenate([found.leaves_UF for found in lists], axis=1)
    user_E, place_E = np.nonzero(leaf_UE >= 0)
    leaf_E = leaf_UE[user_E, place_E]
    # Nodes are numbered from 0, so user * stride + leaf is a key by user, then in trie order.
    stride = int(leaf_E.max(initial=0)) + 1
    key_C, own_E = np.unique(user_E * stride + leaf_E, return_inverse=True)
    score_C = np.bincount(own_E, 1 / np.log2(place_E % width + 2), minlength=len(key_C))
    user_C, leaf_C = np.divmod(key_C, stride)
    order_C = np.lexsort([leaf_C, -score_C, user_C])
    rank_C = Ragged.ranges(0, np.bincount(user_C, minlength=users)).values
    best = order_C[rank_C < k]
    leaves_UK = np.full((users, k), -1, dtype=np.int64)
    scores_UK = np.full((users, k), -np.inf, dtype=np.float32)
    leaves_UK[user_C[best], rank_C[rank_C < k]] = leaf_C[best]
    scores_UK[user_C[best], rank_C[rank_C < k]] = score_C[best]
    return RankedLeaves(leaves_UK, scores_UK, sum(found.steps for found in lists))
