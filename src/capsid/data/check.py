"""Reports everything that is wrong or worth knowing about a dataset, not only the first problem.

Readers record a bad line and continue. This module adds findings that need the whole dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from capsid.data.audit import order_facts
from capsid.data.dataset import FILE_ORDER, TITLE_COVERAGE, Dataset, coverage
from capsid.data.findings import EXAMPLES, Finding, Findings
from capsid.data.sources import SOURCES, existing_folder, load_dataset, read_folder
from capsid.data.suggest import suggest
from capsid.data.table_files import BlockSize
from capsid.data.table_options import PLAIN, TableOptions
from capsid.data.tables import TableFiles, is_tables
from capsid.errors import CapsidError
from capsid.progress import Progress, silent

ORDER = {"error": 0, "warning": 1, "info": 2}
# Above the first, a number is taken for a time since 1970 (1973 in seconds); above the second, in milliseconds.
SECONDS, MILLISECONDS = 1e8, 1e11


@dataclass(frozen=True)
class CheckReport:
    """All findings. `counts` is the size of the dataset, `totals` counts all findings by code."""

    path: str
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    totals: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether the data can be used as it is."""
        return not any(f.severity == "error" for f in self.findings)


def check_path(
    path: str | Path,
    *,
    min_rating: float | None = None,
    options: TableOptions = PLAIN,
    progress: Progress = silent,
) -> CheckReport:
    """Read a dataset tolerantly, by name or folder, and report everything that is wrong with it.

    Ratings below `min_rating` are left out, as `capsid data import --min-rating` does.
    """
    findings = Findings()
    dataset: Dataset | None = None
    try:
        if str(path) in SOURCES:
            dataset = load_dataset(path, min_rating=min_rating, ties=FILE_ORDER, progress=progress)
        else:
            folder = existing_folder(path)
            dataset = read_folder(folder, findings, min_rating=min_rating, options=options, progress=progress)
    except CapsidError as error:
        if not findings.kept and str(path) not in SOURCES and not Path(path).expanduser().is_dir():
            raise
        wanted = None if str(path) in SOURCES or options.columns else _suggestion(existing_folder(path))
        findings.error("unreadable", str(path), error.message, f"try {wanted}" if wanted else error.hint)
    counts: dict[str, int] = {}
    if dataset is not None:
        check_dataset(dataset, findings)
        counts = {"users": len(dataset.users), "items": len(dataset.items), "interactions": dataset.interactions}
    ordered = sorted(findings.kept, key=lambda f: ORDER[f.severity])
    return CheckReport(str(path), tuple(ordered), counts, dict(findings.counts))


def _suggestion(folder: Path) -> str | None:
    """The columns of tables, guessed from their values."""
    if not is_tables(folder):
        return None
    try:
        files = TableFiles.of(folder)
        first = next(files.blocks(Findings(), BlockSize()), None)
        return None if first is None else suggest(first, files.items_block(Findings()))
    except CapsidError:
        return None


def check_dataset(dataset: Dataset, findings: Findings) -> None:
    """Add findings that readers cannot see line by line."""
    _check_lengths(dataset, findings)
    _check_pairs(dataset, findings)
    _check_text(dataset, findings)
    _check_times(dataset, findings)


def _check_lengths(dataset: Dataset, findings: Findings) -> None:
    lengths, code = dataset.sequences.lengths, "one-item-sequence"
    single = np.flatnonzero(lengths == 1)
    for row in single[:EXAMPLES]:
        message = "has one item: nothing can be held out, and there is no next item to learn from"
        hint = "drop such users, or filter with `capsid data import ... --k-core 3`"
        findings.warning(code, f"user {dataset.users[row]}", message, hint)
    _count_rest(findings, code, len(single))
    pairs = int((lengths == 2).sum())
    if pairs:
        findings.info(
            "two-item-sequence", "sequences", f"{pairs:,} users have two items: used in training, but not evaluated"
        )
    if not (lengths >= 3).any():
        findings.error("nothing-to-evaluate", "sequences", "no user has three items, so nothing can be held out")


def _check_pairs(dataset: Dataset, findings: Findings) -> None:
    """Users who have an item more than once, and items that nobody has."""
    users_E = dataset.sequences.row_numbers
    pairs_E = users_E * max(len(dataset.items), 1) + dataset.sequences.values
    unique, counts = np.unique(pairs_E, return_counts=True)
    users = np.unique(unique[counts > 1] // max(len(dataset.items), 1))
    for user in users[:EXAMPLES]:
        message = "has an item more than once; with the history filter, repeated items can never be recommended"
        findings.info("repeated-item", f"user {dataset.users[user]}", message)
    _count_rest(findings, "repeated-item", len(users))
    unused = np.flatnonzero(np.bincount(dataset.sequences.values, minlength=len(dataset.items)) == 0)
    for row in unused[:EXAMPLES]:
        message = "has no interactions: it stays in the catalogue, and its id depends only on its text or attributes"
        findings.info("item-without-interactions", f"item {dataset.items[row]}", message)
    _count_rest(findings, "item-without-interactions", len(unused))


def _check_text(dataset: Dataset, findings: Findings) -> None:
    frame = dataset.attributes
    for column in frame.columns:
        share = coverage(frame, column)
        if frame[column].dtype not in (pl.String, pl.List(pl.String)) or share == 1.0:
            continue
        message = f"{1 - share:.1%} of the items have no {column!r}"
        hint = None
        if column == "title" and share < TITLE_COVERAGE:
            used = "used anyway, because there are no keywords" if column in dataset.text_fields else "not used as text"
            message += f"; titles with less than {TITLE_COVERAGE:.0%} coverage should not be used; here they are {used}"
            hint = "whether an item has a title leaks how popular it is; add the missing titles or give keywords"
        if share == 0.0 and len(frame.columns) > 1:
            hint = hint or f"the column {column!r} is empty: leave it out"
        severity = findings.warning if column in dataset.text_fields or column == "title" else findings.info
        severity("missing-text", column, message, hint)
    if not dataset.text_fields:
        hint = "give items a title, brand or categories; without text only collaborative vectors can be used"
        findings.warning("no-text", "items", "no item has any text", hint)


def _check_times(dataset: Dataset, findings: Findings) -> None:
    facts = order_facts(dataset)
    if facts.follows_ids and facts.knows != "order":
        hint = "keep --ties shuffle, the default; `capsid data audit` shows what the order of ids gives away"
        findings.warning("tie-order", "interactions", f"{facts}: ties follow item ids", hint, times=facts.ties)
    elif facts.follows_ids:
        findings.info("order-only", "sequences", str(facts), "times.txt.gz or days.txt.gz would show what is known")
    elif facts.ties:
        findings.info("time-tie", "interactions", str(facts), times=facts.ties)
    if dataset.times is None or dataset.days:
        return
    late = int((np.abs(dataset.times) > MILLISECONDS).sum())
    early = int(((np.abs(dataset.times) > SECONDS) & (np.abs(dataset.times) <= MILLISECONDS)).sum())
    if late and early:
        message = f"{early:,} times look like seconds since 1970 and {late:,} like milliseconds"
        findings.warning("mixed-times", "interactions", message, "write all times in one unit: their order is wrong")


def _count_rest(findings: Findings, code: str, total: int) -> None:
    """Count the findings that are not listed; listed examples are counted as they are added."""
    if total > EXAMPLES:
        findings.counts[code] += total - EXAMPLES
