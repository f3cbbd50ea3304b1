"""Amazon reviews of 2014 as published: `reviews_X_5.json.gz` (JSON lines) and `meta_X.json.gz` (Python literals).

A benchmark is downloaded once by name and stored as a prepared folder next to the downloaded files.
"""

from __future__ import annotations

import ast
import gzip
import html
import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import polars as pl

from capsid.base.storage.artifacts import cache_home, file_hash, folder_kind, write_bytes
from capsid.base.storage.locks import held
from capsid.base.vocabulary import Vocabulary
from capsid.data.attributes import attribute_frame
from capsid.data.dataset import Dataset
from capsid.data.findings import Findings, numbered_lines
from capsid.data.frames import first_seen, group_events
from capsid.data.prepared import KIND, read_prepared, write_prepared
from capsid.errors import DataError, nearest
from capsid.progress import Progress, silent

ATTEMPTS = 4
BLOCK = 1 << 18
TIMEOUT_SECONDS = 60
BASE_URL = "http://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"
CATEGORIES: Mapping[str, str] = {
    "amazon-beauty": "Beauty",
    "amazon-sports": "Sports_and_Outdoors",
    "amazon-toys": "Toys_and_Games",
}
MAX_BROKEN_SHARE = 0.01
# Published lines begin with the id, so items without reviews (nine in ten) need not be parsed.
_ID_FIRST = re.compile(rb"^\{'asin': '([^'\\]*)'[,}]")


def is_amazon(folder: Path) -> bool:
    """Whether the folder holds a reviews file as published."""
    return bool(_reviews_files(folder))


def load_benchmark(
    name: str,
    *,
    base_url: str | None = None,
    home: Path | None = None,
    min_rating: float | None = None,
    progress: Progress = silent,
) -> Dataset:
    """A benchmark by name: from the cache, else downloaded. $CAPSID_AMAZON_URL or `base_url` name a mirror."""
    if name not in CATEGORIES:
        raise DataError(f"there is no benchmark {name!r}", hint=nearest(name, CATEGORIES))
    folder = (home or cache_home()) / "datasets" / name
    prepared = folder / "prepared"
    if min_rating is None and folder_kind(prepared) == KIND:
        findings = Findings()
        dataset = read_prepared(prepared, findings)
        findings.raise_first(str(prepared))
        return dataset
    download_benchmark(name, folder, base_url=base_url, progress=progress)
    findings = Findings()
    dataset = replace(read_amazon(folder, findings, min_rating=min_rating, progress=progress), name=name)
    findings.raise_first(str(folder))
    findings.tell(progress)
    if min_rating is None:
        write_prepared(dataset, prepared)
    return dataset


def download_benchmark(
    name: str, folder: Path, *, base_url: str | None = None, progress: Progress = silent
) -> tuple[Path, Path]:
    """The two published files of a benchmark, in `folder`."""
    category = CATEGORIES[name]
    base = (base_url or os.environ.get("CAPSID_AMAZON_URL") or BASE_URL).rstrip("/")
    files = (f"reviews_{category}_5.json.gz", f"meta_{category}.json.gz")
    hint = f"get {files[0]} and {files[1]} by other means, put them in one folder and pass it as --data"
    reviews, meta = (fetch(f"{base}/{f}", folder / f, offline_hint=hint, progress=progress) for f in files)
    return reviews, meta


def read_amazon(
    folder: Path, findings: Findings, *, min_rating: float | None = None, progress: Progress = silent
) -> Dataset:
    """The reviews in time order (file order breaks ties), and the reviewed items' attributes from the meta file."""
    reviews, meta, category = _pair(folder)
    events = _read_reviews(reviews, min_rating, findings)
    item_ids = first_seen(events["item"])
    progress.line(f"{reviews.name}: {events.height:,} reviews of {len(item_ids):,} items; reading {meta.name}")
    records = _read_meta(meta, set(item_ids), findings, progress)
    lines = [records.get(i, (0, {}))[0] for i in item_ids]
    rows = [records.get(i, (0, {}))[1] for i in item_ids]
    users, sequences, times = group_events(events, item_ids)
    return Dataset(
        name=f"amazon-2014 {category}",
        users=users,
        items=Vocabulary(item_ids),
        sequences=sequences,
        attributes=attribute_frame(rows, lambda row: f"{meta.name}:{lines[row]}", findings),
        times=times,
        provenance={"format": "Amazon-2014 as published", "files": f"{reviews.name}, {meta.name}"}
        | ({"min_rating": str(min_rating)} if min_rating is not None else {}),
    )


def _reviews_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("reviews_*.json*") if re.fullmatch(r"reviews_.+\.json(\.gz)?", p.name))


def _pair(folder: Path) -> tuple[Path, Path, str]:
    found = _reviews_files(folder)
    if len(found) != 1:
        raise DataError(
            f"{folder} holds {len(found)} files reviews_X_5.json.gz ({', '.join(p.name for p in found)})",
            hint="keep one benchmark per folder",
        )
    category = re.sub(r"^reviews_(.+?)(_5)?\.json(\.gz)?$", r"\1", found[0].name)
    for name in (f"meta_{category}.json.gz", f"meta_{category}.json"):
        if (folder / name).is_file():
            return found[0], folder / name, category
    raise DataError(f"{folder} has {found[0].name} but no meta_{category}.json.gz", hint="put both files in the folder")


def _read_reviews(path: Path, min_rating: float | None, findings: Findings) -> pl.DataFrame:
    columns: tuple[list[str], list[str], list[int]] = ([], [], [])
    for number, line in numbered_lines(path, findings):
        try:
            review = json.loads(line)
            row = (review["reviewerID"], review["asin"], review["unixReviewTime"])
            rating = float(review["overall"]) if min_rating is not None else 0.0
            if [type(v) for v in row] != [str, str, int]:
                raise TypeError("reviewerID and asin must be text, unixReviewTime a whole number")
        except KeyError as error:
            findings.error("broken-line", f"{path.name}:{number}", f"the review has no {error}")
        except (ValueError, TypeError) as error:
            findings.error("broken-line", f"{path.name}:{number}", f"broken review: {error}")
        else:
            if min_rating is None or rating >= min_rating:
                for column, value in zip(columns, row):
                    column.append(value)  # type: ignore[attr-defined]
    if not columns[0] and not findings.errors:
        findings.error("no-interactions", path.name, "the file holds no reviews")
    schema = {"user": pl.String, "item": pl.String, "timestamp": pl.Int64}
    return pl.DataFrame(dict(zip(schema, columns)), schema=schema)


def _read_meta(
    path: Path, wanted: set[str], findings: Findings, progress: Progress
) -> dict[str, tuple[int, dict[str, Any]]]:
    """Line and attributes of every wanted item. Broken lines are warnings; more than 1 % of them are an error."""
    out: dict[str, tuple[int, dict[str, Any]]] = {}
    broken: list[tuple[int, str]] = []
    total = 0
    for number, line in numbered_lines(path, findings):
        total += 1
        progress.update(f"{path.name}: {total:,} lines")
        begin = _ID_FIRST.match(line)
        if begin and begin.group(1).decode("utf-8", "replace") not in wanted:
            continue
        try:
            record = parse_literal(line)
            if not isinstance(record.get("asin"), str):
                raise ValueError("the line has no 'asin'")
        except ValueError as error:
            broken.append((number, str(error)))
            continue
        if record["asin"] in wanted and record["asin"] not in out:
            out[record["asin"]] = (number, dict(_attributes(record)))
    _report_broken(path, broken, total, findings)
    return out


def parse_literal(line: bytes) -> dict[str, Any]:
    """One line of a meta file: a Python literal (never evaluated), or JSON as in later copies."""
    try:
        text = line.decode("utf-8")
        try:
            record = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the line is neither a Python literal nor JSON") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a dictionary, found a {type(record).__name__}")
    return record


def _attributes(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that describe an item. `related` and `salesRank` are left out: they reveal later purchases."""
    for name in ("title", "brand"):
        if isinstance(record.get(name), str) and record[name].strip():
            yield name, html.unescape(record[name]).strip()
    paths = record.get("categories") or []
    if isinstance(paths, list) and paths:
        path = paths[0] if isinstance(paths[0], list) else paths
        yield "categories", [html.unescape(c) for c in path if isinstance(c, str)]
    if isinstance(record.get("price"), int | float):
        yield "price", float(record["price"])
    if isinstance(record.get("description"), str) and record["description"].strip():
        yield "description", html.unescape(record["description"]).strip()


def _report_broken(path: Path, broken: list[tuple[int, str]], total: int, findings: Findings) -> None:
    for number, problem in broken:
        findings.warning("broken-meta-line", f"{path.name}:{number}", problem, "the line was left out")
    if len(broken) > MAX_BROKEN_SHARE * total:
        numbers = ", ".join(str(n) for n, _ in broken[:5]) + (", ..." if len(broken) > 5 else "")
        findings.error(
            "broken-meta",
            path.name,
            f"{len(broken):,} of {total:,} lines are broken (lines {numbers}), more than {MAX_BROKEN_SHARE:.0%}",
            "fetch the file again",
        )


def fetch(
    url: str, path: Path, *, sha256: str | None = None, offline_hint: str | None = None, progress: Progress = silent
) -> Path:
    """Download to `path` unless the file exists and is unchanged. `sha256` is the published hash, if known.

    A broken download resumes; size, gzip checksum and SHA-256 are checked before the file takes its place.
    """
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
            etag = answer.headers.get("ETag")
            mark = etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")
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
