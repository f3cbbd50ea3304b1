"""Cross-entropy of a linear layer in chunks of rows, with gradients computed in forward.

The scores of a chunk become its gradient in place and are never stored. This needs less memory traffic than a softmax
over all rows (as in fused linear cross-entropy kernels). The tests compare with torch's cross-entropy.
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
    """A number added to the scores of tokens `tokens[e]` in rows `rows[e]`; pairs are unique and sorted by row."""

    rows_E: Tensor
    tokens_E: Tensor
    value: Tensor


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
        value: Tensor,
    ) -> Tensor:
        rows, vocabulary = len(hidden_ND), len(weight_VD)
        chunk = max(1, min(rows, CHUNK_NUMBERS // vocabulary))
        grad_hidden, grad_weight = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        total, grad_value = torch.zeros((), dtype=torch.float64), torch.zeros_like(value)
        for start in range(0, rows, chunk):
            h_CD, t_C = hidden_ND[start : start + chunk], targets_N[start : start + chunk, None]
            scores_CV = h_CD @ weight_VD.T
            low, high = torch.searchsorted(rows_E, torch.tensor([start, start + len(h_CD)])).tolist()
            added = rows_E[low:high] - start, tokens_E[low:high]
            scores_CV[added] += value
            scores_CV -= scores_CV.logsumexp(1, keepdim=True)
            own = scores_CV.gather(1, t_C).sum(dtype=torch.float64)
            total -= (1 - smoothing) * own
            if smoothing:
                total -= smoothing * scores_CV.sum(dtype=torch.float64) / vocabulary
            grad_CV = scores_CV.exp_()
            if smoothing:
                grad_CV -= smoothing / vocabulary
            grad_CV.scatter_add_(1, t_C, torch.full(t_C.shape, smoothing - 1.0))
            grad_value += grad_CV[added].sum()
            torch.mm(grad_CV, weight_VD, out=grad_hidden[start : start + chunk])
            grad_weight.addmm_(grad_CV.T, h_CD)
        ctx.save_for_backward(grad_hidden.div_(rows), grad_weight.div_(rows), grad_value.div_(rows))
        return (total / rows).to(hidden_ND.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_value = (saved * grads[0] for saved in ctx.saved_tensors)
        return grad_hidden, grad_weight, None, None, None, None, grad_value


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
    added = added or Added(nowhere, nowhere, torch.zeros(()))
    loss: Tensor = _LinearCrossEntropy.apply(
        hidden_ND, weight_VD, targets_N, label_smoothing, added.rows_E, added.tokens_E, added.value
    )
    return loss
