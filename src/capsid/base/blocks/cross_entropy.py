"""Cross-entropies of linear layers, with gradients computed in forward; and products and sums of listed pairs.

`linear_cross_entropy` works in chunks of rows: a chunk's scores are overwritten in place and never stored. This needs
less memory traffic than a softmax over all rows (as in fused linear cross-entropy kernels). They lie tile after tile,
because products of small tiles are the fastest. `group_cross_entropy` has soft targets over groups of tokens, and needs
the sums of groups between the two products. In `children_cross_entropy` every row has its own candidates: no row is
expanded to the width of the vocabulary, and gradients gather no vectors: weighted embedding bags sum them. The tests
compare with torch. Shapes: N rows, D width, V tokens, G groups, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# A tile's scores fit in the cache of a core, with its rows and its vectors.
TILE_ROWS = TILE_TOKENS = 512
# All scores of a chunk should stay below malloc's mmap threshold (32 MB).
CHUNK_NUMBERS = 7 << 20
# A chunk's scores should fit in the caches.
GROUP_CHUNK = 1 << 20
# A dense product computes this many numbers in the time of one gathered product (measured on two cores).
DENSE = 24
# Pairs gathered at once, so that the two gathered blocks stay small.
PAIR_CHUNK = 1 << 16


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


def nothing_added() -> Added:
    """No entries."""
    nowhere = torch.zeros(0, dtype=torch.int64)
    return Added(nowhere, nowhere, torch.zeros(0))


class _Chunk:
    """Scores of some rows for all tokens: one block of numbers, in which each tile is a matrix of its own."""

    def __init__(self, numbers: Tensor, rows: int, vocabulary: int) -> None:
        self.numbers, self.rows, self.vocabulary = numbers[: rows * vocabulary], rows, vocabulary
        sizes = [min(TILE_TOKENS, vocabulary - start) for start in range(0, vocabulary, TILE_TOKENS)]
        self.tiles = [part.view(rows, -1) for part in self.numbers.split([rows * size for size in sizes])]

    def places(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Where the scores of these pairs of rows and tokens are among the numbers."""
        starts = tokens - tokens % TILE_TOKENS
        widths = (self.vocabulary - starts).clamp_max(TILE_TOKENS)
        return starts * self.rows + rows * widths + tokens - starts


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
        chunk = max(1, min(rows, TILE_ROWS, CHUNK_NUMBERS // vocabulary))
        grad_hidden, grad_weight = torch.zeros_like(hidden_ND), torch.zeros_like(weight_VD)
        total, grad_values = torch.zeros((), dtype=torch.float64), torch.empty_like(values_E)
        weights, weight_grads = weight_VD.split(TILE_TOKENS), grad_weight.split(TILE_TOKENS)
        across = [tile_TD.T.contiguous() for tile_TD in weights]
        numbers = hidden_ND.new_empty(chunk * vocabulary)
        for start in range(0, rows, chunk):
            h_CD, t_C = hidden_ND[start : start + chunk], targets_N[start : start + chunk]
            scores = _Chunk(numbers, len(h_CD), vocabulary)
            for tile_CT, tile_DT in zip(scores.tiles, across):
                torch.mm(h_CD, tile_DT, out=tile_CT)
            low, high = torch.searchsorted(rows_E, torch.tensor([start, start + len(h_CD)])).tolist()
            number_E = rows_E[low:high] - start
            added = scores.places(number_E, tokens_E[low:high])
            scores.numbers[added] += values_E[low:high]
            own_C1 = scores.numbers[scores.places(torch.arange(len(h_CD)), t_C)][:, None]
            most_C1 = torch.cat([tile_CT.amax(1, keepdim=True) for tile_CT in scores.tiles], 1).amax(1, keepdim=True)
            mean_C1 = own_C1
            if smoothing:
                mean_C1 = sum(tile_CT.sum(1, keepdim=True) for tile_CT in scores.tiles) / vocabulary
            # exp(score - largest) is the probability times the sum; the sum divides the narrow sides of both products.
            sum_C1, grad_CD = torch.zeros_like(own_C1), grad_hidden[start : start + chunk]
            for tile_CT, tile_TD in zip(scores.tiles, weights):
                sum_C1 += tile_CT.sub_(most_C1).exp_().sum(1, keepdim=True)
                grad_CD.addmm_(tile_CT, tile_TD)
            grad_CD.div_(sum_C1)
            scaled_CD = h_CD / sum_C1
            for tile_CT, grad_TD in zip(scores.tiles, weight_grads):
                grad_TD.addmm_(tile_CT.T, scaled_CD)
            log_sum_C1 = sum_C1.log() + most_C1
            total += (log_sum_C1 - (1 - smoothing) * own_C1 - smoothing * mean_C1).sum(dtype=torch.float64)
            grad_values[low:high] = scores.numbers[added] / sum_C1[number_E, 0]
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
    added = added or nothing_added()
    loss: Tensor = _LinearCrossEntropy.apply(
        hidden_ND, weight_VD, targets_N, label_smoothing, added.rows_E, added.tokens_E, added.values_E
    )
    return loss


@dataclass(frozen=True, eq=False)
class GroupTargets:
    """Group `group_V[v]` of every token, and shares of the target: row `rows_E[e]` gives `shares_E[e]` to a group.

    The shares of a row sum to 1; entries are sorted by row and no pair of row and group occurs twice.
    """

    group_V: Tensor
    rows_E: Tensor
    groups_E: Tensor
    shares_E: Tensor


class _ThreeGradients(torch.autograd.Function):
    """Hands on the gradients of its first three arguments, which forward has saved; the other two have none."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first, second, third = (saved * grads[0] for saved in ctx.saved_tensors)
        return first, second, third, None, None


class _GroupCrossEntropy(_ThreeGradients):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, values_A: Tensor, targets: GroupTargets, added: Added
    ) -> Tensor:
        rows, vocabulary = len(hidden_ND), len(weight_VD)
        groups = int(targets.group_V.max()) + 1
        chunk = max(1, min(rows, GROUP_CHUNK // vocabulary))
        grad_hidden, grad_weight = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        total, grad_values = torch.zeros((), dtype=torch.float64), torch.empty_like(values_A)
        for start in range(0, rows, chunk):
            h_CD = hidden_ND[start : start + chunk]
            ends = torch.tensor([start, start + len(h_CD)])
            low, high = torch.searchsorted(added.rows_E, ends).tolist()
            plus = added.rows_E[low:high] - start, added.tokens_E[low:high]
            scores_CV = h_CD @ weight_VD.T
            scores_CV[plus] += values_A[low:high]
            odds_CV = scores_CV.sub_(scores_CV.amax(1, keepdim=True)).exp_()
            sums_CG = odds_CV.new_zeros(len(h_CD), groups).index_add_(1, targets.group_V, odds_CV)
            # A group whose odds are all too small for a float has the smallest one.
            sums_CG.clamp_min_(torch.finfo(odds_CV.dtype).tiny)
            whole_C1 = odds_CV.sum(1, keepdim=True)
            first, last = torch.searchsorted(targets.rows_E, ends).tolist()
            pairs = targets.rows_E[first:last] - start, targets.groups_E[first:last]
            shares_E = targets.shares_E[first:last]
            total += whole_C1.log().sum(dtype=torch.float64)
            total -= (shares_E * sums_CG[pairs].log()).sum(dtype=torch.float64)
            # The gradient of a score: its probability minus its part of what the target gives to its group.
            per_odds_CG = torch.zeros_like(sums_CG)
            per_odds_CG[pairs] = shares_E / sums_CG[pairs]
            grad_CV = odds_CV.mul_(1 / whole_C1 - per_odds_CG[:, targets.group_V])
            torch.mm(grad_CV, weight_VD, out=grad_hidden[start : start + chunk])
            grad_weight.addmm_(grad_CV.T, h_CD)
            grad_values[low:high] = grad_CV[plus]
        ctx.save_for_backward(grad_hidden, grad_weight, grad_values)
        return total.to(hidden_ND.dtype)


def group_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets: GroupTargets, *, added: Added | None = None
) -> Tensor:
    """Summed cross-entropy of the groups' probabilities under `hidden @ weight.T` and the shares of the targets."""
    added = added or nothing_added()
    loss: Tensor = _GroupCrossEntropy.apply(hidden_ND, weight_VD, added.values_E, targets, added)
    return loss


def pair_products(left_RD: Tensor, right_VD: Tensor, row_E: Tensor, column_E: Tensor) -> Tensor:
    """The dot product of left row `row_E[e]` and right row `column_E[e]`. Shape: (E,).

    If many pairs share columns, one dense product of the used columns is cheaper than a gather.
    """
    used_V = torch.zeros(len(right_VD), dtype=torch.bool)
    used_V[column_E] = True
    columns = int(used_V.sum())
    if len(left_RD) * columns <= DENSE * len(row_E):
        place_V = used_V.cumsum(0) - 1
        dense_RC = left_RD @ (right_VD if columns == len(right_VD) else right_VD[used_V]).T
        return dense_RC.reshape(-1)[row_E * columns + place_V[column_E]]
    parts = [
        (left_RD[rows] * right_VD[columns]).sum(-1)
        for rows, columns in zip(row_E.split(PAIR_CHUNK), column_E.split(PAIR_CHUNK))
    ]
    return torch.cat(parts)


def segment_logsumexp(values_E: Tensor, segment_E: Tensor, count: int) -> Tensor:
    """Log of the summed exponentials of every segment; minus infinity for an empty one. Shape: (count,)."""
    largest_S = torch.full((count,), -torch.inf).scatter_reduce(0, segment_E, values_E.detach(), "amax")
    # In a segment of minus infinities, subtracting the largest value would give NaN.
    shift_S = torch.where(largest_S.isinf(), torch.zeros(()), largest_S)
    sums_S = torch.zeros(count).index_add(0, segment_E, (values_E - shift_S[segment_E]).exp())
    return sums_S.log() + shift_S


@dataclass(frozen=True, eq=False)
class ChildEdges:
    """Edge e offers token `token_E[e]` to row `row_E[e]`; edges are sorted by row. `own_R` is the edge of each target.

    Numbers are added to the scores of the edges `plus_A`.
    """

    row_E: Tensor
    token_E: Tensor
    own_R: Tensor
    plus_A: Tensor


class _ChildrenCrossEntropy(_ThreeGradients):
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
