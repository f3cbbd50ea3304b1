"""The centres of the tokens: the vectors whose sums best reconstruct the items, for given codes.

Least squares over all prefixes of all ids, by sweeps over the depths: each centre becomes the mean residual of its
items without it. Takes codes and unit vectors, returns centres; knows no routing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.ragged import Ragged

SWEEPS = 8


def fit_centres(
    x_ND: np.ndarray, codes_NL: np.ndarray, lengths_N: np.ndarray, start: list[np.ndarray], sweeps: int = SWEEPS
) -> list[np.ndarray]:
    """Centres by depth; a code that no id uses keeps its initial centre. Shapes: (K_l, d)."""
    centres = [c.astype(np.float64) for c in start]
    depths = [_Depth.of(codes_NL, lengths_N, depth, len(table)) for depth, table in enumerate(centres)]
    for _ in range(sweeps):
        for depth, own in enumerate(depths):
            if len(own.rows):
                own.update(depth, x_ND, centres)
    return [c.astype(np.float32) for c in centres]


@dataclass(frozen=True, eq=False)
class _Other:
    """Codes of another depth that the items of a depth have as well, at `places` among them. A later depth is part of
    fewer of their prefixes than an earlier one: `share_P` of those that reach the depth."""

    depth: int
    codes_P: np.ndarray
    places: np.ndarray | slice
    share_P: np.ndarray | None


@dataclass(frozen=True, eq=False)
class _Depth:
    """The items whose ids reach a depth, grouped by their code there. `prefixes_R`: how many of their prefixes do."""

    rows: np.ndarray
    groups: Ragged
    prefixes_R: np.ndarray
    others: list[_Other]

    @classmethod
    def of(cls, codes_NL: np.ndarray, lengths_N: np.ndarray, depth: int, capsules: int) -> _Depth:
        rows = np.flatnonzero(lengths_N > depth)
        own_R = codes_NL[rows, depth] if len(rows) else rows
        groups = Ragged.grouped(rows, own_R, capsules)
        rows = groups.values
        lengths_R = lengths_N[rows]
        others = []
        for other in range(codes_NL.shape[1]):
            if other < depth:
                others.append(_Other(other, codes_NL[rows, other], slice(None), None))
            elif other > depth and (places := np.flatnonzero(lengths_R > other)).size:
                share_P = (lengths_R[places] - other) / (lengths_R[places] - depth)
                others.append(_Other(other, codes_NL[rows[places], other], places, share_P))
        return cls(rows, groups, lengths_R - depth, others)

    def update(self, depth: int, x_ND: np.ndarray, centres: list[np.ndarray]) -> None:
        """Set this depth's centres to the means of what is missing without them, weighted by the prefixes."""
        missing_RD = x_ND[self.rows].astype(np.float64)
        for other in self.others:
            taken_PD = centres[other.depth][other.codes_P]
            missing_RD[other.places] -= taken_PD if other.share_P is None else other.share_P[:, None] * taken_PD
        missing_RD *= self.prefixes_R[:, None]
        used = self.groups.lengths > 0
        totals_K = self.groups.sums(self.prefixes_R)
        centres[depth][used] = self.groups.sums(missing_RD)[used] / totals_K[used, None]
