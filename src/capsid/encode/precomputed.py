"""A user's own vectors, read from one file and matched to the items by id.

Knows files of numbers, not their meaning or origin.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.base.storage.artifacts import file_hash
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import (
    RemembersVectors,
    check_vectors,
    content_hash,
    first_ids,
    fitted,
    has_evidence,
    require_items,
)
from capsid.encode.matrix_formats import ENDINGS, ids_file, read_matrix
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from capsid.settings import setting


@dataclass(kw_only=True)
class PrecomputedEncoder(RemembersVectors):
    """Vectors from a .npy, .npz, .parquet, .csv or .safetensors file."""

    kind: ClassVar[str] = "precomputed"
    version: ClassVar[int] = 1

    path: str = setting("", "The file of vectors.")
    missing: Literal["error", "zero"] = setting(
        "error", "Whether an item without a vector (no row, or a row of zeros) is an error or gets zeros."
    )

    def check_together(self) -> None:
        """The file must be named: see `capsid.settings.check_together`."""
        if not self.path:
            raise ConfigError("encoder.path must name a file of vectors", hint="pass --vectors FILE")

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Read and check the file. Rows of other items are kept for items added later."""
        require_items(table)
        self.items_, self.vectors_ = _read(self.path, table.items)
        extra = len(self.items_) - int((self.items_.numbers(table.items, missing="negative") >= 0).sum())
        if extra:
            progress.line(f"{self.path}: {extra:,} of {len(self.items_):,} vectors match no item of the dataset")
        self.transform(table)
        return self

    def with_vectors(self, path: str | Path) -> Self:
        """A copy that also knows the vectors of another file, for items added later. Known items keep theirs."""
        known, old_ND = fitted(self.items_, self), fitted(self.vectors_, self)
        items, vectors_ND = _read(str(path), None)
        if vectors_ND.shape[1] != old_ND.shape[1]:
            raise DataError(
                f"{path}: the vectors are {vectors_ND.shape[1]} wide, those of the fit are {old_ND.shape[1]}",
                hint="make the vectors of new items with the same model",
            )
        new = [n for n, id_ in enumerate(items) if id_ not in known]
        grown = copy.copy(self)
        grown.items_ = Vocabulary([*known, *items.ids(new)])
        grown.vectors_ = np.concatenate([old_ND, vectors_ND[new]])
        return grown

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """The file's vectors by item id; works for new items that the file holds. Shape: (items, d)."""
        known = fitted(self.items_, self)
        numbers = known.numbers(table.items, missing="negative")
        if self.missing == "error" and (numbers < 0).any():
            sample = ", ".join(map(repr, known[:3]))
            raise DataError(
                f"{self.path} has no vector for {int((numbers < 0).sum())} of {len(table)} items: "
                f"{first_ids(numbers < 0, table.items)}",
                hint=f"its ids look like {sample}; encoder.missing=zero allows items without a vector",
            )
        out_ND = self.remembered(table.items)
        if self.missing == "error" and not has_evidence(out_ND).all():
            zero = ~has_evidence(out_ND)
            raise DataError(
                f"the vectors of {int(zero.sum())} items in {self.path} are all zeros: {first_ids(zero, table.items)}",
                hint="encoder.missing=zero allows items without a vector",
            )
        return out_ND

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The bytes of the file and of its ids, and the items; not the file's path."""
        path = Path(self.path)
        if not path.is_file():
            raise DataError(f"there is no file {path}", hint=f"allowed endings: {', '.join(ENDINGS)}")
        hashes = [file_hash(p) for p in (path, ids_file(path)) if p.is_file()]
        return fingerprint(self.kind, self.version, self.missing, hashes, content_hash(table.items))


def _read(file: str, in_order: Sequence[str] | None) -> tuple[Vocabulary, np.ndarray]:
    """The ids and checked vectors of a file; a file without ids must have one row per item of `in_order`."""
    vectors_ND, ids = read_matrix(Path(file))
    if ids is None:
        if in_order is None or len(vectors_ND) != len(in_order):
            of = "" if in_order is None else f" for {len(in_order):,} items"
            raise DataError(
                f"{file} has {len(vectors_ND):,} rows{of} and no ids",
                hint=f"give an id for every row, one per line in {ids_file(Path(file)).name}"
                + ("" if in_order is None else ", or rows in item order"),
            )
        ids = list(in_order)
    if len(ids) != len(vectors_ND):
        raise DataError(
            f"{file} has {len(vectors_ND):,} vectors but {len(ids):,} ids", hint="one id per vector, in the same order"
        )
    try:
        items = Vocabulary(ids)
        check_vectors(vectors_ND, ids, allow_zero=True)
    except DataError as error:
        raise DataError(f"{file}: {error.message}", hint=error.hint) from None
    return items, vectors_ND.astype(np.float32, copy=False)
