"""Residual k-means: quantize, subtract the centre, quantize the residual (QARM, arXiv 2411.11739; OneRec, 2502.18965).

An item's codes do not depend on the other items of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import check_vectors, pack_strings, require_items, unpack_strings
from capsid.errors import NotFittedError
from capsid.ids.reassign import Costs
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting
from capsid.tokenize.balanced import balanced_kmeans
from capsid.tokenize.kmeans import kmeans, nearest, squared_distances
from capsid.tokenize.nearby_codes import nearby_codes

CAPACITY_ITERATIONS = 20


@dataclass(kw_only=True)
class ResidualKMeans:
    """Centres by depth, each depth fitted to the residuals of the earlier depths."""

    kind: ClassVar[str] = "residual-kmeans"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256), "Number of centres at each depth, fewer where there are fewer items.", least=1, count=(1, None)
    )
    iterations: int = setting(25, "Iterations of k-means.", least=1)
    restarts: int = setting(3, "Restarts of k-means; the best run is kept.", least=1)
    capacity: float | None = setting(
        None,
        "Largest load of a centre over the mean; an item weighs its training count plus 1; none: no limit.",
        least=1,
    )
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codebook size of every depth."""
        return tuple(len(c) for c in self._fitted())

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> ResidualKMeans:
        """k-means on the vectors, then on the residuals, depth by depth."""
        require_items(table)
        learnt, codes = [], []
        residual = self._vectors(table, None)
        for depth, size in enumerate(self.codebooks):
            if size > len(residual):
                progress.line(
                    f"residual k-means: {len(residual):,} items, so {size:,} codes are reduced to that number"
                )
            centres = kmeans(residual, min(size, len(residual)), self.iterations, self.restarts, seed + depth)
            centres, labels_N = self._assigned(residual, centres, table.counts + 1, progress)
            learnt.append(centres)
            codes.append(labels_N)
            residual -= centres[labels_N]
            left = float(np.linalg.norm(residual, axis=1).mean())
            progress.line(f"residual k-means: depth {depth + 1}/{len(self.codebooks)}, {left:.3f} of the norm left")
        self.centres_: tuple[np.ndarray, ...] = tuple(learnt)
        self.items_, self.codes_ = table.items, np.stack(codes, axis=1).astype(np.int32)
        return self

    def _assigned(
        self, residual: np.ndarray, centres: np.ndarray, loads_N: np.ndarray, progress: Progress
    ) -> tuple[np.ndarray, np.ndarray]:
        """Centres and the codes of the catalogue: the nearest, or within capacity (UniRec, arXiv 2604.12234)."""
        if self.capacity is None:
            return centres, nearest(residual, centres)
        most = self.capacity * loads_N.sum() / len(centres)
        found = balanced_kmeans(residual, centres, most, weights_N=loads_N, iterations=CAPACITY_ITERATIONS)
        over = int((np.bincount(found.labels_N, loads_N, minlength=len(centres)) > most).sum())
        if over:
            progress.line(f"residual k-means: {over:,} of {len(centres):,} centres hold more than {most:,.0f}")
        return found.centres_KD, found.labels_N

    def encode(self, table: ItemTable) -> Ragged:
        """Nearest centre at every depth; with a capacity, known items have the codes that `fit` gave them."""
        codes_ND = self._nearest_codes(table)
        if self.capacity is not None:
            row_N = self.items_.numbers(table.items, missing="negative")
            codes_ND = np.where(row_N[:, None] >= 0, self.codes_[row_N], codes_ND)
        return Ragged.from_dense(codes_ND)

    def _nearest_codes(self, table: ItemTable) -> np.ndarray:
        residual = self._vectors(table, self._fitted()[0].shape[1])
        codes_ND = np.empty((len(residual), len(self.centres_)), dtype=np.int32)
        for depth, centres in enumerate(self.centres_):
            codes_ND[:, depth] = nearest(residual, centres)
            residual -= centres[codes_ND[:, depth]]
        return codes_ND

    def strongest_codes(self, table: ItemTable, strongest: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest codes of every item at every depth, weighted by distance."""
        return nearby_codes(self._vectors(table, self._fitted()[0].shape[1]), self._fitted(), strongest)

    def last_costs(self, table: ItemTable, codes: Ragged) -> Costs:
        """Squared distances from the residuals of the earlier depths to the centres of the last depth.

        Capacity is ignored, so another code may cost less than an item's own.
        """
        *earlier, last = self._fitted()
        vectors, codes_ND = table.vectors(self.block), codes.dense()

        def costs(rows: np.ndarray) -> np.ndarray:
            residual = np.array(vectors[rows], dtype=np.float32)
            for depth, centres in enumerate(earlier):
                residual -= centres[codes_ND[rows, depth]]
            return squared_distances(residual, last)

        return costs

    def decode(self, codes: Ragged) -> np.ndarray:
        """Sum of the codes' centres."""
        out = np.zeros((len(codes), self._fitted()[0].shape[1]), dtype=np.float32)
        for row, values in enumerate(codes):
            for depth, code in enumerate(values):
                if code >= 0:
                    out[row] += self.centres_[depth][code]
        return out

    def centres(self) -> tuple[np.ndarray, ...]:
        """Centres by depth."""
        return self._fitted()

    def state(self) -> dict[str, np.ndarray]:
        """Centres by name; with a capacity also the codes of the catalogue."""
        centres = {f"centres_{d}": c for d, c in enumerate(self._fitted())}
        if self.capacity is None:
            return centres
        return {**centres, "items": pack_strings(self.items_), "codes": self.codes_}

    def load_state(self, state: dict[str, np.ndarray]) -> ResidualKMeans:
        """Restore the saved arrays."""
        self.centres_ = tuple(state[f"centres_{d}"] for d in range(sum(name.startswith("centres_") for name in state)))
        if self.capacity is not None:
            self.items_, self.codes_ = Vocabulary(unpack_strings(state["items"])), state["codes"]
        return self

    def _vectors(self, table: ItemTable, dim: int | None) -> np.ndarray:
        vectors = table.vectors(self.block)
        check_vectors(vectors, table.items, dim=dim)
        return np.array(vectors, dtype=np.float32)

    def _fitted(self) -> tuple[np.ndarray, ...]:
        if not hasattr(self, "centres_"):
            raise NotFittedError("the tokenizer is not fitted", hint="call fit first")
        return self.centres_
