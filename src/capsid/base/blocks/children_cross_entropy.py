"""Cross-entropy where every row has its own candidates: sums over listed pairs, with gradients computed in forward.

No row is expanded to the width of the vocabulary, and gradients gather no vectors: weighted embedding bags sum them.
The tests compare with a softmax over a masked table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from capsid.base.blocks.pairs import pair_products
from capsid.base.blocks.segments import segment_logsumexp


@dataclass(frozen=True, eq=False)
class ChildEdges:
    """Edge e offers token `token_E[e]` to row `row_E[e]`; edges are sorted by row. `own_R` is the edge of each target.

    Numbers are added to the scores of the edges `plus_A`.
    """

    row_E: Tensor
    token_E: Tensor
    own_R: Tensor
    plus_A: Tensor


class _ChildrenCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_RS: Tensor, table_VS: Tensor, values_A: Tensor, edges: ChildEdges, smoothing: float
    ) -> Tensor:
        row_E, token_E, count = edges.row_E, edges.token_E, len(rows_RS)
        scores_E = pair_products(rows_RS, table_VS, row_E, token_E)
        scores_E[edges.plus_A] += values_A
        log_E = scores_E - segment_logsumexp(scores_E, row_E, count)[row_E]
        total = -(1 - smoothing) * log_E[edges.own_R].sum()
        grad_E = log_E.exp()
        if smoothing:
            share_E = (smoothing / torch.bincount(row_E, minlength=count))[row_E]
            total -= (share_E * log_E).sum()
            grad_E -= share_E
        grad_E[edges.own_R] -= 1 - smoothing
        grad_rows = _bags(table_VS, token_E, row_E, grad_E, count)
        by_token = torch.argsort(token_E, stable=True)
        grad_table = _bags(rows_RS, row_E[by_token], token_E[by_token], grad_E[by_token], len(table_VS))
        ctx.save_for_backward(grad_rows, grad_table, grad_E[edges.plus_A])
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_rows, grad_table, grad_values = (saved * grads[0] for saved in ctx.saved_tensors)
        return grad_rows, grad_table, grad_values, None, None


def _bags(table: Tensor, entry_E: Tensor, bag_E: Tensor, weight_E: Tensor, bags: int) -> Tensor:
    """Weighted sums of rows of a table; entries are sorted by bag. Shape: (bags, width)."""
    starts = torch.searchsorted(bag_E.contiguous(), torch.arange(bags))
    return F.embedding_bag(entry_E, table, starts, mode="sum", per_sample_weights=weight_E)


def children_cross_entropy(
    rows_RS: Tensor, table_VS: Tensor, edges: ChildEdges, values_A: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """Summed cross-entropy of every row's target among its candidates; `values_A` is added to scores of `plus_A`."""
    loss: Tensor = _ChildrenCrossEntropy.apply(rows_RS, table_VS, values_A, edges, label_smoothing)
    return loss
