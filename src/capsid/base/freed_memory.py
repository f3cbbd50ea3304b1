"""Keeps freed memory in the process, because fresh pages cost more time than small matrix products.

glibc returns large freed blocks to the system at once. The next step of training or search then requests the same
blocks, so every step would cause thousands of page faults. Higher thresholds keep the blocks. Does nothing without
glibc.
"""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
# glibc refuses a larger threshold: half of its largest heap.
_LARGEST_MMAP_THRESHOLD = 32 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Set malloc's thresholds once; returns whether that succeeded."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
