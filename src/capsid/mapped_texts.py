"""Texts in two mapped files, so that any of them can be read while none is held in memory.

`ids.texts.npy` holds the bytes of all texts one after the other, `ids.offsets.npy` where each begins. Written a block
at a time. Does not know what the texts mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import numpy as np

from capsid.arrays import load_array
from capsid.errors import ArtifactError

if TYPE_CHECKING:
    import pyarrow as pa

HINT = "write the files again"


def text_files(path: Path) -> tuple[Path, Path]:
    """The two files of the texts `path`: bytes and offsets."""
    return path.with_name(f"{path.name}.texts.npy"), path.with_name(f"{path.name}.offsets.npy")


class TextsWriter:
    """Writes `count` texts, a block at a time."""

    def __init__(self, path: Path, count: int) -> None:
        texts, offsets = text_files(path)
        self._size = 0
        self._texts, self._offsets = open(texts, "wb"), open(offsets, "wb")  # noqa: SIM115  (closed by __exit__)
        # The number of bytes is known at the end only. Then the header is written again, in the same space.
        _header(self._texts, "|u1", 0)
        _header(self._offsets, "<i8", count + 1)
        self._offsets.write(np.zeros(1, dtype="<i8").data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._texts, self._offsets:
            self._texts.seek(0)
            _header(self._texts, "|u1", self._size)

    def add(self, block: pa.LargeStringArray) -> None:
        """Append texts."""
        _, places, data = block.buffers()
        own = np.frombuffer(places, dtype=np.int64)[block.offset : block.offset + len(block) + 1]
        if data is not None:
            self._texts.write(memoryview(data)[int(own[0]) : int(own[-1])])
        self._offsets.write(np.ascontiguousarray(own[1:] - own[0] + self._size, dtype="<i8").data)
        self._size += int(own[-1] - own[0])


def map_texts(path: Path) -> pa.LargeStringArray:
    """The texts as a column over mapped memory: pages are read on first access."""
    import pyarrow as pa

    texts, offsets = text_files(path)
    data, places = load_array(texts, memory_map=True), load_array(offsets, memory_map=True)
    if data.dtype != np.uint8 or places.dtype != np.int64 or not len(places) or int(places[-1]) != len(data):
        raise ArtifactError(f"{texts} and {offsets.name} do not belong together", hint=HINT)
    return pa.LargeStringArray.from_buffers(len(places) - 1, pa.py_buffer(places), pa.py_buffer(data))


def _header(file: IO[bytes], kind: str, count: int) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": (count,)})
