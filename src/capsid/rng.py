"""Seeds: one number given by the user, one independent child for each purpose.

Library code never seeds globally; it asks for a generator of its own by naming what it is for.
"""

from __future__ import annotations

import hashlib

import numpy as np


def child_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on `seed` and on the named purpose only."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_rng(seed: int, *purpose: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(child_seed(seed, *purpose))
