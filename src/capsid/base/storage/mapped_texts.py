"""Texts in two mapped files, so that any of them can be read while none is held in memory.

`ids.texts.npy` holds the bytes of all texts one after the other, `ids.offsets.npy` where each begins. Written a block
at a time. Does not know what the texts mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from capsid.base.storage.arrays import load_array
from capsid.base.storage.mapped_arrays import ArrayWriter
from capsid.errors import ArtifactError

if TYPE_CHECKING:
    import pyarrow as pa

HINT = "write the files again"


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
        """Append texts."""
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
        raise ArtifactError(f"{texts} and {offsets.name} do not belong together", hint=HINT)
    return pa.LargeStringArray.from_buffers(len(places) - 1, pa.py_buffer(places), pa.py_buffer(data))
