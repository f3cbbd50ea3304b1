"""A user's own vectors, read from one file and matched to the items by id.

Knows files of numbers, not their meaning or origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np

from capsid.artifacts import file_hash
from capsid.config import fingerprint
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
from capsid.encode.matrix_files import ids_file, read_matrix
from capsid.errors import DataError
from capsid.progress import Progress, silent
from capsid.running import CheckpointFile
from capsid.settings import setting
from capsid.vocabulary import Vocabulary


@dataclass(kw_only=True)
class PrecomputedEncoder(RemembersVectors):
    """Vectors from a .npy, .npz, .parquet or .safetensors file."""

    kind: ClassVar[str] = "precomputed"
    version: ClassVar[int] = 1

    path: str = setting(about="The file of vectors.", count=(1, None))
    missing: Literal["error", "zero"] = setting(
        "error", "Whether an item without a vector (no row, or a row of zeros) is an error or gets zeros."
    )

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Read and check the file. Rows of other items are kept for items added later."""
        require_items(table)
        vectors_ND, ids = read_matrix(Path(self.path))
        if ids is None:
            if len(vectors_ND) != len(table):
                raise DataError(
                    f"{self.path} has {len(vectors_ND)} rows for {len(table)} items and no ids",
                    hint=f"give rows in item order, or ids (one per line) in {ids_file(Path(self.path)).name}",
                )
            ids = list(table.items)
        if len(ids) != len(vectors_ND):
            raise DataError(f"{self.path} has {len(vectors_ND)} vectors but {len(ids)} ids")
        try:
            items = Vocabulary(ids)
        except DataError as error:
            raise DataError(f"{self.path}: {error.message}", hint=error.hint) from None
        check_vectors(vectors_ND, ids, allow_zero=True)
        self.items_, self.vectors_ = items, vectors_ND.astype(np.float32)
        extra = len(ids) - len(set(ids) & set(table.items))
        if extra:
            progress.line(f"{self.path}: {extra:,} of {len(ids):,} vectors match no item of the dataset")
        self.transform(table)
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """The file's vectors by item id; works for new items that the file holds. Shape: (items, d)."""
        known = fitted(self.items_, self)
        numbers = known.numbers(table.items, missing="negative")
        if self.missing == "error" and (numbers < 0).any():
            sample = ", ".join(map(repr, known[:3]))
            raise DataError(
                f"{self.path} has no vector for {int((numbers < 0).sum())} of {len(table)} items: "
                f"{first_ids(numbers < 0, table.items)}",
                hint=f"its ids look like {sample}; missing=zero allows items without a vector",
            )
        out_ND = self.remembered(table.items)
        if self.missing == "error" and not has_evidence(out_ND).all():
            zero = ~has_evidence(out_ND)
            raise DataError(
                f"the vectors of {int(zero.sum())} items in {self.path} are all zeros: {first_ids(zero, table.items)}",
                hint="missing=zero allows items without a vector",
            )
        return out_ND

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The bytes of the file and of its ids, and the items; not the file's path."""
        path, ids = Path(self.path), ids_file(Path(self.path))
        if not path.is_file():
            raise DataError(f"there is no file {path}", hint="give the path of a .npy, .npz, .parquet or .safetensors")
        hashes = [file_hash(p) for p in (path, ids) if p.is_file()]
        return fingerprint(self.kind, self.version, self.missing, hashes, content_hash(table.items))
