"""Locks that end with the process that holds them, however it ends.

The lock is the kernel's (flock), so a killed process leaves none behind: a lock file that nobody holds is taken over.
The file names its holder, so that whoever finds the lock taken can say by whom and since when. Knows no artifacts.
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
except ImportError:  # a system without flock: the renames of `artifacts` alone protect
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
    """Hold the lock file `path`; yields whether we got it. `waiting` is called if somebody else has it."""
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
        # Removed while it is still held: whoever waits for it notices that its file is no longer the one at `path`.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)


def holder(path: Path) -> Holder | None:
    """Who wrote the lock file last; None where it cannot be told."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Holder(int(found["pid"]), str(found["host"]), float(found["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lock_file(path: Path, *, wait: bool = True) -> int | None:
    """Open and lock the file at `path`, made if need be; None if it is taken and we do not wait. Closing it unlocks."""
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
    """Lock an open file or folder; whether we got it."""
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
