"""Vectors of tokens from a tokenizer's centres, to initialise a generator's embeddings. Knows layouts, no items.

Shapes: V tokens of the vocabulary, D width of the centres.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsid.ids.layout import TokenLayout


def token_vectors(layout: TokenLayout, centres: Sequence[np.ndarray]) -> np.ndarray:
    """The centre of every token of a code, by depth; NaN for tokens without one. Shape: (V, D). A merged token gets the
    sum of its n members over sqrt(n), which keeps the norm of independent vectors."""
    out = np.full((layout.vocabulary, centres[0].shape[1]), np.nan, dtype=np.float32)
    for depth, rows in enumerate(centres):
        out[layout.bases[depth] : layout.bases[depth] + len(rows)] = rows
    members = layout.merges.members
    if len(members):
        sums = members.sums(out[members.values])
        out[layout.merges.first : layout.end] = sums / np.sqrt(members.lengths)[:, None]
    return out


def joined_vectors(systems: Sequence[tuple[np.ndarray, slice]], vocabulary: int) -> np.ndarray:
    """Vectors of the tokens of several id systems, each with the range of its tokens. They may have different widths
    and units: narrower ones are padded with 0, and all are scaled to the same mean square length."""
    widest = max(vectors_VD.shape[1] for vectors_VD, _ in systems)
    out = np.full((vocabulary, widest), np.nan, dtype=np.float32)
    for vectors_VD, own in systems:
        given_VD = vectors_VD[own]
        width, there = given_VD.shape[1], np.isfinite(given_VD).all(axis=1)
        length = np.sqrt(np.mean(given_VD[there].astype(np.float64) ** 2) * width) if there.any() else 1.0
        out[own][there] = 0.0
        out[own][there, :width] = given_VD[there] / max(length, 1e-6)
    return out
