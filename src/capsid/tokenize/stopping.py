"""Decides where an id ends: by confidence, residual norm, the cap, and how many codes or items share the prefix.

Arrays in, lengths and causes out (CapsID, Eq. 8), for any tokenizer. Prefixes are counted once, at fit, so an item's
length depends on its own vector only and later items never change old ids. Knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from capsid.base.splitmix import STEP, mixed

CAUSES = ("confidence", "residual", "cap", "prefix")
CONFIDENCE, RESIDUAL, CAP, PREFIX = range(4)


@dataclass(frozen=True)
class StopRules:
    """Stop at depth l if q_l >= confidence or |r_l| <= residual, and at most `max_sharing` codes begin with the prefix.

    With `max_sharing` 1 the prefix must be unique. With 0 prefixes are not counted, which is the paper's rule. Ids
    have at least `shortest` codes.
    """

    confidence: float = 0.82
    residual: float = 0.08
    max_sharing: int = 0
    shortest: int = 1


@dataclass(frozen=True, eq=False)
class SharedPrefixes:
    """Prefixes shared by more than `max_sharing` codes (or items) of the fitted catalogue, as sorted keys by depth."""

    sizes: tuple[int, ...]
    keys: tuple[np.ndarray, ...]

    @classmethod
    def none(cls, sizes: Sequence[int]) -> SharedPrefixes:
        """No prefix counts as shared."""
        return cls(tuple(sizes), tuple(np.zeros(0, dtype=np.uint64) for _ in sizes))

    @classmethod
    def count(
        cls,
        codes_ND: np.ndarray,
        sizes: Sequence[int],
        max_sharing: int,
        of: Literal["codes", "items"] = "codes",
    ) -> SharedPrefixes:
        """Count the prefixes of a catalogue's full codes.

        `of="codes"` counts equal codes once, since no length separates them; `of="items"` counts every item.
        """
        if max_sharing <= 0:
            return cls.none(sizes)
        keys_ND = prefix_keys(codes_ND)
        if of == "codes":
            _, first = np.unique(keys_ND[:, -1], return_index=True)
            keys_ND = keys_ND[first]
        shared = []
        for depth in range(len(sizes)):
            keys, counts = np.unique(keys_ND[:, depth], return_counts=True)
            shared.append(keys[counts > max_sharing])
        return cls(tuple(sizes), tuple(shared))

    def mask(self, codes_ND: np.ndarray) -> np.ndarray:
        """Where a prefix is shared by more than `max_sharing` codes. Shape: (items, depths)."""
        keys_ND = prefix_keys(codes_ND)
        return np.stack([self.at(depth, keys_ND[:, depth]) for depth in range(len(self.keys))], 1)

    def at(self, depth: int, keys_N: np.ndarray) -> np.ndarray:
        """`mask` for one depth, from the keys of the prefixes that end there. Shape: (items,)."""
        known = self.keys[depth]
        if not len(known):
            return np.zeros(len(keys_N), dtype=bool)
        return known[np.searchsorted(known, keys_N).clip(max=len(known) - 1)] == keys_N


def prefix_keys(codes_ND: np.ndarray) -> np.ndarray:
    """One key for each prefix of each row. Shape: (items, depths).

    Keys are 64-bit hashes, which allow any number of depths and codes: among a hundred million prefixes, the chance
    of any collision is 0.0003.
    """
    out = np.empty(codes_ND.shape, dtype=np.uint64)
    key_N = no_keys(len(codes_ND))
    for depth in range(codes_ND.shape[1]):
        key_N = longer_keys(key_N, codes_ND[:, depth])
        out[:, depth] = key_N
    return out


def no_keys(rows: int) -> np.ndarray:
    """Keys of empty prefixes. Shape: (rows,)."""
    return np.zeros(rows, dtype=np.uint64)


def longer_keys(keys_N: np.ndarray, codes_N: np.ndarray) -> np.ndarray:
    """Keys of the prefixes that are one code longer. Shape: (items,)."""
    return mixed((keys_N + codes_N.astype(np.uint64) + np.uint64(1)) * STEP)


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


def stop(confidence_ND: np.ndarray, residual_ND: np.ndarray, shared_ND: np.ndarray, rules: StopRules) -> Stops:
    """The first depth at which an id may end.

    The cause is confidence if both rules fire, and the cap only if none did. If a shared prefix kept an id from ending
    earlier, the cause is the prefix.
    """
    sure_ND = confidence_ND >= rules.confidence
    small_ND = residual_ND <= rules.residual
    late_D = np.arange(sure_ND.shape[1]) >= rules.shortest - 1
    wants_ND = (sure_ND | small_ND) & late_D
    may_ND = wants_ND & ~shared_ND
    stopped_N = may_ND.any(1)
    lengths_N = np.where(stopped_N, may_ND.argmax(1) + 1, sure_ND.shape[1])
    rows = np.arange(len(lengths_N))
    causes_N = np.where(sure_ND[rows, lengths_N - 1], CONFIDENCE, RESIDUAL)
    waited_N = stopped_N & (wants_ND.argmax(1) + 1 < lengths_N)
    causes_N = np.where(waited_N, PREFIX, causes_N)
    return Stops(lengths_N, np.where(stopped_N, causes_N, CAP))


def sparse_lengths(codes_ND: np.ndarray, shared: SharedPrefixes, shortest: int) -> np.ndarray:
    """`stop` without confidences and residuals: ids end at the first prefix that few enough share. Shape: (items,)."""
    sure_ND = np.ones(codes_ND.shape)
    return stop(sure_ND, sure_ND, shared.mask(codes_ND), StopRules(confidence=1.0, shortest=shortest)).lengths


def may_end(
    confidence_N: np.ndarray, residual_N: np.ndarray, shared_N: np.ndarray, depth: int, rules: StopRules
) -> np.ndarray:
    """Whether ids that reached a depth may end there: `stop`, one depth at a time. Shape: (items,)."""
    wants_N = (confidence_N >= rules.confidence) | (residual_N <= rules.residual)
    return wants_N & ~shared_N if depth >= rules.shortest - 1 else np.zeros(len(wants_N), dtype=bool)
