"""Scores of the whole catalogue without trie or beam: the slow twin of the beam search.

Every item's tokens are fed through the model as a beam of its own; nothing is shared and nothing is pruned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsid.decode.protocol import Decodable
from capsid.ids.layout import PAD
from capsid.ids.reading import TokenBatch
from capsid.ragged import Ragged


@torch.inference_mode()
def exact_scores(model: Decodable, histories: TokenBatch, closed: Ragged, *, chunk: int = 512) -> Tensor:
    """Log-probability of every item's closed id after every history. Shape: (users, items)."""
    state, logits_UV = model.start(histories)
    first_UV = logits_UV.log_softmax(-1)
    # Short ids together: a chunk takes as many steps as its longest id needs.
    order_N = np.argsort(closed.lengths, kind="stable")
    scores_UN = torch.empty(len(histories), len(closed))
    for start in range(0, len(closed), chunk):
        rows = order_N[start : start + chunk]
        tokens_WT = torch.from_numpy(closed.take(rows).dense(PAD)).long()
        scores_UN[:, torch.from_numpy(rows)] = _score(model, state, first_UV, tokens_WT)
    return scores_UN


def _score(model: Decodable, state: Any, first_UV: Tensor, tokens_WT: Tensor) -> Tensor:
    users, beams = len(first_UV), len(tokens_WT)
    log_probabilities = first_UV[:, None].expand(users, beams, -1)
    total = torch.zeros(users, beams)
    for depth in range(tokens_WT.shape[1]):
        tokens_UW = tokens_WT[:, depth].expand(users, beams)
        here = log_probabilities.gather(2, tokens_UW[..., None])[..., 0]
        total += torch.where(tokens_UW == PAD, torch.zeros(()), here)
        if depth + 1 < tokens_WT.shape[1]:
            # After the last token of a short id only padding follows; its scores are not added.
            parents = torch.arange(beams).expand(users, beams) if depth else torch.zeros(users, beams, dtype=torch.long)
            state, logits = model.step(state, parents, tokens_UW)
            log_probabilities = logits.log_softmax(-1)
    return total
