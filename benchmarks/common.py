"""Shared by the benchmarks: facts about the machine, timing side by side, memory, and writing results.

Times on one machine differ by a factor of two from hour to hour, so nothing here compares numbers of two runs: variants
take turns inside one process, and each variant's median and the ratio of medians are reported.
"""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import write_json

RESULTS = Path(__file__).resolve().parent / "results"
_QUICK = 10.0
_LIBRARIES = ("torch", "numpy", "transformers")


def machine(threads: int) -> dict[str, Any]:
    """Processor, cores, memory, versions: what a reader needs to judge a number. Names no host and no path."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "threads": threads,
        # How busy the machine was with other work when the run began.
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
    }


@dataclass(frozen=True)
class Times:
    """Seconds of every repeat, by the clock and of the processor (all threads)."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median by the clock."""
        return statistics.median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """Median of the processor: steadier than the clock where others use the machine."""
        return statistics.median(self.cpu)

    def summary(self) -> dict[str, Any]:
        """As it stands in a result file."""
        digits = [round(t, 5) for t in self.wall]
        return {"seconds": round(self.seconds, 5), "cpu_seconds": round(self.cpu_seconds, 5), "repeats": digits}


def side_by_side(variants: Mapping[str, Callable[[], object]], repeat: int, *, warm: bool = True) -> dict[str, Times]:
    """Time every variant `repeat` times, taking turns there and back (A B C C B A A B C ...), so that none always
    comes after the same other; one untimed call each before that, and before every quick one (below 10 seconds).
    """
    wall: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values() if warm else ():
        call()
    there = list(variants.items())
    for turn in range(repeat):
        gc.collect()
        for name, call in there if turn % 2 == 0 else reversed(there):
            seconds = _timed(call)
            # The first call after another variant pays for the memory which that one gave back to the system.
            seconds = _timed(call) if seconds[0] < _QUICK else seconds
            wall[name].append(seconds[0])
            cpu[name].append(seconds[1])
    return {name: Times(tuple(wall[name]), tuple(cpu[name])) for name in variants}


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def memory_now() -> int:
    """Bytes of this process that stand in memory."""
    return _status("VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_peak() -> int:
    """The most bytes this process ever had in memory.

    Not `ru_maxrss` where the kernel says it better: a started process inherits that one from its parent.
    """
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_held() -> int:
    """Bytes of this process that the system cannot reclaim: without pages of mapped files."""
    return _status("RssAnon") or memory_now()


def write_result(name: str, out: Path | None, config: Mapping[str, Any], result: Mapping[str, Any]) -> Path:
    """One JSON file with what was run, where, and what came out; whole or not at all."""
    path = out or RESULTS / f"{name}.json"
    write_json(path, {"benchmark": name, "config": dict(config), **result})
    print(f"written: {os.path.relpath(path)}", file=sys.stderr)
    return path


def folder_hash(folder: Path) -> str:
    """A hash of the names and bytes of all shards and of their summary."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def gigabytes(size: float) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"


def _status(field: str) -> int:
    """A line of /proc/self/status in bytes; 0 where there is no such file."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
