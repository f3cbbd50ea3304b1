"""Locks that are released when their process ends, even if it is killed.

The kernel holds the lock (flock), so a killed process leaves none behind: a lock file without a holder is taken over.
The file names its holder, so that an error can say who holds the lock and since when. Knows no artifacts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from capsid.progress import duration

try:
    import fcntl
except ImportError:  # without flock, only the renames in `artifacts` protect
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, and since when (seconds since 1970)."""

    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"process {self.pid}{where}, for {duration(max(time.time() - self.since, 0.0))}"


@contextlib.contextmanager
def held(path: Path, *, wait: bool = True, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock file `path`; yields whether we got it. `waiting` is called if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = lock_file(path, wait=False)
    if handle is None and wait:
        if waiting is not None:
            waiting()
        handle = lock_file(path)
    if handle is None:
        yield False
        return
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), time.time()))).encode())
        yield True
    finally:
        # Removed while still held: a waiting process notices that its file is no longer the one at `path`.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)


def holder(path: Path) -> Holder | None:
    """Who wrote the lock file last; None if unknown."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Holder(int(found["pid"]), str(found["host"]), float(found["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lock_file(path: Path, *, wait: bool = True) -> int | None:
    """Create or open the file and lock it; None if it is locked and `wait` is false. Closing the file unlocks it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not lock_handle(handle, wait=wait):
            os.close(handle)
            return None
        if _is_at(handle, path):
            return handle
        # Its last holder removed or renamed it while we waited.
        os.close(handle)


def lock_handle(handle: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder; returns whether we got the lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
