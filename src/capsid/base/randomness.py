"""Seeds and mixed numbers: the user gives one seed, and every purpose gets an independent one derived from it.

Library code never sets a global seed; it requests its own generator by naming the purpose.
"""

from __future__ import annotations

import hashlib

import numpy as np

# The generator's step between consecutive numbers: 2**64 over the golden ratio, odd.
STEP = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def child_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends only on `seed` and the named purpose."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_rng(seed: int, *purpose: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(child_seed(seed, *purpose))


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Every number (uint64) mapped to another one, one to one, so that close numbers become unrelated.

    The mixing step of SplitMix64 (Steele, Lea and Flood 2014).
    """
    for shift, factor in _ROUNDS:
        numbers = (numbers ^ (numbers >> shift)) * factor
    out: np.ndarray = numbers ^ (numbers >> np.uint64(31))
    return out
