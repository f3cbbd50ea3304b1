"""Pairs of neighbouring tokens inside an item: their training frequency and the similarity of the two tokens.

NumPy and SciPy only. The gate decides which pairs are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from capsid.ids.layout import TokenLayout
from capsid.ragged import Ragged

BLOCK = 65_536
# Temperature of the Gumbel noise with which the gate decides about pairs in training.
GUMBEL = 1.0


@dataclass(frozen=True, eq=False)
class Candidates:
    """One row per pair, sorted by pass and tokens. `logit` is the gate's log-odds of merging, without bias; `target`
    is the merge decision of the final scores; `merge` is the index in the table of merges, or -1."""

    left: np.ndarray
    right: np.ndarray
    count: np.ndarray
    frequency: np.ndarray
    cosine: np.ndarray
    logit: np.ndarray
    target: np.ndarray
    merge: np.ndarray
    number: np.ndarray

    def __len__(self) -> int:
        return len(self.left)

    @classmethod
    def none(cls) -> Candidates:
        """A table without pairs."""
        nothing = np.zeros(0, dtype=np.int64)
        empty = np.zeros(0, dtype=np.float64)
        return cls(nothing, nothing, nothing, empty, empty, empty, np.zeros(0, dtype=bool), nothing, nothing)

    def score(self, alpha: float) -> np.ndarray:
        """m = alpha freq + (1 - alpha) cos (CapsID, Eq. 9)."""
        return alpha * self.frequency + (1.0 - alpha) * self.cosine

    def decided(self, logit: np.ndarray, target: np.ndarray, merge: np.ndarray) -> Candidates:
        """A copy with the gate's results."""
        return replace(self, logit=logit, target=target, merge=merge)


def find_candidates(
    tokens: Ragged, layout: TokenLayout, sequences: Ragged, *, number: int, least: int, count: str
) -> Candidates:
    """Pairs that occur at least `least` times in the training sequences. Cosines are filled in later."""
    rows, left, right = _neighbours(tokens, layout)
    keys, pair = np.unique(left * layout.vocabulary + right, return_inverse=True)
    counts = np.zeros(len(keys), dtype=np.int64)
    if len(keys):
        counts = (_users if count == "users" else _interactions)(rows, pair, len(keys), len(tokens), sequences)
    kept = counts >= least
    keys, counts = keys[kept], counts[kept]
    most = max(int(counts.max()), 1) if len(counts) else 1
    share = np.log1p(counts) / np.log1p(most)
    n = len(keys)
    return Candidates(
        left=keys // layout.vocabulary,
        right=keys % layout.vocabulary,
        count=counts,
        frequency=share.astype(np.float64),
        cosine=np.zeros(n),
        logit=np.zeros(n),
        target=np.zeros(n, dtype=bool),
        merge=np.full(n, -1, dtype=np.int64),
        number=np.full(n, number, dtype=np.int64),
    )


def item_profiles(tokens: Ragged, vocabulary: int, vectors_ND: np.ndarray) -> np.ndarray:
    """e_s of CapsID, Eq. 9: the normalised mean unit vector of the items that carry token s; zeros if none does.
    Vectors are read in blocks, so that a memory-mapped file may be larger than memory. Shape: (vocabulary, d)."""
    from scipy.sparse import csr_matrix

    sums_VD = np.zeros((vocabulary, vectors_ND.shape[1]), dtype=np.float64)
    for start in range(0, len(tokens), BLOCK):
        part = tokens.take(np.arange(start, min(start + BLOCK, len(tokens))))
        unit_BD = unit(np.asarray(vectors_ND[start : start + len(part)], dtype=np.float64))
        carries = csr_matrix(
            (np.ones(len(part.values)), part.values, part.offsets), shape=(len(part), vocabulary), dtype=np.float64
        )
        sums_VD += carries.T @ unit_BD
    return unit(sums_VD)


def centre_profiles(layout: TokenLayout, centres_VD: np.ndarray) -> np.ndarray:
    """The tokens' centres, normalised; a merged token has the sum of its members' centres. Shape: (vocabulary, d)."""
    plain = layout.plain.vocabulary
    out_VD = np.zeros((layout.vocabulary, centres_VD.shape[1]), dtype=np.float64)
    out_VD[:plain] = np.nan_to_num(centres_VD[:plain])
    members = layout.merges.members
    if len(members):
        out_VD[plain:] = members.sums(out_VD[members.values])
    return unit(out_VD)


def unit(rows_ND: np.ndarray) -> np.ndarray:
    """Scale rows to norm 1; zero rows stay zero."""
    norms_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return rows_ND / np.where(norms_N1 > 0, norms_N1, 1.0)


def with_cosines(pairs: Candidates, profiles_VD: np.ndarray) -> Candidates:
    """Cosine similarity of the two tokens of every pair."""
    return replace(pairs, cosine=np.einsum("nd,nd->n", profiles_VD[pairs.left], profiles_VD[pairs.right]))


def _neighbours(tokens: Ragged, layout: TokenLayout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, left token and right token of all neighbours in a row that cover adjacent depths."""
    values = tokens.values.astype(np.int64)
    row = tokens.row_numbers
    depth, spans = layout.depth_of[values], layout.spans[values]
    # A merged token covers several depths; the tokens on either side of an absent code are not adjacent.
    follows = (depth[:-1] + spans[:-1] == depth[1:]) & (row[:-1] == row[1:])
    place = np.flatnonzero(follows & (spans[:-1] > 0) & (spans[1:] > 0))
    return row[place], values[place], values[place + 1]


def _interactions(rows: np.ndarray, pair: np.ndarray, pairs: int, items: int, sequences: Ragged) -> np.ndarray:
    taken = np.bincount(sequences.values, minlength=items)
    return np.bincount(pair, weights=taken[rows], minlength=pairs).astype(np.int64)


def _users(rows: np.ndarray, pair: np.ndarray, pairs: int, items: int, sequences: Ragged) -> np.ndarray:
    """Distinct users."""
    taken = Ragged.grouped(pair, rows, items).take(sequences.values)
    user = np.repeat(sequences.row_numbers, taken.lengths)
    return np.bincount(np.unique(user * pairs + taken.values) % pairs, minlength=pairs)
