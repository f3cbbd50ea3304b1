"""Named NumPy arrays in untrusted files: npz and npy, never unpickled.

The sizes that a file declares are compared with its real size before anything is allocated, so a small file that claims
or unpacks to a huge array is refused. Does not know what the arrays mean.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from capsid.errors import ArtifactError

HINT = "write the artifact again"
# Limit in bytes of unpacked arrays that were compressed (a benchmark's values per user).
MOST_UNPACKED = 1 << 31
# What zipfile, zlib and numpy raise on malformed files.
BROKEN = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    SyntaxError,
    RuntimeError,
    OverflowError,
    MemoryError,
    TypeError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Save named arrays as an uncompressed npz (object arrays are refused)."""
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ArtifactError(f"array {name!r} holds Python objects and cannot be stored")
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def load_arrays(path: Path, *, compressed: bool = False) -> dict[str, np.ndarray]:
    """Load what `save_arrays` wrote; with `compressed`, also what np.savez_compressed wrote."""
    try:
        size = os.path.getsize(path)
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(m.file_size for m in members)
            allowed = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if compressed else {zipfile.ZIP_STORED}
            if any(m.compress_type not in allowed for m in members):
                raise ValueError("it is compressed in a way that capsid does not write")
            if unpacked > (MOST_UNPACKED if compressed else size):
                raise ValueError(f"it would unpack to {unpacked:,} bytes from {size:,}")
            return {m.filename.removesuffix(".npy"): _member(archive, m) for m in members}
    except BROKEN as error:
        raise ArtifactError(f"{path} could not be read: {error}", hint=HINT) from None


def load_array(path: Path, *, memory_map: bool = False) -> np.ndarray:
    """Load one .npy; with `memory_map`, pages are read on first access."""
    try:
        with open(path, "rb") as file:
            _checked_header(file, os.fstat(file.fileno()).st_size)
        # A plain array over the mapped memory: np.memmap makes every small lookup slower.
        return np.load(path, mmap_mode="r" if memory_map else None, allow_pickle=False).view(np.ndarray)
    except BROKEN as error:
        raise ArtifactError(f"{path} could not be read: {error}", hint=HINT) from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        dtype, shape, fortran = _checked_header(file, member.file_size)
        # Read to the end, where zipfile checks the checksum. A bytearray makes the array writable.
        data = bytearray(file.read())
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _checked_header(file: IO[bytes], size: int) -> tuple[np.dtype, tuple[int, ...], bool]:
    """Type, shape and order of an array whose data must fill the rest of a file of `size` bytes."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"unknown npy version {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled")
    if dtype.itemsize == 0 or any(n < 0 for n in shape):
        raise ValueError(f"it has an impossible shape: {shape}")
    claimed, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if claimed != there:
        raise ValueError(f"it declares an array of {claimed:,} bytes but holds {there:,}")
    return dtype, shape, fortran
