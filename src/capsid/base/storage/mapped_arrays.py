"""Arrays and texts larger than memory: written, read, counted and hashed a block at a time, or mapped.

Blocks are appended to files instead of written through a mapping: a full disk then raises an error and kills no
process. Texts stand in two files: `ids.texts.npy` holds their bytes one after the other, `ids.offsets.npy` where each
begins. Does not know what arrays and texts mean.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from capsid.base.storage.arrays import BROKEN, HINT, checked_header, load_array
from capsid.base.storage.artifacts import cache_home
from capsid.errors import ArtifactError

if TYPE_CHECKING:
    import pyarrow as pa


# Values that are copied, counted or checked at a time.
BLOCK = 1 << 20


class ArrayWriter:
    """Writes an .npy of one dimension a block at a time; how many values it will have need not be known."""

    def __init__(self, path: Path, dtype: np.dtype | str) -> None:
        self.count = 0
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._file = open(path, "wb")  # noqa: SIM115  (closed by __exit__)
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self.flush()

    def add(self, block: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(block, dtype=self._dtype).data)
        self.count += len(block)

    def flush(self) -> None:
        """Make a whole .npy of what was written so far, so that it can be mapped."""
        self._file.seek(0)
        self._write_header()
        self._file.seek(0, os.SEEK_END)
        self._file.flush()

    def _write_header(self) -> None:
        # NumPy pads headers, so one with more digits takes the same space.
        about = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(self._file, about)


def blocks_of(count: int) -> Iterator[slice]:
    """Slices that cover `count` values, a block each."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def counted(numbers: np.ndarray, size: int) -> np.ndarray:
    """How often each number below `size` occurs: np.bincount without a copy of all numbers as int64."""
    counts = np.zeros(size, dtype=np.int64)
    for part in blocks_of(len(numbers)):
        np.add.at(counts, numbers[part], 1)
    return counts


def int64_blocks(numbers: np.ndarray) -> Iterator[memoryview]:
    """The bytes of numbers as int64, a block at a time, for a hash."""
    return (np.ascontiguousarray(numbers[part], dtype=np.int64).data for part in blocks_of(len(numbers)))


def in_file(array: np.ndarray) -> bool:
    """Whether the values are those of a mapped file."""
    return _mapping(array) is not None


def release_pages(array: np.ndarray) -> None:
    """Let go of the pages that this process has read of a mapped file; they are read again on demand.

    Otherwise they count as the process's memory until the system needs the space.
    """
    mapping = _mapping(array)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """What the values are mapped by: views of an array have it as one of their bases."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def mapped_scratch(blocks: Iterable[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """The blocks one after the other in a mapped file that goes when the array goes, also if the process is killed."""
    folder = cache_home() / "scratch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype=dtype).data)
            file.flush()
            return np.memmap(file, dtype=dtype, mode="r").view(np.ndarray)
    except OSError as error:
        raise ArtifactError(
            f"could not write to {folder}: {error.strerror or error}",
            hint="check free disk space; $CAPSID_HOME names another place",
        ) from None


def array_blocks(path: Path, size: int) -> Iterator[np.ndarray]:
    """The values of an .npy of one dimension, `size` at a time, read instead of mapped: only one block is held."""
    try:
        with open(path, "rb") as file:
            dtype, (count,), _ = checked_header(file, os.fstat(file.fileno()).st_size)
            for start in range(0, count, size):
                yield np.fromfile(file, dtype=dtype, count=min(size, count - start))
    except BROKEN as error:
        raise ArtifactError(f"{path} could not be read: {error}", hint=HINT) from None


def text_files(path: Path) -> tuple[Path, Path]:
    """The two files of the texts `path`: bytes and offsets."""
    return path.with_name(f"{path.name}.texts.npy"), path.with_name(f"{path.name}.offsets.npy")


class TextsWriter:
    """Writes texts, a block at a time."""

    def __init__(self, path: Path) -> None:
        texts, offsets = text_files(path)
        self._texts, self._offsets = ArrayWriter(texts, "|u1"), ArrayWriter(offsets, "<i8")
        self._offsets.add(np.zeros(1, dtype=np.int64))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._texts, self._offsets:
            pass

    def add(self, block: pa.LargeStringArray) -> None:
        if not len(block):
            return
        _, places, data = block.buffers()
        own = np.frombuffer(places, dtype=np.int64)[block.offset : block.offset + len(block) + 1]
        before = self._texts.count
        if data is not None:
            self._texts.add(np.frombuffer(data, dtype=np.uint8)[int(own[0]) : int(own[-1])])
        self._offsets.add(own[1:] - own[0] + before)

    def flush(self) -> None:
        """Make whole files of what was written so far, so that they can be mapped."""
        self._texts.flush()
        self._offsets.flush()


def map_texts(path: Path) -> pa.LargeStringArray:
    """The texts as a column over mapped memory: pages are read on first access."""
    import pyarrow as pa

    texts, offsets = text_files(path)
    data, places = load_array(texts, memory_map=True), load_array(offsets, memory_map=True)
    if data.dtype != np.uint8 or places.dtype != np.int64 or not len(places) or int(places[-1]) != len(data):
        raise ArtifactError(f"{texts} and {offsets.name} do not belong together", hint="write the files again")
    return pa.LargeStringArray.from_buffers(len(places) - 1, pa.py_buffer(places), pa.py_buffer(data))
