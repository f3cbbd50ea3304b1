"""Cross-entropy of a linear layer in chunks of rows, with gradients computed in forward.

A chunk's scores are overwritten in place and never stored. This needs less memory traffic than a softmax over all rows
(as in fused linear cross-entropy kernels). They lie tile after tile, because products of small tiles are the fastest.
The tests compare with torch's cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A tile's scores fit in the cache of a core, with its rows and its vectors.
TILE_ROWS = TILE_TOKENS = 512
# All scores of a chunk should stay below malloc's mmap threshold (32 MB).
CHUNK_NUMBERS = 7 << 20


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
