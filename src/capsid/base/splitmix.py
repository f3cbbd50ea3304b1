"""The mixing step of SplitMix64 (Steele, Lea and Flood 2014): scatters close 64-bit numbers over all 64 bits."""

from __future__ import annotations

import numpy as np

# The generator's step between consecutive numbers: 2**64 over the golden ratio, odd.
STEP = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Every number (uint64) mapped to another one, one to one, so that close numbers become unrelated."""
    for shift, factor in _ROUNDS:
        numbers = (numbers ^ (numbers >> shift)) * factor
    out: np.ndarray = numbers ^ (numbers >> np.uint64(31))
    return out
