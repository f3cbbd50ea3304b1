"""Amazon reviews of 2014 as published: `reviews_X_5.json.gz` (JSON lines) and `meta_X.json.gz` (Python literals).

A benchmark is downloaded once by name and stored as a prepared folder next to the downloaded files.
"""

from __future__ import annotations

import ast
import html
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from capsid.base.storage.artifacts import cache_home, folder_kind
from capsid.base.vocabulary import Vocabulary
from capsid.data.attributes import attribute_frame
from capsid.data.dataset import Dataset
from capsid.data.download import fetch
from capsid.data.findings import Findings
from capsid.data.frames import first_seen, group_events
from capsid.data.lines import numbered_lines
from capsid.data.prepared import KIND, read_prepared, write_prepared
from capsid.errors import DataError, nearest
from capsid.progress import Progress, silent

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
