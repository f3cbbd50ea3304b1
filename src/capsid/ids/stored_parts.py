"""Reads the parts of stored ids: layout, reading, mixtures. Refuses values that cannot be right."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from capsid.base.config import Kinds, from_dict
from capsid.base.storage import untrusted
from capsid.ids.kinds import READINGS
from capsid.ids.layout import FIRST, TokenLayout
from capsid.ids.merges import MergeTable
from capsid.ids.mixtures import Mixtures
from capsid.ids.piece_table import PieceTable
from capsid.ids.reading import ItemByItem, Reading

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
    """The mixtures in a file, if any; every code must be in the codebook of its depth.

    `checked`: another process has checked the file, so its arrays are not read here.
    """
    soft = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith("mixtures/")}
    if not soft or checked:
        return Mixtures.from_state(soft) if soft else None
    mixtures = Mixtures.from_state(untrusted.finite(soft, "ids.npz: mixtures"))
    codes, sizes = mixtures.codes_NLK, np.array(layout.sizes)
    fits = codes.ndim == 3 and codes.shape[:2] == (items, len(sizes)) and codes.shape == mixtures.weights_NLK.shape
    if not fits or codes.dtype.kind not in "iu" or not ((codes >= 0) & (codes < sizes[:, None])).all():
        raise untrusted.refuse("ids.npz: the mixtures belong to other codebooks")
    return mixtures
