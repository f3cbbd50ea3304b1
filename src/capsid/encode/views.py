"""Several named views of every item: one encoder each, kept separate instead of joined into one vector.

The first view is the block "item" of an item table; the others are blocks of their own names, for tokenizers and loss
terms that read more than one. Knows no concrete encoder.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import ItemEncoder, below, fitted, fresh, require_items, with_vectors
from capsid.errors import ConfigError
from capsid.progress import Progress, silent
from capsid.settings import check_settings, setting

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
        """Vectors of every view by its name."""
        return {name: part.transform(table, progress=progress) for name, part in fitted(self.parts_, self).items()}

    def state(self) -> dict[str, np.ndarray]:
        """Every view's state under its name."""
        parts = fitted(self.parts_, self)
        return {f"{view}.{name}": array for view, part in parts.items() for name, array in part.state().items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        return self.with_parts({n: fresh(p).load_state(below(state, f"{n}.")) for n, p in self.parts.items()})

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The views' names and keys."""
        keys = [[name, part.cache_key(table, seed=seed)] for name, part in self.parts.items()]
        return fingerprint(self.kind, keys)


def blocks_of(encoder: ItemEncoder, table: ItemTable) -> dict[str, np.ndarray]:
    """All blocks that a fitted encoder makes of a table; most encoders make only the main one."""
    return encoder.blocks(table) if isinstance(encoder, Views) else {MAIN: encoder.transform(table)}
