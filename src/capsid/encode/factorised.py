"""Vectors by truncated SVD: of co-occurrence in training histories, and of the items' attributes.

Collaborative vectors are positive PMI of windowed co-occurrence; items without training co-occurrence, including new
ones, get zeros. Attributes (categories, brand, ...) are idf-weighted values, treated as names; numbers are names too,
so bin prices before using them here. SVD and principal axes are deterministic to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import polars as pl

from capsid.base.config import fingerprint
from capsid.base.randomness import numpy_rng
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import (
    RemembersVectors,
    content_hash,
    fitted,
    histories_hash,
    pack_strings,
    require_items,
    take,
    unpack_strings,
)
from capsid.errors import ConfigError, DataError, nearest
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting

if TYPE_CHECKING:
    import scipy.sparse as sp


DENSE_BELOW = 384
OVERSAMPLING = 32
POWER_ROUNDS = 8


def truncated_svd(matrix_MN: sp.csr_matrix, rank: int, *, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The leading singular triplets, at most `rank`, signs fixed. Shapes: (m, r), (r,), (n, r). Small matrices are
    solved exactly, others by randomised subspace iteration (Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1),
    which unlike Lanczos solvers cannot fail to converge on matrices of low rank."""
    rank = min(rank, *matrix_MN.shape)
    if min(matrix_MN.shape) <= max(DENSE_BELOW, rank + OVERSAMPLING):
        left, values, right = np.linalg.svd(matrix_MN.toarray().astype(np.float64), full_matrices=False)
        right = right.T
    else:
        left, values, right = _randomised(matrix_MN, rank + OVERSAMPLING, seed)
    left, values, right = left[:, :rank], values[:rank].copy(), right[:, :rank]
    values[values < 1e-7 * values.max(initial=0.0)] = 0.0
    signs = column_signs(right)
    return left * signs, values, right * signs


def principal_axes(rows_ND: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Axes of the largest second moment about the origin, and the root mean square on each. Shapes: (d, r), (r,). About
    the origin: centre the rows first if you want a PCA."""
    rows_ND = rows_ND.astype(np.float64)
    moments, axes_DR = np.linalg.eigh(rows_ND.T @ rows_ND / max(len(rows_ND), 1))
    rank = min(rank, rows_ND.shape[1])
    axes_DR, moments = axes_DR[:, ::-1][:, :rank], moments[::-1][:rank]
    # Whitening would scale axes that hold only rounding errors up to full-size noise.
    keep = moments > 1e-10 * max(moments[0], 1e-300)
    keep[0] = True
    axes_DR = axes_DR[:, keep]
    return axes_DR * column_signs(axes_DR), np.sqrt(np.maximum(moments[keep], 0.0))


def column_signs(columns_DR: np.ndarray) -> np.ndarray:
    """+1 or -1 for each column, such that its largest entry becomes positive. Shape: (r,)."""
    largest = np.abs(columns_DR).argmax(axis=0)
    return np.where(columns_DR[largest, np.arange(columns_DR.shape[1])] < 0, -1.0, 1.0)


def _randomised(matrix_MN: sp.csr_matrix, width: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    transposed_NM = matrix_MN.T.tocsr()
    basis = numpy_rng(seed, "truncated-svd").standard_normal((matrix_MN.shape[1], width))
    left, _ = np.linalg.qr(matrix_MN @ basis)
    for _ in range(POWER_ROUNDS):
        right, _ = np.linalg.qr(transposed_NM @ left)
        left, _ = np.linalg.qr(matrix_MN @ right)
    small_RN = np.asarray((transposed_NM @ left).T)
    inner, values, right_t = np.linalg.svd(small_RN, full_matrices=False)
    return left @ inner, values, right_t.T


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


# A column of strings counts as an attribute if its values repeat; titles and descriptions rarely repeat.
DISTINCT_SHARE = 0.5
# Values of fewer items than this are ignored.
MIN_ITEMS = 2


@dataclass(kw_only=True)
class AttributeEncoder:
    """Multi-hot values of columns, idf-weighted and reduced to their principal axes. Works for new items. An item
    without values, or with only values unknown at `fit`, gets zeros."""

    kind: ClassVar[str] = "attributes"

    columns: tuple[str, ...] = setting((), "Columns to read; empty: lists, and texts whose values repeat.")
    dim: int = setting(64, "Width of the vectors.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
        self.columns_: tuple[str, ...] = ()
        self.values_: dict[str, int] | None = None
        self.idf_: np.ndarray | None = None
        self.axes_: np.ndarray | None = None

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Choose the values to use as features, weight them by idf, and find the leading directions."""
        require_items(table)
        columns = choose_columns(table, self.columns)
        found = Counter(feature for features in _features(table, columns) for feature in features)
        # A value of all items carries no information: its weight log(N / df) would be zero.
        kept = sorted(feature for feature, n in found.items() if MIN_ITEMS <= n < len(table))
        if not kept:
            raise DataError(
                f"no value of {', '.join(columns)} is shared by {MIN_ITEMS} items but not by all",
                hint="choose other columns",
            )
        self.columns_, self.values_ = columns, {feature: i for i, feature in enumerate(kept)}
        self.idf_ = np.log(len(table) / np.array([found[f] for f in kept], dtype=np.float64))
        _, _, axes_VD = truncated_svd(self._weighted(table), self.dim, seed=seed)
        self.axes_ = axes_VD
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Weighted values projected on the learnt directions. Shape: (items, at most dim)."""
        axes_VD = fitted(self.axes_, self)
        return np.asarray(self._weighted(table) @ axes_VD, dtype=np.float32)

    def state(self) -> dict[str, np.ndarray]:
        return {
            "columns": pack_strings(self.columns_),
            "values": pack_strings(fitted(self.values_, self)),
            "idf": fitted(self.idf_, self),
            "axes": fitted(self.axes_, self),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        self.columns_ = tuple(unpack_strings(take(state, "columns")))
        self.values_ = {feature: i for i, feature in enumerate(unpack_strings(take(state, "values")))}
        self.idf_, self.axes_ = take(state, "idf"), take(state, "axes")
        return self

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The chosen values of every item, the hyperparameters and the seed of the factorisation."""
        features = ["\t".join(f) for f in _features(table, choose_columns(table, self.columns))]
        return fingerprint(self, content_hash(table.items, features), seed)

    def _weighted(self, table: ItemTable) -> sp.csr_matrix:
        """Multi-hot times idf, rows of norm one or zero. Shape: (items, values)."""
        import scipy.sparse as sp

        values, idf_V = fitted(self.values_, self), fitted(self.idf_, self)
        known = Ragged.from_rows(
            (sorted({values[f] for f in features if f in values}) for features in _features(table, self.columns_)),
            np.int64,
        )
        weights = idf_V[known.values]
        squares_N = np.bincount(known.row_numbers, weights**2, minlength=len(known))
        weights = weights / np.repeat(np.sqrt(squares_N), known.lengths)
        return sp.csr_matrix((weights, known.values, known.offsets), shape=(len(known), len(values)))


def choose_columns(table: ItemTable, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The named columns, or those that look like attributes."""
    known = table.attributes.columns
    for column in columns:
        if column not in known:
            raise ConfigError(f"the items have no attribute {column!r}", hint=nearest(column, known))
    chosen = columns or tuple(c for c in known if _looks_like_attribute(table.attributes[c]))
    if not chosen:
        raise DataError("the items have no attributes whose values repeat", hint="name the columns to use")
    return chosen


def _looks_like_attribute(series: pl.Series) -> bool:
    if isinstance(series.dtype, pl.List):
        return True
    if series.dtype not in (pl.String, pl.Categorical, pl.Boolean):
        return False
    said = series.drop_nulls()
    return len(said) > 0 and said.n_unique() <= max(2, DISTINCT_SHARE * len(said))


def _features(table: ItemTable, columns: Iterable[str]) -> list[list[str]]:
    """`column=value` of each item; columns missing from a table of new items are skipped."""
    present = [(c, table.attributes[c].to_list()) for c in columns if c in table.attributes.columns]
    return [[f"{c}={v}" for c, values in present for v in _flat(values[i])] for i in range(len(table))]


def _flat(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    if isinstance(value, list):
        return [v for part in value for v in _flat(part)]
    return [str(value)]
