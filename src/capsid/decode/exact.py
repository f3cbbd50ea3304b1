"""Scores of the whole catalogue without trie or beam: the slow twin of the beam search.

Every item's tokens are fed through the model as a beam of its own; nothing is shared and nothing is pruned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsid.decode.protocol import Decodable
from capsid.ids.flatten import TokenBatch
from capsid.ids.layout import PAD
from capsid.ragged import Ragged


@torch.inference_mode()
def exact_scores(model: Decodable, histories: TokenBatch, closed: Ragged, *, chunk: int = 512) -> Tensor:
    """Log-probability of every item's closed id after every history. Shape: (users, items)."""
    parts = [
        _score(model, histories, torch.from_numpy(closed.dense(PAD)[start : start + chunk]).long())
        for start in range(0, len(closed), chunk)
    ]
    return torch.cat(parts, dim=1)


def _score(model: Decodable, histories: TokenBatch, tokens_WT: Tensor) -> Tensor:
    users, beams = len(histories), len(tokens_WT)
    state, logits = model.start(histories)
    log_probabilities = logits.log_softmax(-1)[:, None].expand(users, beams, -1)
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
