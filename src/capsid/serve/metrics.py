"""Prometheus metrics of a service. Labels are routes, codes and reasons, never ids.

The numbers of several worker processes are added up: `PROMETHEUS_MULTIPROC_DIR` names the folder they share.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from functools import partial
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

import capsid

SHARED = "PROMETHEUS_MULTIPROC_DIR"
# How many of the latest requests the live page describes.
RECENT = 1_000
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests, batches and the size of the catalogue."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self._recent: deque[float] = deque(maxlen=RECENT)
        counter = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self._requests = counter("capsid_requests", "Answers, by route and status.", ["route", "code"])
        self._seconds = seconds("capsid_request_seconds", "Time until the answer began.", ["route"])
        # Looking up labels takes longer than counting; routes and codes are few.
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._queue = seconds("capsid_queue_seconds", "Time that queries waited for a search.")
        self._search = seconds("capsid_search_seconds", "Time to search a batch.")
        self._batch = Histogram(
            "capsid_batch_size", "Queries in a batch.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.registry
        )
        self._rejected = counter("capsid_rejected", "Requests that were not searched.", ["reason"])
        self._cancelled = counter("capsid_cancelled", "Queries whose clients disconnected.")
        self._not_personal = counter("capsid_not_personal", "Answers with popular items: no known history.")
        self._depth = gauge("capsid_queue_depth", "Waiting queries.", multiprocess_mode="livesum")
        self._items = gauge("capsid_catalogue_items", "Items on offer.", multiprocess_mode="mostrecent")
        self._version = gauge("capsid_catalogue_version", "Newest version served.", multiprocess_mode="max")
        about = gauge("capsid_build_info", "Version of the package.", ["version"], multiprocess_mode="max")
        about.labels(capsid.__version__).set(1)

    def request(self, route: str, code: int, seconds: float) -> None:
        self._recent.append(seconds)
        found = self._children.get((route, code))
        if found is None:
            found = self._children[route, code] = (
                self._requests.labels(route, str(code)),
                self._seconds.labels(route),
            )
        found[0].inc()
        found[1].observe(seconds)

    def batch(self, size: int, waited: list[float], seconds: float) -> None:
        self._batch.observe(size)
        self._search.observe(seconds)
        for wait in waited:
            self._queue.observe(wait)

    def dropped(self, reason: str) -> None:
        if reason == "cancelled":
            self._cancelled.inc()
        else:
            self._rejected.labels(reason).inc()

    def not_personal(self) -> None:
        """Popular items were returned instead of personal ones."""
        self._not_personal.inc()

    def totals(self) -> dict[str, float]:
        """The counts of this process since its start, for the live page."""
        found = {"requests": 0.0, "searched": 0.0, "batches": 0.0, "refused": 0.0}
        names = {
            "capsid_requests_total": "requests",
            "capsid_batch_size_sum": "searched",
            "capsid_batch_size_count": "batches",
            "capsid_rejected_total": "refused",
        }
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name in names:
                    found[names[sample.name]] += sample.value
        return found

    def latencies(self) -> dict[str, float | None]:
        """Median and 99th percentile of the latest requests of this process, in seconds; None before the first."""
        seconds = sorted(self._recent.copy())
        last = len(seconds) - 1
        return {f"p{share}": seconds[round(last * share / 100)] if seconds else None for share in (50, 99)}

    def waiting(self, depth: int) -> None:
        self._depth.set(depth)

    def text(self, *, items: int, version: int) -> bytes:
        """The page that Prometheus reads."""
        self._items.set(items)
        self._version.set(version)
        folder = os.environ.get(SHARED)
        if not folder:
            return generate_latest(self.registry)
        _forget_dead(Path(folder))
        every = CollectorRegistry()
        MultiProcessCollector(every, path=folder)
        return generate_latest(every)


def _forget_dead(folder: Path) -> None:
    """Remove the gauges of ended processes; their counters stay."""
    for file in folder.glob("gauge_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc").exists():
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
