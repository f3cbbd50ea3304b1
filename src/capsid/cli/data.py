"""`capsid data`: list, describe, check, audit and import datasets. Data goes to standard output, progress to stderr.

Heavy modules are imported inside the functions, so that help is quick.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsid.cli.options import Force, verb_group
from capsid.cli.output import AsJson, print_json, say
from capsid.cli.own_tables import Columns, DropDuplicates, SkipBadRows, Text, table_options, write_skipped

if TYPE_CHECKING:
    from capsid.data.check import CheckReport

app = verb_group("List, describe, check, audit and import datasets.")

Where = Annotated[
    str, typer.Argument(metavar="D", help="A built-in or benchmark name (`capsid data list`), or a folder.")
]
MinRating = Annotated[float | None, typer.Option("--min-rating", help="Keep ratings of at least this value.")]


@app.command("list")
def list_names(as_json: AsJson = False) -> None:
    """Show the datasets that have a name.

    Examples:

      capsid data list

      capsid data list --json
    """
    from capsid.data.sources import SOURCES

    rows = [{"name": n, "about": s.about, "needs_download": s.needs_download} for n, s in SOURCES.items()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(f"{row['name']:<15} {row['about']}{'; downloaded on first use' if row['needs_download'] else ''}")
    say("or a folder of your own: see docs/data.md")


@app.command("describe")
def describe(where: Where, as_json: AsJson = False) -> None:
    """Show the size of a dataset, its text fields and its item attributes.

    Examples:

      capsid data describe movies

      capsid data describe ./my-shop --json
    """
    from capsid.data.sources import load_dataset
    from capsid.progress import Console

    dataset = load_dataset(where, progress=Console())
    facts = dataset.describe()
    facts["provenance"] = dict(dataset.provenance)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        say(f"{name.replace('_', ' '):<22} {_shown(value)}")


@app.command("check")
def check(
    where: Where,
    min_rating: MinRating = None,
    columns: Columns = None,
    text: Text = None,
    as_json: AsJson = False,
) -> None:
    """Find and explain every problem in a dataset. Exit code 1 if there are errors.

    If columns have other names than usual, --columns is suggested from their values.

    Examples:

      capsid data check ./my-shop

      capsid data check ./my-shop --min-rating 4 --json
    """
    from capsid.data.check import check_path
    from capsid.progress import Console

    options = table_options(columns, text, False, False)
    report = check_path(where, min_rating=min_rating, options=options, progress=Console())
    if as_json:
        print_json(dataclasses.asdict(report) | {"ok": report.ok})
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command("audit")
def audit(
    where: Where,
    out: Annotated[Path | None, typer.Option("--out", metavar="PAGE.html", help="The page to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Is the order of a dataset worth learning? Ties, their direction, and what accuracy survives shuffling.

    The data are read in the order of the file.

    Examples:

      capsid data audit ./my-shop --out audit.html

      capsid data audit amazon-beauty --json
    """
    from capsid.base.storage.artifacts import write_bytes
    from capsid.data.audit import audit as audited
    from capsid.data.dataset import FILE_ORDER
    from capsid.data.sources import load_dataset
    from capsid.explain.audit_page import render
    from capsid.progress import Console

    found = audited(load_dataset(where, ties=FILE_ORDER, progress=Console()))
    if out is not None:
        write_bytes(out, render(found).encode())
    if as_json:
        print_json(found.to_dict())
        return
    say(found.verdict)
    for accuracy in found.accuracy:
        say(f"followers alone, {accuracy.order}: Recall@10 {accuracy.followers:.4f}, with ids {accuracy.with_ids:.4f}")
    if out is not None:
        say(f"page: {out}")


@app.command("import")
def import_data(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A dataset name, or a folder in a format capsid reads.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    core: Annotated[
        int | None, typer.Option("--k-core", help="Keep users and items with K or more interactions.")
    ] = None,
    min_rating: MinRating = None,
    columns: Columns = None,
    text: Text = None,
    skip_bad_rows: SkipBadRows = False,
    drop_duplicates: DropDuplicates = False,
    mapped: Annotated[
        bool,
        typer.Option(
            "--mapped",
            help="Write arrays that are mapped instead of read. Tables may then be larger than memory.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Turn any readable data into a prepared folder (sequences.txt.gz and items.jsonl.gz), or into a mapped one.

    Examples:

      capsid data import ./tables --out ./my-shop --k-core 5

      capsid data import ./tables --out ./my-shop --columns user=Kunde,item=Artikel,time=Datum --skip-bad-rows

      capsid data import movies --min-rating 3.5 --out ./films

      capsid data import ./large --out ./mapped --k-core 5 --mapped
    """
    from capsid.base.storage.artifacts import reserved
    from capsid.data.findings import Findings
    from capsid.data.prepared import KIND
    from capsid.data.streaming import import_dataset
    from capsid.progress import Console

    progress, findings = Console(), Findings(whole=skip_bad_rows)
    options = table_options(columns, text, skip_bad_rows, drop_duplicates)
    with reserved(out, kind=KIND, replace=force) as place:
        rest: dict[str, Any] = {"options": options, "findings": findings, "progress": progress}
        done = import_dataset(source, place, k=core, min_rating=min_rating, mapped=mapped, **rest)
    write_skipped(findings, out, progress)
    progress.line(f"{done.users:,} users, {done.items:,} items, {done.interactions:,} interactions")
    say(out)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v:.1%}" if isinstance(v, float) else f"{k}: {v}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _print_report(report: CheckReport) -> None:
    last = None
    for finding in report.findings:
        if finding.code != last and last is not None:
            _print_more(report, last)
        last = finding.code
        say(f"{finding.severity}: {finding.where}: {finding.message} [{finding.code}]")
        if finding.hint:
            say(f"  hint: {finding.hint}")
    if last is not None:
        _print_more(report, last)
    size = ", ".join(f"{count:,} {what}" for what, count in report.counts.items())
    say(f"{'no errors' if report.ok else 'errors found'}{': ' if size else ''}{size}")


def _print_more(report: CheckReport, code: str) -> None:
    shown = sum(1 for f in report.findings if f.code == code)
    if report.totals[code] > shown and code not in ("time-tie", "tie-order"):
        say(f"  ... {report.totals[code]:,} of this kind in total [{code}]")
