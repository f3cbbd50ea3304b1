"""Writes folders atomically: temporary sibling, fsync, manifest of hashes last, rename.

Opening a folder checks that every file is listed, regular and unchanged, so it detects changed bytes, added files and
half-written folders. A folder is replaced only by one of the same kind, and only one process at a time writes to a
path. If an output path is a symlink, its target is written and the link stays. Nothing is ever unpickled. Does not know
what an artifact means.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from capsid.base.storage.locks import held, holder, lock_file, lock_handle
from capsid.errors import ArtifactError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
WRITE_AGAIN = "write the artifact again"
# Another process needs only a moment to rename into place; one that holds the path longer has reserved it.
PATIENCE_SECONDS = 5.0
# Paths that this process has reserved, and the thread that did it.
_reserved: dict[Path, int] = {}


def cache_home() -> Path:
    """The folder for downloads and computed stages: $CAPSID_HOME, or ~/.cache/capsid."""
    return Path(os.environ.get("CAPSID_HOME") or Path.home() / ".cache" / "capsid")


def write_bytes(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file, whole or in pieces, atomically; only a new or a regular file, never a device or a pipe."""
    path = Path(path)
    with _told(path):
        path = _followed(path)
        check_file_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name is fixed, so the file of a killed process is reused. Locked, so that writers take turns.
        temporary = path.with_name(f".{path.name}.partial")
        handle = lock_file(temporary)
        assert handle is not None, "lock_file waits until it has the lock"
        with open(handle, "wb") as file:
            try:
                file.truncate()
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(handle)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        sync_folder(path.parent)


def check_file_place(path: Path) -> None:
    """Refuse to overwrite anything but a regular file."""
    if path.is_dir():
        raise ArtifactError(f"{path} is a folder", hint="name a file")
    if path.exists() and not path.is_file():
        raise ArtifactError(f"{path} is not a regular file", hint="choose another file")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON that we wrote; a broken file is an ArtifactError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing", hint=WRITE_AGAIN) from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", hint=WRITE_AGAIN) from None
    except (ValueError, RecursionError) as error:  # broken JSON or UTF-8, numbers of 5,000 digits, deep nesting
        raise ArtifactError(f"{path} is not valid JSON: {error}", hint=WRITE_AGAIN) from None


@contextlib.contextmanager
def new_folder(path: Path, *, kind: str) -> Iterator[Path]:
    """Yield an empty temporary sibling; on success it gets its manifest and takes `path`'s place.

    An earlier folder of the same kind at `path` stays untouched until the new one is complete on disk.
    """
    path = Path(path)
    with _told(path):
        path = _followed(path)
        check_place(path, kind=kind, replace=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
        # Locked while we write, so that no other process takes it for a leftover.
        handle = os.open(temporary, os.O_RDONLY)
        lock_handle(handle)
        try:
            yield temporary
            seal_folder(temporary, kind=kind)
            with _sole(path, patience=PATIENCE_SECONDS):
                check_place(path, kind=kind, replace=True)
                _replace_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            os.close(handle)


@contextlib.contextmanager
def reserved(path: Path, *, kind: str, replace: bool = False) -> Iterator[Path]:
    """Reserve the path of an artifact until it is written; yields the path with symlinks resolved.

    What an interrupted process left is removed or restored first. Without `replace`, an existing artifact is an error:
    it is raised before hours of work, not after.
    """
    path = Path(path)
    with _told(path):
        path = _followed(path)
        check_place(path, kind=kind, replace=True)
    inside = enclosing_artifact(path)
    if inside is not None:
        raise ArtifactError(f"{path} is inside {inside}, which is finished", hint="choose an --out outside of it")
    with _sole(path, patience=0.0):
        check_place(path, kind=kind, replace=replace)
        yield path


def check_place(path: Path, *, kind: str, replace: bool) -> None:
    """Raise if a new folder of this kind cannot or must not be written at `path`."""
    if path.exists() and not path.is_dir():
        raise ArtifactError(f"{path} exists and is not a folder", hint="choose another --out")
    if path.exists() and any(path.iterdir()):
        standing = _kind_if_readable(path)
        if standing is None:
            raise ArtifactError(
                f"{path} holds files that capsid did not write", hint="choose another --out, or empty that folder"
            )
        if standing != kind:
            raise ArtifactError(f"{path} holds a {standing}, not a {kind}", hint="choose another --out")
        if not replace:
            raise ArtifactError(
                f"{path} already holds a finished {kind}", hint="choose another --out, or replace it with --force"
            )
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise ArtifactError(f"{path.parent} is not writable", hint="choose another --out")


def open_folder(path: Path, *, kind: str, hint: str = WRITE_AGAIN, only: Collection[str] | None = None) -> Path:
    """Check that `path` is a complete artifact of this kind with unchanged bytes, and return it.

    `only` names the files to read: the bytes of others are not checked. `hint` says what to do if something was
    changed. A subfolder with its own manifest is a separate artifact and is checked when it is opened itself.
    """
    path = Path(path)
    if not path.exists():
        _restore(path)
    if not path.is_dir():
        raise ArtifactError(f"there is no folder {path}", hint="give the path of a folder that capsid wrote")
    if not (path / MANIFEST).is_file():
        raise ArtifactError(
            f"{path} is not a finished capsid folder: it has no file {MANIFEST}",
            hint="the run that wrote it may have been stopped; run it again to resume it",
        )
    listed = _listed_files(path, kind, hint)
    found = _regular_files(path, hint)
    for name in listed:
        if name not in found:
            raise ArtifactError(f"{path}: {_short(name)} is listed in the manifest but missing", hint=hint)
    for name in sorted(found):
        if name not in listed:
            raise ArtifactError(
                f"{path / name} is not listed in the manifest", hint=f"remove that file if it is yours, or {hint}"
            )
        if (only is None or name in only) and file_hash(path / name) != listed[name]:
            raise ArtifactError(f"{path / name} was changed after it was written", hint=hint)
    return path


def folder_kind(path: Path) -> str | None:
    """The kind of the artifact at `path`, or None."""
    file = Path(path) / MANIFEST
    manifest = read_json(file) if file.is_file() else None
    kind = manifest.get("kind") if isinstance(manifest, dict) else None
    return kind if isinstance(kind, str) else None


def enclosing_artifact(path: Path) -> Path | None:
    """The finished artifact that `path` lies in, or None."""
    return next((p for p in Path(path).absolute().parents if _kind_if_readable(p) is not None), None)


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed_files(path: Path, kind: str, hint: str) -> dict[str, str]:
    """Names and hashes from the manifest, checked for its kind and for paths outside its folder."""
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ArtifactError(f"{path / MANIFEST} is not a manifest", hint=hint)
    if manifest.get("format") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format {_short(manifest.get('format'))}, this capsid reads format {FORMAT_VERSION}",
            hint="use the version of capsid that wrote it, or fit it again",
        )
    if manifest.get("kind") != kind:
        raise ArtifactError(f"{path} holds a {_short(manifest.get('kind'))}, not a {kind}", hint="name another folder")
    for name, expected in manifest["files"].items():
        parts = PurePosixPath(name).parts
        if "/".join(parts) != name or not parts or ".." in parts or "\0" in name or name == MANIFEST:
            raise ArtifactError(f"{path / MANIFEST} lists {_short(name)}, which is not a file in it", hint=hint)
        if not isinstance(expected, str) or not re.fullmatch("[0-9a-f]{64}", expected):
            raise ArtifactError(f"{path / MANIFEST} has no SHA-256 for {_short(name)}", hint=hint)
    return dict(manifest["files"])


def _regular_files(folder: Path, hint: str) -> set[str]:
    """Relative paths of all files of an artifact; anything that is neither a file nor a folder is an error."""
    found: set[str] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        for entry in os.scandir(here):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                if not os.path.lexists(os.path.join(entry.path, MANIFEST)):
                    waiting.append(Path(entry.path))
            elif not stat.S_ISREG(mode):
                raise ArtifactError(f"{entry.path} is not a regular file", hint=f"remove it, or {hint}")
            elif here != folder or entry.name != MANIFEST:
                found.add(Path(entry.path).relative_to(folder).as_posix())
    return found


def _kind_if_readable(path: Path) -> str | None:
    """The kind of a finished artifact; None if the manifest is damaged or not ours."""
    try:
        return folder_kind(path)
    except ArtifactError:
        return None


def _short(value: Any) -> str:
    """A value from a file for use in a message: plain words unchanged, anything else quoted and truncated."""
    text = value if isinstance(value, str) and re.fullmatch("[a-z0-9-]{1,40}", value) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _followed(path: Path) -> Path:
    """The target of a symlink, so that the target is written and the link stays. A link to itself is an OSError."""
    if not path.is_symlink():
        return path
    with contextlib.suppress(FileNotFoundError):  # The target may be yet to be written.
        os.stat(path)
    return Path(os.path.realpath(path.parent / os.readlink(path), strict=False))


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"could not write {path}: {error.strerror or error}", hint="check free disk space and permissions"
        ) from error


@contextlib.contextmanager
def _sole(path: Path, *, patience: float) -> Iterator[None]:
    """Be the only writer to `path`, after cleaning up what earlier writers left beside it."""
    place, me = Path(os.path.realpath(path)), threading.get_ident()
    if _reserved.get(place) == me:
        yield
        return
    lock, until = path.with_name(f".{path.name}.lock"), time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        with _told(path):
            while not stack.enter_context(held(lock, wait=False)):
                if time.monotonic() >= until:
                    by = holder(lock)
                    raise ArtifactError(
                        f"another capsid process is writing to {path}{f' ({by})' if by else ''}",
                        hint="wait until it is done, or choose another --out",
                    )
                time.sleep(0.05)
            _settle(path)
        _reserved[place] = me
        stack.callback(_reserved.pop, place)
        yield


def _settle(path: Path) -> None:
    """Restore a folder that was moved aside and never replaced; remove what killed processes left beside it."""
    for leftover in _leftovers(path, "old"):
        if not path.exists() and _is_whole(leftover):
            os.replace(leftover, path)
        elif path.exists():
            shutil.rmtree(leftover, ignore_errors=True)
    for leftover in _leftovers(path, "partial"):
        handle = os.open(leftover, os.O_RDONLY)
        # A process that still writes there holds its lock.
        if lock_handle(handle):
            shutil.rmtree(leftover, ignore_errors=True)
        os.close(handle)


def _restore(path: Path) -> None:
    if any(_leftovers(path, "old")):
        # A process that is writing there cleans up itself.
        with contextlib.suppress(ArtifactError, OSError), _sole(path, patience=PATIENCE_SECONDS):
            pass


def _leftovers(path: Path, suffix: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.{suffix}")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    return [path.parent / name for name in sorted(names) if pattern.fullmatch(name)]


def _is_whole(folder: Path) -> bool:
    try:
        open_folder(folder, kind=_kind_if_readable(folder) or "")
    except ArtifactError:
        return False
    return True


def seal_folder(folder: Path, *, kind: str) -> None:
    """Write the manifest with the hashes of all files."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for file in files:
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    manifest = {
        "format": FORMAT_VERSION,
        "kind": kind,
        "files": {f.relative_to(folder).as_posix(): file_hash(f) for f in files},
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
    sync_folder(path.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that created and renamed files in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
