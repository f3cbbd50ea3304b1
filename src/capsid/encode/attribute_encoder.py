"""Vectors of the items' attributes (categories, brand, ...): idf-weighted values, then truncated SVD.

Values are treated as names. Numbers are names too, so bin prices before using them here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import polars as pl

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import content_hash, fitted, pack_strings, require_items, take, unpack_strings
from capsid.encode.linalg import truncated_svd
from capsid.errors import ConfigError, DataError, nearest
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting

if TYPE_CHECKING:
    import scipy.sparse as sp

# A column of strings counts as an attribute if its values repeat; titles and descriptions rarely repeat.
DISTINCT_SHARE = 0.5
# Values of fewer items than this are ignored.
MIN_ITEMS = 2


@dataclass(kw_only=True)
class AttributeEncoder:
    """Multi-hot values of columns, idf-weighted and reduced to their principal axes. Works for new items. An item
    without values, or with only values unknown at `fit`, gets zeros."""

    kind: ClassVar[str] = "attributes"

    columns: tuple[str, ...] = setting(
        (), "Columns to read; empty: every list column and every text column whose values repeat."
    )
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
        """Columns, values, weights and directions."""
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
