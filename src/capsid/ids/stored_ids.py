"""Reads stored ids, refusing values that cannot be right: rows of items, layout, reading, mixtures; and ids on disk.

One row per item is in `ids.parquet`, and no Python object is made for any of them. Columns: `item_id`, `codes`, and
where a collision policy made them `suffix` and `unsettled` (the codes before it). `MappedIds` reads histories while
the catalogue stays on disk, for workers of a process that has checked the run (`capsid.ids.semantic_ids` reads and
checks it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.config import Kinds, from_dict
from capsid.base.storage import parquet, untrusted
from capsid.base.storage.arrays import load_arrays, map_arrays
from capsid.base.storage.artifacts import read_json
from capsid.base.vocabulary import Vocabulary
from capsid.ids.item_tokens import Beside, ItemRows, TrieRows, Unmerged
from capsid.ids.layout import FIRST, TokenLayout
from capsid.ids.merges import MergeTable, PieceTable
from capsid.ids.mixtures import Mixtures
from capsid.ids.reading import READINGS, ItemByItem, Reading, TokenBatch, read_histories
from capsid.ids.trie import Trie
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


def read_rows(folder: Path) -> tuple[Vocabulary, dict[str, np.ndarray]]:
    """The items, and unchecked arrays by name: codes, offsets, suffixes, unsettled, and those of other parts."""
    arrays = load_arrays(folder / ARRAYS)
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


MERGE_TABLES: dict[str, type[MergeTable]] = {t.form: t for t in (MergeTable, PieceTable)}


def layout_of(about: dict[str, Any], arrays: Mapping[str, np.ndarray], items: int) -> TokenLayout:
    """The layout in a file. Its size is bounded, because tables of vocabulary length are made from it."""
    most = 4 * items + (1 << 22)
    sizes = [untrusted.whole(s, "ids.json: a codebook's size", least=1, most=most) for s in about["sizes"]]
    suffix = untrusted.whole(about["suffix"], "ids.json: suffix", least=0, most=most)
    untrusted.whole(len(sizes), "ids.json: number of codebooks", least=1, most=1_000)
    first = untrusted.whole(about.get("first", FIRST), "ids.json: first", least=FIRST, most=most)
    untrusted.whole(sum(sizes) + suffix, "ids.json: number of tokens", least=1, most=most)
    # Folders of versions without merges have no merge table, and older ones do not name its form.
    stored = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith("merges/")}
    form = about.get("merges", MergeTable.form)
    if form not in MERGE_TABLES:
        raise untrusted.refuse(f"ids.json: merges must be one of {', '.join(MERGE_TABLES)}, got {form!r}")
    table = MERGE_TABLES[form]
    merges = table.from_state(untrusted.finite(stored, "ids.npz: merges")) if stored else table()
    return TokenLayout(tuple(sizes), suffix, merges, first)


def reading_of(about: dict[str, Any], kinds: Kinds | None) -> Reading:
    """The reading in a file; folders of versions with only one reading do not name it."""
    if "reading" not in about:
        return ItemByItem()
    reading: Reading = from_dict(None, about["reading"], {**READINGS, **(kinds or {})})
    if not dataclasses.is_dataclass(reading):
        raise untrusted.refuse("ids.json: the reading is not a part")
    return reading


def mixtures_of(
    arrays: Mapping[str, np.ndarray], layout: TokenLayout, items: int, *, checked: bool = False
) -> Mixtures | None:
    """The mixtures in a file, if any; every code must be in the codebook of its depth. `checked`: another process has
    checked the file, so its arrays are not read here."""
    soft = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith("mixtures/")}
    if not soft or checked:
        return Mixtures.from_state(soft) if soft else None
    mixtures = Mixtures.from_state(untrusted.finite(soft, "ids.npz: mixtures"))
    codes, sizes = mixtures.codes_NLK, np.array(layout.sizes)
    fits = codes.ndim == 3 and codes.shape[:2] == (items, len(sizes)) and codes.shape == mixtures.weights_NLK.shape
    if not fits or codes.dtype.kind not in "iu" or not ((codes >= 0) & (codes < sizes[:, None])).all():
        raise untrusted.refuse("ids.npz: the mixtures belong to other codebooks")
    return mixtures


@dataclass(frozen=True, eq=False)
class MappedIds:
    """What reading histories needs, as in `SemanticIds`."""

    layout: TokenLayout
    trie: Trie
    reading: Reading
    mixtures: Mixtures | None = None
    others: tuple[MappedIds, ...] = ()

    @classmethod
    def open(cls, folder: Path, trie: Trie, kinds: Kinds | None = None) -> MappedIds:
        """The ids that `SemanticIds.save` wrote to `folder`, without other ids; `trie` is the trie of them."""
        arrays = map_arrays(folder / ARRAYS, lambda name: "/" in name)
        with untrusted.interpreting(folder / ARRAYS, "file of ids"):
            about = untrusted.mapping(read_json(folder / "ids.json"), "ids.json")
            layout, n = layout_of(about, arrays, len(trie)), len(trie)
            soft = mixtures_of(arrays, layout, n, checked=True)
            return cls(layout, trie, reading_of(about, kinds), soft)

    def with_other(self, other: MappedIds) -> MappedIds:
        """The same ids with one more id of every item."""
        layout = replace(self.layout, others=(*self.layout.others, other.layout))
        return replace(self, layout=layout, others=(*self.others, other))

    @property
    def systems(self) -> tuple[MappedIds, ...]:
        return (self, *self.others)

    @property
    def prefix_free(self) -> ItemRows:
        return TrieRows(self.trie)

    @property
    def entering(self) -> ItemRows:
        return Beside(tuple(ids.prefix_free for ids in self.systems)) if self.others else self.prefix_free

    @property
    def unmerged(self) -> ItemRows:
        return Unmerged(self.prefix_free, self.layout)

    @property
    def positions_per_item(self) -> int:
        return self.reading.positions_per_item(self.layout)

    def read(self, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        return read_histories(self, histories, last=last, variant=variant)
