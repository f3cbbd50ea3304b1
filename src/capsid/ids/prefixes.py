"""Prefixes of codes that several items share, counted once, at fit.

So an item's length depends on its own codes only, and later items never change old ids. Knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from capsid.base.splitmix import STEP, mixed


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
        cls, codes_ND: np.ndarray, sizes: Sequence[int], max_sharing: int, of: Literal["codes", "items"] = "codes"
    ) -> SharedPrefixes:
        """Count the prefixes of a catalogue's full codes. `of="codes"` counts equal codes once, since no length
        separates them; `of="items"` counts every item."""
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
    """One key for each prefix of each row. Shape: (items, depths). Keys are 64-bit hashes, which allow any number of
    depths and codes: among a hundred million prefixes, the chance of any collision is 0.0003."""
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


def unshared_lengths(codes_ND: np.ndarray, shared: SharedPrefixes, shortest: int) -> np.ndarray:
    """Lengths of ids that end at the first prefix that few enough share, but not before `shortest`. Shape: (items,)."""
    may_ND = ~shared.mask(codes_ND) & (np.arange(codes_ND.shape[1]) >= shortest - 1)
    return np.where(may_ND.any(1), may_ND.argmax(1) + 1, codes_ND.shape[1])
