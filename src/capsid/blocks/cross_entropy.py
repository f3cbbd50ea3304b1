"""Cross-entropy of a linear layer in chunks of rows, with gradients computed in forward.

A chunk's scores are overwritten in place and never stored. This needs less memory traffic than a softmax over all rows
(as in fused linear cross-entropy kernels). The tests compare with torch's cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A chunk's scores should fit in the caches and stay below malloc's mmap threshold (32 MB).
CHUNK_NUMBERS = 1 << 20


@dataclass(frozen=True, eq=False)
class Added:
    """Numbers added to the scores of tokens `tokens[e]` in rows `rows[e]`; pairs are unique and sorted by row."""

    rows_E: Tensor
    tokens_E: Tensor
    values_E: Tensor

    def joined(self, other: Added) -> Added:
        """Both; where both add to the same score, their sum."""
        rows_E = torch.cat([self.rows_E, other.rows_E])
        tokens_E = torch.cat([self.tokens_E, other.tokens_E])
        stride = int(tokens_E.max()) + 1 if len(tokens_E) else 1
        key_C, entry_E = (rows_E * stride + tokens_E).unique(return_inverse=True)
        values_E = torch.cat([self.values_E, other.values_E])
        return Added(key_C // stride, key_C % stride, torch.zeros(len(key_C)).index_add(0, entry_E, values_E))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        smoothing: float,
        rows_E: Tensor,
        tokens_E: Tensor,
        values_E: Tensor,
    ) -> Tensor:
        rows, vocabulary = len(hidden_ND), len(weight_VD)
        chunk = max(1, min(rows, CHUNK_NUMBERS // vocabulary))
        grad_hidden, grad_weight = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        total, grad_values = torch.zeros((), dtype=torch.float64), torch.empty_like(values_E)
        weight_DV, scores = weight_VD.T.contiguous(), hidden_ND.new_empty(chunk, vocabulary)
        for start in range(0, rows, chunk):
            h_CD, t_C1 = hidden_ND[start : start + chunk], targets_N[start : start + chunk, None]
            scores_CV = torch.mm(h_CD, weight_DV, out=scores[: len(h_CD)])
            low, high = torch.searchsorted(rows_E, torch.tensor([start, start + len(h_CD)])).tolist()
            added = rows_E[low:high] - start, tokens_E[low:high]
            scores_CV[added] += values_E[low:high]
            own_C1, most_C1 = scores_CV.gather(1, t_C1), scores_CV.amax(1, keepdim=True)
            mean_C1 = scores_CV.mean(1, keepdim=True) if smoothing else own_C1
            # exp(score - largest) is the probability times the sum; the sum divides the narrow sides of both products.
            odds_CV = scores_CV.sub_(most_C1).exp_()
            sum_C1 = odds_CV.sum(1, keepdim=True)
            log_sum_C1 = sum_C1.log() + most_C1
            total += (log_sum_C1 - (1 - smoothing) * own_C1 - smoothing * mean_C1).sum(dtype=torch.float64)
            torch.mm(odds_CV, weight_VD, out=grad_hidden[start : start + chunk]).div_(sum_C1)
            grad_weight.addmm_(odds_CV.T, h_CD / sum_C1)
            grad_values[low:high] = odds_CV[added] / sum_C1[added[0], 0]
        # The gradient of a score is its probability minus its share of the target.
        grad_hidden -= (1 - smoothing) * weight_VD[targets_N]
        grad_weight.index_add_(0, targets_N, hidden_ND, alpha=smoothing - 1)
        grad_values -= (1 - smoothing) * (targets_N[rows_E] == tokens_E)
        if smoothing:
            grad_hidden -= smoothing * weight_VD.mean(0)
            grad_weight -= smoothing / vocabulary * hidden_ND.sum(0)
            grad_values -= smoothing / vocabulary
        ctx.save_for_backward(grad_hidden.div_(rows), grad_weight.div_(rows), grad_values.div_(rows))
        return (total / rows).to(hidden_ND.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_values = (saved * grads[0] for saved in ctx.saved_tensors)
        return grad_hidden, grad_weight, None, None, None, None, grad_values


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    label_smoothing: float = 0.0,
    added: Added | None = None,
) -> Tensor:
    """Mean cross-entropy of `hidden @ weight.T`, equal to `torch.nn.functional.cross_entropy`."""
    nowhere = torch.zeros(0, dtype=torch.int64)
    added = added or Added(nowhere, nowhere, torch.zeros(0))
    loss: Tensor = _LinearCrossEntropy.apply(
        hidden_ND, weight_VD, targets_N, label_smoothing, added.rows_E, added.tokens_E, added.values_E
    )
    return loss
