"""Seeds: the user gives one number, and every purpose gets an independent seed derived from it.

Library code never sets a global seed; it requests its own generator by naming the purpose.
"""

from __future__ import annotations

import hashlib

import numpy as np


def child_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends only on `seed` and the named purpose."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_rng(seed: int, *purpose: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(child_seed(seed, *purpose))
