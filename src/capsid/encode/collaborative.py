"""Vectors from windowed co-occurrence in training histories: positive PMI, then truncated SVD.

Reads only the table's training sequences. Items without training co-occurrence, including new ones, get zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import RemembersVectors, histories_hash, require_items
from capsid.encode.linalg import truncated_svd
from capsid.errors import DataError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import setting

if TYPE_CHECKING:
    import scipy.sparse as sp

# Exponent of the context counts: below 1 it lowers the PMI of rare items.
SMOOTHING = 0.75


@dataclass(kw_only=True)
class CollaborativeEncoder(RemembersVectors):
    """Singular vectors of the positive PMI matrix, scaled by the roots of the singular values."""

    kind: ClassVar[str] = "collaborative"

    dim: int = setting(64, "Width of the vectors.", least=1)
    window: int = setting(5, "Items of a sequence that are at most this far apart co-occur.", least=1)

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Count co-occurrences in the training histories, weight them and factorise."""
        require_items(table)
        counts_NN = cooccurrence(table.sequences, len(table), window=self.window)
        if counts_NN.nnz == 0:
            raise DataError(
                "no two items occur together in the training histories",
                hint="collaborative vectors need users with two or more training items; use text or attributes",
            )
        ppmi_NN = positive_pmi(counts_NN)
        left_ND, values_D, _ = truncated_svd(ppmi_NN, self.dim, seed=seed)
        # U S^p: p = 1/2 serves similarity better than the proper factors (Levy, Goldberg and Dagan 2015, section 3.3).
        vectors_ND = left_ND * values_D**0.5
        norms_N = np.linalg.norm(vectors_ND, axis=1)
        # A row outside the leading components holds only rounding errors; scaled to norm one it would be noise.
        vectors_ND[norms_N < 1e-6 * norms_N.max(initial=0.0)] = 0.0
        self.items_, self.vectors_ = table.items, vectors_ND.astype(np.float32)
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """The learnt vectors by item id; zeros for items unseen in training. Shape: (items, dim)."""
        return self.remembered(table.items)

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The training histories, the hyperparameters and the seed of the factorisation."""
        return fingerprint(self, histories_hash(table), seed)


def cooccurrence(sequences: Ragged, items: int, *, window: int) -> sp.csr_matrix:
    """Counts of two different items at most `window` apart, each over its distance. Shape: (items, items)."""
    import scipy.sparse as sp

    row_of = sequences.row_numbers
    total = sp.csr_matrix((items, items), dtype=np.float64)
    for distance in range(1, window + 1):
        near, far = sequences.values[:-distance], sequences.values[distance:]
        pairs = (row_of[:-distance] == row_of[distance:]) & (near != far)
        weights = np.full(int(pairs.sum()), 1.0 / distance)
        total = total + sp.csr_matrix((weights, (near[pairs], far[pairs])), shape=(items, items))
    return (total + total.T).tocsr()


def positive_pmi(counts_NN: sp.csr_matrix) -> sp.csr_matrix:
    """max(0, log p(i, j) / (p(i) p_a(j))), p_a(j) proportional to count(j)^a (Levy, Goldberg and Dagan 2015, Eq. 3)."""
    import scipy.sparse as sp

    total = counts_NN.sum()
    rows_N = np.asarray(counts_NN.sum(axis=1)).ravel() / total
    contexts_N = np.asarray(counts_NN.sum(axis=0)).ravel()
    smooth_N = np.where(contexts_N > 0, np.maximum(contexts_N, 1e-300) ** SMOOTHING, 0.0)
    smooth_N /= smooth_N.sum()
    pairs = counts_NN.tocoo()
    pmi = np.log(pairs.data / total / (rows_N[pairs.row] * smooth_N[pairs.col]))
    keep = pmi > 0
    return sp.csr_matrix((pmi[keep], (pairs.row[keep], pairs.col[keep])), shape=counts_NN.shape)
