"""Folders that are either whole or not there: temporary sibling, fsync, manifest of hashes last, rename.

Loading checks every hash, so that a changed byte or a half-written folder is noticed. Contents are JSON,
safetensors, npz/npy and Parquet; nothing is ever unpickled. Does not know what an artifact means.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsid.errors import ArtifactError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


def cache_home() -> Path:
    """Where downloads and computed stages are kept: $CAPSID_HOME, or ~/.cache/capsid."""
    return Path(os.environ.get("CAPSID_HOME") or Path.home() / ".cache" / "capsid")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path = Path(path)
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened by name, not by mkstemp: the file gets the rights that the user's umask gives.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON that we wrote; a broken file is an ArtifactError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}") from None


@contextlib.contextmanager
def new_folder(path: Path, *, kind: str) -> Iterator[Path]:
    """Yield an empty temporary sibling; on success it gets its manifest and takes `path`'s place.

    An earlier folder at `path` stays untouched until the new one is complete on disk.
    """
    path = Path(path)
    check_place(path)
    with _told(path):
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        try:
            yield temporary
            _seal(temporary, kind)
            _replace_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_place(path: Path) -> None:
    """Refuse a place where `new_folder` could not write: said before hours of work, not after them."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise ArtifactError(f"{path} exists and is not a folder", hint="choose another --out")
    if path.exists() and any(path.iterdir()) and not (path / MANIFEST).exists():
        raise ArtifactError(
            f"{path} holds files that capsid did not write", hint="choose another --out, or empty that folder"
        )
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise ArtifactError(f"{path.parent} is not writable", hint="choose another --out")


def open_folder(path: Path, *, kind: str) -> Path:
    """Check that `path` is a whole artifact of this kind with unchanged bytes, and return it."""
    path = Path(path)
    if not path.is_dir():
        raise ArtifactError(f"there is no folder {path}")
    if not (path / MANIFEST).exists():
        raise ArtifactError(
            f"{path} is not a finished capsid folder: it has no {MANIFEST}",
            hint="the run that wrote it may have been stopped; run it again to resume it",
        )
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ArtifactError(f"{path / MANIFEST} is not a manifest", hint="write the artifact again")
    if manifest.get("format") != FORMAT_VERSION:
        raise ArtifactError(f"{path} has format {manifest.get('format')}, this capsid reads {FORMAT_VERSION}")
    if manifest.get("kind") != kind:
        raise ArtifactError(f"{path} holds a {manifest.get('kind')}, not a {kind}")
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise ArtifactError(f"{file} is missing, though the manifest lists it")
        if file_hash(file) != expected:
            raise ArtifactError(f"{file} was changed after it was written", hint="write the artifact again")
    return path


def folder_kind(path: Path) -> str | None:
    """What kind of artifact stands at `path`, or None."""
    file = Path(path) / MANIFEST
    manifest = read_json(file) if file.is_file() else None
    return manifest.get("kind") if isinstance(manifest, dict) else None


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Save named arrays as an uncompressed npz (object arrays are refused)."""
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ArtifactError(f"array {name!r} holds Python objects and cannot be stored")
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Load what `save_arrays` wrote; never unpickles."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path} could not be read: {error}") from None


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"could not write {path}: {error.strerror or error}", hint="is the disk full, or the place not yours?"
        ) from error


def _seal(folder: Path, kind: str) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for file in files:
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    manifest = {
        "format": FORMAT_VERSION,
        "kind": kind,
        "files": {str(f.relative_to(folder)): file_hash(f) for f in files},
    }
    write_json(folder / MANIFEST, manifest)


def _replace_folder(new: Path, path: Path) -> None:
    os.chmod(new, 0o755)
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent)) if path.exists() else None
    try:
        if old is not None:
            os.replace(path, old)
        os.replace(new, path)
    except BaseException:
        if old is not None and not path.exists():
            os.replace(old, path)
        elif old is not None:
            shutil.rmtree(old, ignore_errors=True)
        raise
    _sync_folder(path.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
