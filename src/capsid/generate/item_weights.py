"""Weights between items, each from a closed form: how much item j in a history speaks for item i.

`co_taken` is the cosine of two items' users, shrunk towards 0 for rare ones. `ease_weights` is EASE (Steck 2019, arXiv
1905.03375, equation 8): the ridge regression of every item on all others. In a large catalogue the inverse does not fit
into memory, and every item is regressed on the items that it was taken with most often; with all of them as candidates
the two agree. Knows item numbers only. Shapes: N items, U users.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capsid.errors import ConfigError
from capsid.ragged import Ragged

# The inverse of this many items takes 1.6 GB and about a minute of processor time.
EXACT_UP_TO = 20_000
CANDIDATES = 100


def co_taken(sequences: Ragged, items: int, *, neighbours: int, shrink: float) -> tuple[Ragged, np.ndarray]:
    """For every item the items that most of its users took too, and the cosines."""
    counts_NN = _together(sequences, items)
    own_N = counts_NN.diagonal()
    pairs = counts_NN.tocoo()
    row, column = pairs.coords
    apart = row != column
    row, column = row[apart], column[apart]
    weights = pairs.data[apart] / (np.sqrt(own_N[row] * own_N[column]) + shrink)
    return _strongest(row, column, weights, items, neighbours)


def ease_weights(
    sequences: Ragged, items: int, *, regularisation: float, neighbours: int, exact_up_to: int = EXACT_UP_TO
) -> tuple[Ragged, np.ndarray]:
    """For every item of a history the items that it speaks for or against most, and the weights."""
    counts_NN = _together(sequences, items)
    if items <= exact_up_to:
        # Columns first, as LAPACK reads it: it is inverted in place, and no second copy is made.
        return _exact(counts_NN.astype(np.float32).toarray(order="F"), regularisation, neighbours)
    offsets, place_N = counts_NN.indptr.astype(np.int64), np.full(items, -1)
    others = Ragged(counts_NN.indices.astype(np.int64), offsets)
    entries = Ragged(np.arange(counts_NN.nnz), offsets)
    parts = [_regressed(others, entries, counts_NN.data, item, regularisation, place_N) for item in range(items)]
    row = np.concatenate([source for source, _ in parts])
    column = np.repeat(np.arange(items), [len(source) for source, _ in parts])
    return _strongest(row, column, np.concatenate([weights for _, weights in parts]), items, neighbours)


def _together(sequences: Ragged, items: int) -> Any:
    """How many users took both items; on the diagonal, how many took the item."""
    from scipy.sparse import csr_array

    shape = (len(sequences), items)
    taken_UN = csr_array((np.ones(len(sequences.values)), (sequences.row_numbers, sequences.values)), shape=shape)
    taken_UN.sum_duplicates()
    taken_UN.data[:] = 1.0
    return (taken_UN.T @ taken_UN).tocsr()


def _exact(gram_NN: np.ndarray, regularisation: float, neighbours: int) -> tuple[Ragged, np.ndarray]:
    from scipy.linalg.lapack import spotrf, spotri

    items = len(gram_NN)
    gram_NN[np.diag_indices(items)] += regularisation
    # In place, and one triangle: half of the work and of the memory of a general inverse.
    factor_NN, failed = spotrf(gram_NN, lower=1, clean=0, overwrite_a=1)
    inverse_NN, broken = spotri(factor_NN, lower=1, overwrite_c=1) if not failed else (factor_NN, failed)
    if failed or broken:
        raise ConfigError("the items cannot be regressed on each other", hint="set a larger generator.regularisation")
    own_N = inverse_NN.diagonal().copy()
    row, column, weights = [], [], []
    for item in range(items):
        # Weights of `item` for all others: its row of the symmetric inverse over their diagonal.
        both_N = np.concatenate([inverse_NN[item, :item], inverse_NN[item:, item]])
        speaks_N = -both_N / own_N
        speaks_N[item] = 0.0
        best = _largest(np.abs(speaks_N), neighbours)
        row.append(np.full(len(best), item))
        column.append(best)
        weights.append(speaks_N[best])
    return _strongest(np.concatenate(row), np.concatenate(column), np.concatenate(weights), items, neighbours)


def _regressed(
    others: Ragged, entries: Ragged, counts: np.ndarray, item: int, regularisation: float, place_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The items that one item is regressed on, and their weights. `place_N` is all -1, and is left so."""
    own, taken = others[item], counts[entries[item]]
    own, taken = own[own != item], taken[own != item]
    chosen = own[np.sort(np.argsort(-taken, kind="stable")[:CANDIDATES])]
    rows, entry = others.take(chosen), entries.take(chosen).values
    place_N[chosen] = np.arange(len(chosen))
    column = place_N[rows.values]
    gram_CC = np.diag(np.full(len(chosen), float(regularisation)))
    inside = column >= 0
    row, here = rows.row_numbers, rows.values == item
    gram_CC[row[inside], column[inside]] += counts[entry[inside]]
    wanted_C = np.zeros(len(chosen))
    wanted_C[row[here]] = counts[entry[here]]
    place_N[chosen] = -1
    return chosen, np.linalg.solve(gram_CC, wanted_C)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    best = np.argpartition(-values, count)[:count] if count < len(values) else np.arange(len(values))
    return best[values[best] > 0]


def _strongest(
    row: np.ndarray, column: np.ndarray, weights: np.ndarray, items: int, most: int
) -> tuple[Ragged, np.ndarray]:
    """At most the `most` largest weights of every row; equal ones by item number."""
    order = np.lexsort((column, -np.abs(weights), row))
    row, column, weights = row[order], column[order], weights[order]
    rows = Ragged.from_lengths(column.astype(np.int64), np.bincount(row, minlength=items))
    kept = rows.positions < most
    return rows.keep(kept), weights[kept].astype(np.float32)
