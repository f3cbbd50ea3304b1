"""Vectors of tokens from a tokenizer's centres, to initialise a generator's embeddings. Knows layouts, no items.

Shapes: V tokens of the vocabulary, D width of the centres.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsid.ids.layout import TokenLayout


def token_vectors(layout: TokenLayout, centres: Sequence[np.ndarray]) -> np.ndarray:
    """The centre of every token of a code, by depth; NaN for tokens without one. Shape: (V, D).

    A merged token gets the sum of its n members over sqrt(n), which keeps the norm of independent vectors.
    """
    out = np.full((layout.vocabulary, centres[0].shape[1]), np.nan, dtype=np.float32)
    for depth, rows in enumerate(centres):
        out[layout.bases[depth] : layout.bases[depth] + len(rows)] = rows
    members = layout.merges.members
    if len(members):
        sums = members.sums(out[members.values])
        out[layout.merges.first : layout.end] = sums / np.sqrt(members.lengths)[:, None]
    return out


def with_second(first_VD: np.ndarray, second_VD: np.ndarray, end: int) -> np.ndarray:
    """Vectors of first ids up to token `end`, and those of second ids from there on.

    The two may have different widths and units: narrower ones are padded with 0, and both are scaled to the same mean
    square length.
    """
    out = np.full((len(second_VD), max(first_VD.shape[1], second_VD.shape[1])), np.nan, dtype=np.float32)
    for given_VD, own in ((first_VD[:end], slice(0, end)), (second_VD[end:], slice(end, None))):
        width, there = given_VD.shape[1], np.isfinite(given_VD).all(axis=1)
        length = np.sqrt(np.mean(given_VD[there].astype(np.float64) ** 2) * width) if there.any() else 1.0
        out[own][there] = 0.0
        out[own][there, :width] = given_VD[there] / max(length, 1e-6)
    return out
