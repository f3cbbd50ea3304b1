"""How long the queue will take: the seconds of past searches, by class of query and size of batch.

A query costs less in a large batch than alone, and an explanation costs more than a search, so one average would refuse
a burst after quiet minutes and accept too many explanations. Knows neither threads nor HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

_SMOOTHING = 0.2
# Seconds per query before the first search of a class.
_FIRST = 0.005


class Backlog:
    """Counts waiting queries by class and estimates when the last of them will be searched."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: Counter[Hashable] = Counter()
        # Seconds per query, by class and by the number of bits of the batch's size.
        self._seconds: dict[Hashable, dict[int, float]] = {}
        self._ends = 0.0

    def enter(self, kind: Hashable) -> None:
        """A query waits."""
        self._waiting[kind] += 1

    def leave(self, kind: Hashable) -> None:
        """A query no longer waits."""
        self._waiting[kind] -= 1

    def begin(self, kind: Hashable, size: int, now: float) -> None:
        """A batch is searched from now on."""
        self._ends = now + size * self._each(kind, size)

    def end(self, kind: Hashable, size: int, seconds: float) -> None:
        """A batch has been searched."""
        self._ends = 0.0
        known = self._seconds.setdefault(kind, {})
        bits = size.bit_length()
        before = known.get(bits, seconds / size)
        known[bits] = before + _SMOOTHING * (seconds / size - before)

    def wait(self, now: float) -> float:
        """Seconds until all waiting queries have been searched."""
        queued = sum(n * self._each(kind, n) for kind, n in self._waiting.items() if n)
        return queued + max(self._ends - now, 0.0)

    def _each(self, kind: Hashable, count: int) -> float:
        """Seconds per query when `count` wait: from batches of that size, else from the nearest smaller or larger."""
        known = self._seconds.get(kind)
        if not known:
            return _FIRST
        bits = min(count, self._most).bit_length()
        return known[max((b for b in known if b <= bits), default=min(known))]
