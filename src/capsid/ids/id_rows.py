"""Reads and writes the rows of stored ids: one row per item in `ids.parquet`, and no Python object for any of them.

Columns: `item_id`, `codes`, and where a collision policy made them `suffix` and `unsettled` (the codes before it).
Older folders hold the items in `ids.json` and the codes in `ids.npz`; they are read as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.storage import parquet, untrusted
from capsid.base.storage.arrays import load_arrays
from capsid.base.vocabulary import Vocabulary
from capsid.ragged import Ragged

ROWS, ARRAYS = "ids.parquet", "ids.npz"
KINDS = {"item_id": Vocabulary, "codes": Ragged, "suffix": np.ndarray, "unsettled": Ragged}


def write_rows(
    folder: Path, items: Vocabulary, codes: Ragged, suffixes: np.ndarray | None, unsettled: Ragged | None
) -> None:
    """Write `ids.parquet`."""
    columns: dict[str, Vocabulary | Ragged | np.ndarray] = {"item_id": items, "codes": codes}
    if suffixes is not None:
        columns["suffix"] = suffixes
    if unsettled is not None:
        columns["unsettled"] = unsettled
    parquet.write_rows(folder / ROWS, columns)


def read_rows(folder: Path, about: Mapping[str, Any]) -> tuple[Vocabulary, dict[str, np.ndarray]]:
    """The items, and unchecked arrays by name: codes, offsets, suffixes, unsettled, and those of other parts."""
    arrays = load_arrays(folder / ARRAYS)
    if not (folder / ROWS).exists():
        return Vocabulary(untrusted.texts(about["items"], "ids.json: items")), arrays
    found: dict[str, Any] = parquet.read_rows(folder / ROWS, KINDS)
    codes = found["codes"]
    arrays |= {"codes": codes.values, "offsets": codes.offsets}
    if "suffix" in found:
        arrays["suffixes"] = found["suffix"]
    if "unsettled" in found:
        # A policy changes no length, so both kinds of codes have the same offsets.
        if not np.array_equal(found["unsettled"].offsets, codes.offsets):
            raise untrusted.refuse(f"{ROWS}: codes and unsettled have rows of other lengths")
        arrays["unsettled"] = found["unsettled"].values
    return found["item_id"], arrays
