"""Reports on the served ids: quality, items with two facets, merges, and live counts."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator
from typing import Any

from capsid.serve.errors import too_many
from capsid.serve.service import Service
from capsid.serve.snapshot import Snapshot

# Maximum number of live pages; each costs a connection and one line per second.
MOST_WATCHERS = 32
# Seconds after which a page that was refused may ask again; nobody knows when another is closed.
WATCH_AGAIN = 10.0
# Items whose vectors are looked at: more say the same, and a report must not take long.
MOST_ITEMS = 50_000


class Reports:
    """Reports of a version; the quality report is made once for the same ids, by one thread at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._making = threading.Lock()
        self._report: tuple[Any, dict[str, Any]] | None = None
        self._watchers = 0

    def quality(self, snapshot: Snapshot) -> dict[str, Any]:
        """What `capsid tokenizer report --json` prints."""
        with self._making:
            ids = snapshot.recommender.fitted.tokenizer.ids
            if self._report is None or self._report[0] is not ids:
                self._report = ids, finite(snapshot.tokenizer.quality(most=MOST_ITEMS).to_dict())
            return self._report[1]

    def facets(self, snapshot: Snapshot, depth: int, count: int) -> dict[str, Any]:
        """Items whose weight is split between two capsules."""
        with self._making:
            return dict(finite(snapshot.tokenizer.facets(depth=depth, count=count, most=MOST_ITEMS).to_dict()))

    def merges(self, snapshot: Snapshot, top: int) -> dict[str, Any]:
        """The most used merged tokens."""
        with self._making:
            return dict(finite(snapshot.tokenizer.merges(top=top).to_dict()))

    def watch(self) -> AsyncIterator[str]:
        """Server-sent events, one per second, until the service stops."""
        if self._watchers >= MOST_WATCHERS:
            raise too_many("too_many_watchers", f"too many live pages: {self._watchers} are open", WATCH_AGAIN)
        return self._events()

    async def _events(self) -> AsyncIterator[str]:
        self._watchers += 1
        service = self._service
        try:
            while not service.draining:
                now = {"ready": service.ready, "version": service.version, "queue": service.depth}
                counted = {**service.metrics.totals(), **service.metrics.latencies()}
                yield f"data: {json.dumps({**now, **counted})}\n\n"
                await asyncio.sleep(1.0)
        finally:
            self._watchers -= 1


def finite(value: Any) -> Any:
    """Plain values, with null for numbers that are not finite, which JSON cannot express."""
    if isinstance(value, dict):
        return {str(name): finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
