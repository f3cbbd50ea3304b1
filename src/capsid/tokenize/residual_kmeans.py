"""Residual k-means: quantize, subtract the centre, quantize the residual (QARM, arXiv 2411.11739; OneRec, 2502.18965).

An item's codes do not depend on the other items of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.data.item_table import ItemTable
from capsid.encode.base import check_vectors, require_items
from capsid.errors import NotFittedError
from capsid.ids.reassign import Costs
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.running import CheckpointFile
from capsid.settings import check_settings, setting
from capsid.tokenize.kmeans import distances, kmeans, nearest


@dataclass(kw_only=True)
class ResidualKMeans:
    """Centres by depth, each depth fitted to what the depths before it leave."""

    kind: ClassVar[str] = "residual-kmeans"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256), "Number of centres at each depth, fewer where there are fewer items.", least=1, count=(1, None)
    )
    iterations: int = setting(25, "Iterations of k-means.", least=1)
    restarts: int = setting(3, "Starts of k-means, of which the best is kept.", least=1)
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
        learnt: list[np.ndarray] = []
        residual = self._vectors(table, None)
        for depth, size in enumerate(self.codebooks):
            if size > len(residual):
                progress.line(f"residual k-means: {len(residual):,} items, so {size:,} codes are cut to as many")
            centres = kmeans(residual, min(size, len(residual)), self.iterations, self.restarts, seed + depth)
            learnt.append(centres)
            residual -= centres[nearest(residual, centres)]
            left = float(np.linalg.norm(residual, axis=1).mean())
            progress.line(f"residual k-means: depth {depth + 1}/{len(self.codebooks)}, {left:.3f} of the norm left")
        self.centres_: tuple[np.ndarray, ...] = tuple(learnt)
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """Nearest centre at every depth."""
        residual = self._vectors(table, self._fitted()[0].shape[1])
        codes_ND = np.empty((len(residual), len(self.centres_)), dtype=np.int32)
        for depth, centres in enumerate(self.centres_):
            codes_ND[:, depth] = nearest(residual, centres)
            residual -= centres[codes_ND[:, depth]]
        return Ragged.from_dense(codes_ND)

    def last_costs(self, table: ItemTable) -> Costs:
        """Squared distances of what the earlier depths leave to the centres of the last."""
        *earlier, last = self._fitted()
        vectors = table.vectors(self.block)

        def costs(rows: np.ndarray) -> np.ndarray:
            residual = np.array(vectors[rows], dtype=np.float32)
            for centres in earlier:
                residual -= centres[nearest(residual, centres)]
            own_R1 = (residual**2).sum(1, keepdims=True)
            return own_R1 + np.concatenate([np.zeros((0, len(last)), np.float32), *distances(residual, last)])

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
        """Centres by name."""
        return {f"centres_{d}": c for d, c in enumerate(self._fitted())}

    def load_state(self, state: dict[str, np.ndarray]) -> ResidualKMeans:
        """Centres as saved."""
        self.centres_ = tuple(state[f"centres_{d}"] for d in range(len(state)))
        return self

    def _vectors(self, table: ItemTable, dim: int | None) -> np.ndarray:
        vectors = table.vectors(self.block)
        check_vectors(vectors, table.items, dim=dim)
        return np.array(vectors, dtype=np.float32)

    def _fitted(self) -> tuple[np.ndarray, ...]:
        if not hasattr(self, "centres_"):
            raise NotFittedError("the tokenizer is not fitted", hint="call fit first")
        return self.centres_
