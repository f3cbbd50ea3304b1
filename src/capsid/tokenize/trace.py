"""The routing of every item at every depth, and where ids end, as plain arrays for reports."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

CAUSES = ("confidence", "residual", "cap", "prefix")
CONFIDENCE, RESIDUAL, CAP, PREFIX = range(4)


@dataclass(frozen=True, eq=False)
class Stops:
    """Where each id ends, and why (an index into CAUSES)."""

    lengths: np.ndarray
    causes: np.ndarray

    def shares(self, *, with_prefix: bool) -> dict[str, float]:
        """Share of each cause. `prefix` appears only if prefixes are counted."""
        n = max(len(self.causes), 1)
        names = CAUSES if with_prefix else CAUSES[:3]
        return {name: float((self.causes == i).sum() / n) for i, name in enumerate(names)}


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
