"""Keep freed memory in the process: fresh pages cost more than small matrix products.

glibc gives large freed blocks back to the system at once, and the next step of a training or a search asks for the
same blocks again, so each step would pay for thousands of page faults. Raising the thresholds keeps them. Does nothing
where there is no glibc.
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
    """Tell malloc once; True where it obeyed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
