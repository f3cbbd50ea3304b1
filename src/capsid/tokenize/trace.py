"""The routing of every item at every depth, as plain arrays for reports and stop rules."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, eq=False)
class Trace:
    """Every depth of every item, as if no id stopped early.

    Shapes: (items, depths), `strongest*` (items, depths, S).
    """

    codes: np.ndarray
    confidence: np.ndarray
    mass: np.ndarray
    soft: np.ndarray
    hard: np.ndarray
    grew: np.ndarray
    strongest: np.ndarray
    strongest_weight: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def join(cls, parts: list[Trace]) -> Trace:
        """Concatenate traces."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})
