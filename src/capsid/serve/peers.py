"""Whether all worker processes of a service are ready: each creates an empty file in a folder that they share.

A worker that is restarted later does not make the others unready: its own queries are refused until it has loaded the
run. Knows no queries and no catalogue.
"""

from __future__ import annotations

import os
from pathlib import Path


class Peers:
    """The workers of one service. Without a folder there is one worker."""

    def __init__(self, folder: Path | None, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._complete = folder is None or workers == 1

    def join(self) -> None:
        """This process is ready."""
        if self._folder is not None:
            _file(self._folder, os.getpid()).touch()

    @property
    def complete(self) -> bool:
        """Whether as many processes as there are workers have got ready, once or at the same time."""
        if not self._complete and self._folder is not None:
            self._complete = sum(1 for _ in self._folder.glob("ready-*")) >= self._workers
        return self._complete


def has_joined(folder: Path, pid: int) -> bool:
    """Whether the process with this number was ever ready."""
    return _file(folder, pid).exists()


def _file(folder: Path, pid: int) -> Path:
    return folder / f"ready-{pid}"
