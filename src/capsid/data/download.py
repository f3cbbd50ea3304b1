"""Downloads one file over HTTP: resumes, checks size, gzip checksum and SHA-256, then renames into place.

A file that was downloaded earlier is checked against the SHA-256 stored next to it. Knows no dataset.
"""

from __future__ import annotations

import gzip
import os
import socket
import time
import urllib.error
import urllib.request
import zlib
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from capsid.base.storage.artifacts import file_hash, write_bytes
from capsid.base.storage.locks import held
from capsid.errors import DataError
from capsid.progress import Progress, silent

ATTEMPTS = 4
BLOCK = 1 << 18
TIMEOUT_SECONDS = 60


def fetch(
    url: str, path: Path, *, sha256: str | None = None, offline_hint: str | None = None, progress: Progress = silent
) -> Path:
    """Download to `path` unless the file exists and is unchanged. `sha256` is the published hash, if known."""
    path = Path(path)
    if not url.startswith(("http://", "https://", "file://")):
        raise DataError(f"{url} is not a URL that can be downloaded", hint="it must begin with https://")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes must not write the same partial file.
    with held(path.with_name(path.name + ".lock")):
        if path.exists():
            check_download(path)
            return path
        part = path.with_name(path.name + ".part")
        _download(url, part, offline_hint, progress)
        found = file_hash(part)
        if sha256 is not None and found != sha256:
            _discard(part)
            raise DataError(f"{url} has SHA-256 {found}, expected {sha256}", hint="the file was damaged or has changed")
        _check_gzip(part, url)
        # The checksum is written first: a file without one would look like the user's own.
        write_bytes(_checksum_file(path), f"{found}  {path.name}\n".encode())
        os.replace(part, path)
        _discard(part)
    return path


def check_download(path: Path) -> None:
    """Compare a downloaded file with the SHA-256 stored next to it; a file without one is the user's own."""
    checksum = _checksum_file(path)
    if checksum.is_file() and checksum.read_text(errors="replace").split()[:1] != [file_hash(path)]:
        raise DataError(
            f"{path} was damaged after its download", hint=f"delete {path} and run again to download it again"
        )


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _download(url: str, part: Path, offline_hint: str | None, progress: Progress) -> None:
    """Fill `part`; a broken connection is retried a few times, and the next run resumes."""
    problem = "the server refuses the range"
    for attempt in range(ATTEMPTS):
        try:
            if _transfer(url, part, progress):
                return
            problem = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code == 416:  # No bytes after ours: the file is complete, or it is another version.
                if error.headers.get("Content-Range") == f"bytes */{part.stat().st_size}":
                    return
                _discard(part)
                continue
            raise DataError(f"{url} answered {error.code} {error.reason}", hint=offline_hint) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            problem = str(reason) or type(error).__name__
            if isinstance(reason, socket.gaierror):  # Host not found: we are offline, so do not retry.
                break
        if attempt + 1 < ATTEMPTS:
            progress.line(f"{part.name}: {problem}; trying again")
            time.sleep(min(0.2 * 4**attempt, 10))
    have = part.stat().st_size if part.exists() else 0
    kept = f"; {have:,} bytes are kept, the next run resumes there" if have else ""
    raise DataError(f"could not download {url}: {problem}{kept}", hint=offline_hint)


def _transfer(url: str, part: Path, progress: Progress) -> bool:
    """Request the missing bytes once; returns whether the file is complete."""
    have = part.stat().st_size if part.exists() else 0
    validator = _validator_file(part)
    request = urllib.request.Request(url, headers={"User-Agent": "capsid", "Accept-Encoding": "identity"})
    # Without a validator the first part may be of another version, so start over.
    if have and validator.exists():
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", validator.read_text())
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        begin, total = _extent(answer, have)
        if begin == 0:
            validator.unlink(missing_ok=True)
            mark = _strong_validator(answer)
            if mark:
                validator.write_text(mark)
        with open(part, "r+b" if begin else "wb") as file:
            file.seek(begin)
            for block in iter(lambda: answer.read(BLOCK), b""):
                file.write(block)
                done = file.tell()
                share = f" of {total / 1e6:.1f} MB, {done / total:.0%}" if total else " MB"
                progress.update(f"{part.stem}: {done / 1e6:.1f}{share}")
            file.flush()
            os.fsync(file.fileno())
            return total is None or file.tell() == total


def _extent(answer: HTTPResponse, have: int) -> tuple[int, int | None]:
    """The offset at which the response begins, and the length of the whole file."""
    length = answer.headers.get("Content-Length")
    if answer.status != 206:
        return 0, int(length) if length else None
    span, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    begin = int(span.split("-")[0])
    if begin != have or not total.isdigit():
        raise HTTPException(f"unexpected answer to a range request: {answer.headers.get('Content-Range')}")
    return begin, int(total)


def _strong_validator(answer: HTTPResponse) -> str | None:
    etag = answer.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")


def _check_gzip(part: Path, url: str) -> None:
    """Read a .gz to its end, which checks its checksum."""
    if not part.stem.endswith(".gz"):
        return
    try:
        with gzip.open(part, "rb") as file:
            while file.read(1 << 20):
                pass
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        _discard(part)
        raise DataError(f"{url} arrived damaged: {error}", hint="run again to download it once more") from None
