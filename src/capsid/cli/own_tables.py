"""Options of verbs that read a user's own tables, and the file of the rows that were skipped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.progress import Progress

if TYPE_CHECKING:
    from capsid.data.findings import Findings
    from capsid.data.table_options import TableOptions

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME=COLUMN,...",
        help="Columns with other names: user=Kunde,item=Artikel,time=Datum,title=Titel. `data check` suggests them.",
    ),
]
Text = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN,...", help="The columns of items that make their text.")
]
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read; OUT.skipped.jsonl lists them."),
]
DropDuplicates = Annotated[
    bool, typer.Option("--drop-duplicates", help="Keep one of the rows with equal user, item and time.")
]


def table_options(columns: str | None, text: str | None, skip_bad: bool, drop_duplicates: bool) -> TableOptions:
    """From the four options."""
    from capsid.data.table_options import TableOptions

    return TableOptions.parse(columns, text, skip_bad=skip_bad, drop_duplicates=drop_duplicates)


def write_skipped(findings: Findings, out: Path, progress: Progress) -> None:
    """List the rows that were skipped beside the output; nothing if there are none."""
    from capsid.base.storage.artifacts import write_bytes

    if findings.skipped:
        file = out.with_name(f"{out.name}.skipped.jsonl")
        write_bytes(file, "".join(f"{json.dumps(asdict(one))}\n" for one in findings.skipped).encode())
        progress.line(f"rows that were skipped: {len(findings.skipped):,}, listed in {file}")
