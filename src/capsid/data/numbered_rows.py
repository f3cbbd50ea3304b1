"""Rows of numbers (user, item, time) on disk: written and read in blocks, and sorted by user and time in partitions.

Knows scratch files, neither tables nor datasets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from capsid.base.storage.mapped_arrays import BLOCK, ArrayWriter, array_blocks

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


class NumberedRows:
    """Rows in the order in which they were added. Used as a context while rows are added."""

    def __init__(self, folder: Path, time_type: np.dtype) -> None:
        self.time_type = time_type
        self._paths = tuple(folder / f"{name}.rows.npy" for name in ("user", "item", "time"))
        self._writers: tuple[ArrayWriter, ...] = ()

    def __enter__(self) -> Self:
        user, item, time = self._paths
        self._writers = (ArrayWriter(user, "<i4"), ArrayWriter(item, "<i4"), ArrayWriter(time, self.time_type))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.enter_context(writer)

    def __len__(self) -> int:
        return self._writers[0].count

    def add(self, *columns: np.ndarray) -> None:
        """Append rows: users, items, times."""
        for writer, column in zip(self._writers, columns, strict=True):
            writer.add(column)

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Users and items, in blocks."""
        return zip(*(array_blocks(path, BLOCK) for path in self._paths[:2]), strict=True)

    def rows(self) -> Iterator[Rows]:
        """Users, items and times, in blocks."""
        return zip(*(array_blocks(path, BLOCK) for path in self._paths), strict=True)

    def remove(self) -> None:
        """Delete the files."""
        for path in self._paths:
            path.unlink()


class Partitions:
    """Rows dealt to files by their users: neighbouring users are in one file, in the order of `starts_U`.

    `starts_U` is where the rows of each user begin when all rows are sorted. A file takes users that begin within
    `size` rows, so it has at most `size` rows and those of one more user.
    """

    def __init__(self, folder: Path, starts_U: np.ndarray, size: int, time_type: np.dtype) -> None:
        part_U = starts_U // size
        self._count = int(part_U[-1]) + 1 if len(part_U) else 0
        # Small numbers are sorted by radix.
        self._part_U = part_U.astype(np.uint16) if self._count < 2**16 else part_U
        self._folder = folder
        self._row = np.dtype([("user", "<i4"), ("item", "<i4"), ("time", time_type)])

    def __len__(self) -> int:
        return self._count

    def add(self, users: np.ndarray, items: np.ndarray, times: np.ndarray) -> None:
        """Deal rows. Rows of one user stay in the order in which they are added."""
        rows = np.empty(len(users), dtype=self._row)
        rows["user"], rows["item"], rows["time"] = users, items, times
        parts = self._part_U[users]
        rows = rows[np.argsort(parts, kind="stable")]
        ends = np.cumsum(np.bincount(parts, minlength=self._count))
        for part in np.unique(parts).tolist():
            # Opened for each write: there may be more partitions than files that a process may have open.
            with open(self._path(part), "ab") as file:
                file.write(rows[ends[part - 1] if part else 0 : ends[part]].data)

    def sorted(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Items and times of one partition after the other, by user, then time, then order of adding; files go."""
        for part in range(self._count):
            path = self._path(part)
            if not path.exists():  # A user has more rows than a partition, so nobody begins in the next one.
                continue
            rows = np.fromfile(path, dtype=self._row)
            order = np.lexsort((rows["time"], rows["user"]))
            yield rows["item"][order], rows["time"][order]
            path.unlink()

    def _path(self, part: int) -> Path:
        return self._folder / f"part-{part:06d}"
