"""Named NumPy arrays in untrusted files: npz and npy, never unpickled. Both can be mapped into memory.

The sizes that a file declares are compared with its real size before anything is allocated, so a small file that claims
or unpacks to a huge array is refused. Does not know what the arrays mean.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from capsid.errors import ArtifactError

HINT = "write the artifact again"
# Limit in bytes of unpacked arrays that were compressed (a benchmark's values per user).
MOST_UNPACKED = 1 << 31
# Arrays begin at multiples of this in their file, so that they can be mapped.
ALIGNED = 64
# An entry's header in a zip: fixed fields, and the sizes in 64 bits. Its name and extra field come in addition.
HEADER = 30 + 20
# An extra field that other readers of zip files skip: the one that Android's zipalign uses.
PADDING = 0xD935
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
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.extra = _padding(file.tell() + HEADER + len(member.filename.encode()))
            with archive.open(member, "w", force_zip64=True) as out:
                np.lib.format.write_array(out, np.asanyarray(array), allow_pickle=False)


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


def map_arrays(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """The wanted arrays of what `save_arrays` wrote, by their names: pages are read on first access and shared.

    Checksums are not compared. Arrays that older versions wrote may not be aligned in their file; they are copied.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        mapped, out = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray), {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if wanted(name):
                if member.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("it is compressed")
                out[name] = _mapped_member(mapped, member)
        return out
    except BROKEN as error:
        raise ArtifactError(f"{path} could not be read: {error}", hint=HINT) from None


def load_array(path: Path, *, memory_map: bool = False) -> np.ndarray:
    """Load one .npy; with `memory_map`, pages are read on first access."""
    try:
        with open(path, "rb") as file:
            checked_header(file, os.fstat(file.fileno()).st_size)
        # A plain array over the mapped memory: np.memmap makes every small lookup slower.
        return np.load(path, mmap_mode="r" if memory_map else None, allow_pickle=False).view(np.ndarray)
    except BROKEN as error:
        raise ArtifactError(f"{path} could not be read: {error}", hint=HINT) from None


def _padding(place: int) -> bytes:
    """An extra field of a zip entry, so long that what begins after it and `place` is aligned."""
    missing = -place % ALIGNED
    # The shortest field has four bytes, for its kind and its size.
    missing += ALIGNED if 0 < missing < 4 else 0
    return struct.pack("<HH", PADDING, missing - 4) + bytes(missing - 4) if missing else b""


def _mapped_member(mapped: np.ndarray, member: zipfile.ZipInfo) -> np.ndarray:
    # The entry's own header: its name and extra field need not be as long as in the directory.
    start = member.header_offset
    lengths = struct.unpack("<HH", mapped[start + 26 : start + 30].tobytes())
    start += 30 + sum(lengths)
    if start + member.file_size > len(mapped):
        raise ValueError(f"{member.filename} goes beyond the end")
    head = io.BytesIO(mapped[start : start + min(member.file_size, 1 << 16)].tobytes())
    dtype, shape, fortran = checked_header(head, member.file_size)
    data = mapped[start + head.tell() : start + member.file_size]
    aligned = data.ctypes.data % dtype.alignment == 0
    return (data if aligned else data.copy()).view(dtype).reshape(shape, order="F" if fortran else "C")


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        dtype, shape, fortran = checked_header(file, member.file_size)
        # Read to the end, where zipfile checks the checksum. A bytearray makes the array writable.
        data = bytearray(file.read())
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def checked_header(file: IO[bytes], size: int) -> tuple[np.dtype, tuple[int, ...], bool]:
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
