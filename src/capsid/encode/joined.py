"""Several encoders at once: their vectors joined into one, or kept as named views.

A joined encoder centres each block, reduces it, scales it to norm one and weighs it; then PCA to `dim`. It treats all
parts alike and checks only whether a part has evidence about an item (a nonzero row). Of several views the first is
the block "item" of an item table; the others are blocks of their own names, for tokenizers and loss terms that read
more than one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import (
    ItemEncoder,
    below,
    fitted,
    fresh,
    has_evidence,
    l2_normalise,
    require_items,
    take,
    with_vectors,
)
from capsid.encode.factorised import principal_axes
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from capsid.settings import check_settings, setting

# Penalty of the regression that predicts a missing block.
RIDGE = 1.0


@dataclass(kw_only=True)
class JoinedEncoder:
    """Concatenated parts. All projections are learnt on the catalogue, so that new items share its space."""

    kind: ClassVar[str] = "joined"

    parts: tuple[ItemEncoder, ...] = setting(about="Encoders to join, such as text and collaborative.", count=(1, None))
    weights: tuple[float, ...] = setting(
        (), "Weight of each part's block; empty: equal weights. Omit a part instead of giving it weight 0.", above=0
    )
    block_dim: int = setting(64, "Width that each part is centred and reduced to first; 0: neither.", least=0)
    dim: int = setting(128, "Width of the joined vectors.", least=1)
    missing: Literal["predict", "zero"] = setting(
        "predict",
        "How to fill a block without evidence about an item: by ridge regression on its other blocks, or with zeros.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.weights and len(self.weights) != len(self.parts):
            raise ConfigError(f"{len(self.weights)} weights for {len(self.parts)} parts", hint="one weight per part")
        self.parts_: tuple[ItemEncoder, ...] | None = None
        self.rotation_: np.ndarray | None = None
        self.blocks_: list[dict[str, np.ndarray]] = []

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Fit copies of all parts, and the projections; the parts given as hyperparameters do not change."""
        self.fit_transform(table, seed=seed, progress=progress, checkpoint=checkpoint)
        return self

    def fit_transform(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> np.ndarray:
        """Fit, and return the catalogue's vectors without computing any part twice. Shape: (items, at most dim)."""
        require_items(table)
        parts = tuple(
            fresh(part).fit(table, seed=seed, progress=progress, checkpoint=checkpoint and checkpoint.beside(f"{i}"))
            for i, part in enumerate(self.parts)
        )
        blocks = [part.transform(table, progress=progress) for part in parts]
        return self.join_blocks(parts, blocks)

    def join_blocks(self, parts: Sequence[ItemEncoder], blocks: Sequence[np.ndarray]) -> np.ndarray:
        """`fit_transform` for parts that are already fitted, given their vectors of the catalogue."""
        self.parts_ = tuple(parts)
        self.blocks_ = [self._fit_block(part, block) for part, block in zip(parts, blocks, strict=True)]
        reduced = self._reduce(blocks)
        if self.missing == "predict" and len(parts) > 1:
            for i, own in enumerate(self.blocks_):
                own["predictor"] = self._fit_predictor(reduced, i)
        wide_NS = self._concatenate(reduced)
        self.rotation_ = principal_axes(wide_NS, self.dim)[0]
        return l2_normalise(wide_NS @ self.rotation_)

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Vectors of any items; zeros where no part has evidence. Shape: (items, at most dim)."""
        parts = fitted(self.parts_, self)
        blocks = [part.transform(table, progress=progress) for part in parts]
        return l2_normalise(self._concatenate(self._reduce(blocks)) @ fitted(self.rotation_, self))

    def state(self) -> dict[str, np.ndarray]:
        """The projections, and every part's state under `parts.<number>.`."""
        out = {"rotation": fitted(self.rotation_, self)}
        for i, part in enumerate(fitted(self.parts_, self)):
            out |= {f"block.{i}.{name}": array for name, array in self.blocks_[i].items()}
            out |= {f"parts.{i}.{name}": array for name, array in part.state().items()}
        return out

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        self.rotation_ = take(state, "rotation")
        self.parts_ = tuple(fresh(p).load_state(below(state, f"parts.{i}.")) for i, p in enumerate(self.parts))
        self.blocks_ = [below(state, f"block.{i}.") for i in range(len(self.parts))]
        return self

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        own = (self.weights, self.block_dim, self.dim, self.missing)
        return fingerprint(self.kind, own, [p.cache_key(table, seed=seed) for p in self.parts])

    def _fit_block(self, part: ItemEncoder, block_ND: np.ndarray) -> dict[str, np.ndarray]:
        """Mean and axes of the rows with evidence; with block_dim 0 blocks are neither centred nor reduced."""
        known_MD = block_ND[has_evidence(block_ND)].astype(np.float64)
        if not len(known_MD):
            raise DataError(f"the {part.kind} encoder has no evidence about any item", hint="leave that part out")
        if self.block_dim == 0:
            return {"mean": np.zeros(block_ND.shape[1]), "axes": np.eye(block_ND.shape[1])}
        mean_D = known_MD.mean(axis=0)
        return {"mean": mean_D, "axes": principal_axes(known_MD - mean_D, self.block_dim)[0]}

    def _reduce(self, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Rows of norm one on each block's axes; zero rows stay zero."""
        out = []
        for block_ND, own in zip(blocks, self.blocks_, strict=True):
            reduced_NR = (block_ND - own["mean"]) @ own["axes"]
            reduced_NR[~has_evidence(block_ND)] = 0.0
            out.append(l2_normalise(reduced_NR).astype(np.float64))
        return out

    def _fit_predictor(self, reduced: list[np.ndarray], i: int) -> np.ndarray:
        """Ridge regression of block i on the others, over the items that have it. Shape: (other widths, width)."""
        others_NO = np.concatenate(reduced[:i] + reduced[i + 1 :], axis=1)
        rows = has_evidence(reduced[i])
        gram_OO = others_NO[rows].T @ others_NO[rows] + RIDGE * np.eye(others_NO.shape[1])
        return np.linalg.solve(gram_OO, others_NO[rows].T @ reduced[i][rows])

    def _concatenate(self, reduced: list[np.ndarray]) -> np.ndarray:
        """Concatenated weighted blocks, with missing blocks predicted or zero. Shape: (items, all widths)."""
        filled = list(reduced)
        for i, own in enumerate(self.blocks_):
            lacking = ~has_evidence(reduced[i])
            if "predictor" in own and lacking.any():
                others_NO = np.concatenate(reduced[:i] + reduced[i + 1 :], axis=1)
                filled[i] = reduced[i].copy()
                # Keep the regression's norm instead of norm one: predicted values should weigh less
                # (docs/vectors.md has the measurement).
                filled[i][lacking] = others_NO[lacking] @ own["predictor"]
        weights = self.weights or (1.0,) * len(filled)
        wide_NS = np.concatenate([w * block for w, block in zip(weights, filled, strict=True)], axis=1)
        return l2_normalise(wide_NS).astype(np.float64)


MAIN = "item"
# "learnt" is the block in which a generator passes its own vectors to a tokenizer.
_TAKEN = (MAIN, "learnt")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(kw_only=True)
class Views:
    """The main encoder and others by name. `transform` gives the main view, `blocks` gives all views."""

    kind: ClassVar[str] = "views"

    item: ItemEncoder = setting(about="Encoder of the main view, the block 'item'.")
    others: tuple[tuple[str, ItemEncoder], ...] = setting((), "Names and encoders of the other blocks.")

    def __post_init__(self) -> None:
        check_settings(self)
        names = [name for name, _ in self.others]
        for name in names:
            if not _NAME.fullmatch(name) or name in _TAKEN or names.count(name) > 1:
                raise ConfigError(
                    f"views.others needs a valid, unused name for each view, got {name!r}",
                    hint=f"use lower-case letters, digits, - and _; not {' or '.join(_TAKEN)}; names must be unique",
                )
        for name, part in self.parts.items():
            if isinstance(part, Views):
                raise ConfigError(f"a view must be one encoder, but {name!r} has views itself")
        self.parts_: dict[str, Any] | None = None

    @property
    def parts(self) -> dict[str, ItemEncoder]:
        """All encoders by the name of their block, the main one first."""
        return {MAIN: self.item, **dict(self.others)}

    def with_vectors(self, path: str | Path) -> Self:
        """A fitted copy whose main view also knows the vectors of this file."""
        parts = fitted(self.parts_, self)
        grown = copy.copy(self)
        grown.parts_ = {**parts, MAIN: with_vectors(parts[MAIN], path)}
        return grown

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Fit copies of all encoders; the encoders given as hyperparameters do not change."""
        require_items(table)
        return self.with_parts(
            {
                name: fresh(part).fit(
                    table, seed=seed, progress=progress, checkpoint=checkpoint and checkpoint.beside(name)
                )
                for name, part in self.parts.items()
            }
        )

    def with_parts(self, parts: Mapping[str, ItemEncoder]) -> Self:
        """`fit` for encoders that are already fitted."""
        self.parts_ = dict(parts)
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Vectors of the main view. Shape: (items, d)."""
        return fitted(self.parts_, self)[MAIN].transform(table, progress=progress)

    def blocks(self, table: ItemTable, *, progress: Progress = silent) -> dict[str, np.ndarray]:
        return {name: part.transform(table, progress=progress) for name, part in fitted(self.parts_, self).items()}

    def state(self) -> dict[str, np.ndarray]:
        parts = fitted(self.parts_, self)
        return {f"{view}.{name}": array for view, part in parts.items() for name, array in part.state().items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        return self.with_parts({n: fresh(p).load_state(below(state, f"{n}.")) for n, p in self.parts.items()})

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        keys = [[name, part.cache_key(table, seed=seed)] for name, part in self.parts.items()]
        return fingerprint(self.kind, keys)


def blocks_of(encoder: ItemEncoder, table: ItemTable) -> dict[str, np.ndarray]:
    """All blocks that a fitted encoder makes of a table; most encoders make only the main one."""
    return encoder.blocks(table) if isinstance(encoder, Views) else {MAIN: encoder.transform(table)}
