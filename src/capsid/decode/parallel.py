"""Scores the whole catalogue where codes do not depend on each other: one pass over depths, not one for each item.

The logs of the probabilities of an item's codes are added, as exact scoring does, but a code's score is looked up
instead of computed once for every item. Only for models whose step does not read the tokens before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.decode.exact import ExactScoring
from capsid.decode.model import FittedModel
from capsid.ids.layout import PAD
from capsid.ragged import Ragged


@dataclass(kw_only=True, frozen=True)
class ParallelScoring(ExactScoring):
    """Ranks by the sum of the logs of independent codes; exact, and as fast as the scores of one id for each depth."""

    kind: ClassVar[str] = "parallel-scoring"

    @torch.inference_mode()
    def scores(self, model: FittedModel, histories: Ragged) -> Tensor:
        """See `ExactScoring.scores`."""
        tokens_NT = torch.as_tensor(model.ids.prefix_free.take(np.arange(len(model.ids.prefix_free))).dense(PAD)).long()
        state, rows_U1D = model.start(histories)
        parents_U1 = torch.zeros(len(histories), 1, dtype=torch.long)
        total_UN = torch.zeros(len(histories), len(tokens_NT))
        for depth in range(tokens_NT.shape[1]):
            if depth:
                # Which token is appended makes no difference.
                state, rows_U1D = model.network.step(
                    state, parents_U1, tokens_NT[:1, depth - 1].expand(len(histories), 1)
                )
            tokens_N = tokens_NT[:, depth]
            found_UN = model.network.scores(state, rows_U1D)[:, 0].log_softmax(-1)[:, tokens_N]
            total_UN += torch.where(tokens_N == PAD, torch.zeros(()), found_UN)
        return total_UN
