"""`capsid bench table | figure | report | check | claims`: what stored results say. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.base.storage.artifacts import write_bytes
from capsid.cli.options import BENCH_STORE, BenchStore
from capsid.cli.output import AsJson, print_json, print_table, say
from capsid.errors import ConfigError, nearest

if TYPE_CHECKING:
    from capsid.bench.check import Claim, Claims
    from capsid.bench.rows import Source
    from capsid.bench.table import Table

Filtered = Annotated[bool, typer.Option("--filter-history", help="Use the results that exclude each user's history.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE instead of standard output.")]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="PLAN", help="The name of any plan in the store, such as your own.")
]
DatasetOption = Annotated[
    str | None, typer.Option("--dataset", metavar="NAME", help="Only this dataset of the plan (default plan: main).")
]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="ROW", help="With significance: compare every row with this one, not the best."),
]
Pages = Annotated[Path, typer.Option("--pages", metavar="FOLDER", help="The folder of README.md and docs.")]
FORMS = ("markdown", "latex", "json")
PICTURES = ("svg", "png")


def table_command(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="main, ablation, tokenizer-quality, ...; or a plan of your own."),
    ],
    form: Annotated[str, typer.Option("--format", help="markdown, latex or json.")] = "markdown",
    store: BenchStore = BENCH_STORE,
    filtered: Filtered = False,
    plan: PlanOption = None,
    dataset: DatasetOption = None,
    against: AgainstOption = None,
    out: Out = None,
) -> None:
    """Print a table of the paper with our numbers. Cells not run are empty; the paper's numbers are in brackets.

    With --plan, or the name of your own plan, the table shows what that plan has run, on any dataset.

    Examples:

      capsid bench table main

      capsid bench table mine

      capsid bench table tiers --plan mine --dataset my-shop

      capsid bench table significance --plan strong --against sasrec --filter-history

      capsid bench table ablation --format latex --out ablation.tex
    """
    import json

    from capsid.bench.table import latex, markdown, plain

    if form not in FORMS:
        raise ConfigError(f"--format must be one of {', '.join(FORMS)}, got {form!r}", hint="such as --format latex")
    made = _table(name, store, filtered, plan, dataset, against)
    text = {"markdown": markdown, "latex": latex, "json": lambda t: json.dumps(plain(t), indent=2) + "\n"}[form](made)
    if out is None:
        say(text, end="")
    else:
        write_bytes(out, text.encode())


def figure_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="lengths, tiers, collisions, ...; see `report`.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A file that ends in .svg or .png.")],
    store: BenchStore = BENCH_STORE,
    filtered: Filtered = False,
) -> None:
    """Draw a figure of the paper with our numbers.

    Examples:

      capsid bench figure tiers --out tiers.svg
    """
    from capsid.bench.figures import FIGURES, draw

    if name not in FIGURES:
        raise ConfigError(f"there is no figure {name!r}", hint=nearest(name, FIGURES))
    form = out.suffix.removeprefix(".")
    if form not in PICTURES:
        raise ConfigError(f"--out must end in .svg or .png, got {out.name!r}", hint="such as --out tiers.svg")
    write_bytes(out, draw(name, _source(store, filtered), form))


def report_command(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the tables and figures.")],
    store: BenchStore = BENCH_STORE,
    filtered: Filtered = False,
    plan: PlanOption = None,
    dataset: DatasetOption = None,
) -> None:
    """Write every table (Markdown and LaTeX) and every figure that can be drawn (SVG and PNG) into a folder.

    With --plan: the tables of your own plan, on all its datasets or one.

    Examples:

      capsid bench report --out results/report

      capsid bench report --plan mine --out results/mine
    """
    if plan is not None or dataset is not None:
        _report_of_plan(out, store, filtered, plan, dataset)
        return
    from capsid.bench.figures import FIGURES, draw
    from capsid.bench.paper_tables import TABLES
    from capsid.bench.table import latex, markdown

    source, missing, pages = _source(store, filtered), [], []
    for name, make in TABLES.items():
        table = make(source)
        pages.append(markdown(table))
        write_bytes(out / f"{name}.tex", latex(table).encode())
    for name in FIGURES:
        try:
            for form in PICTURES:
                write_bytes(out / f"{name}.{form}", draw(name, source, form))
            pages.append(f"![{name}]({name}.svg)\n")
        except ConfigError as error:
            missing.append(f"{name}: {error.message}")
    write_bytes(out / "report.md", "\n".join(pages).encode())
    say(f"{len(TABLES)} tables and {len(FIGURES) - len(missing)} figures in {out}")
    for line in missing:
        say(f"not drawn: {line}")


def claims_command(
    pages: Pages = Path(),
    store: BenchStore = BENCH_STORE,
    write: Annotated[bool, typer.Option("--write", help="Draw the stored figures into the pages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the figures in README.md and docs that name their stored cells. Exit code 1 if one differs.

    Examples:

      capsid bench claims

      capsid bench claims --write
    """
    import dataclasses

    from capsid.bench.check import pages_in

    if write:
        claims = _claims(store)
        for page in pages_in(pages):
            text = page.read_text(encoding="utf-8")
            if (drawn := claims.drawn(text)) != text:
                write_bytes(page, drawn.encode())
    found = _claims_of(pages, store)
    if as_json:
        print_json([dataclasses.asdict(claim) | {"holds": claim.holds} for claim in found])
    else:
        rows = [[f"{c.page}:{c.line}", c.selector, c.shown, c.problem or c.stored] for c in found]
        print_table(["page", "claim", "written", "stored"], rows)
    if not all(claim.holds for claim in found):
        raise typer.Exit(1)


def check_command(
    store: BenchStore = BENCH_STORE,
    filtered: Filtered = False,
    pages: Pages = Path(),
    as_json: AsJson = False,
) -> None:
    """Check stored results: NDCG against recall, the paper's own checks, and the figures that pages claim.

    Exit code 1 if a cell is impossible, or if a figure in README.md or docs differs from the store.

    Examples:

      capsid bench check
    """
    import dataclasses

    from capsid.bench.check import of_claim, run_checks

    found = (*run_checks(_source(store, filtered)), *map(of_claim, _claims_of(pages, store)))
    if as_json:
        print_json([dataclasses.asdict(check) for check in found])
    else:
        words = {True: "holds", False: "does not hold", None: "unknown"}
        print_table(["check", "", "detail"], [[c.name, words[c.passed], c.detail] for c in found])
    if any(c.passed is False for c in found if c.of_every_cell):
        raise typer.Exit(1)


VERBS: dict[str, Callable[..., None]] = {
    "table": table_command,
    "figure": figure_command,
    "report": report_command,
    "check": check_command,
    "claims": claims_command,
}


def _claims(store: Path) -> Claims:
    from capsid.bench.check import Claims

    return Claims(_source(store, False).plan)


def _claims_of(folder: Path, store: Path) -> list[Claim]:
    from capsid.bench.check import pages_in

    claims = _claims(store)
    return [c for page in pages_in(folder) for c in claims.of_page(page, page.relative_to(folder).as_posix())]


def _table(name: str, store: Path, filtered: bool, plan: str | None, dataset: str | None, against: str | None) -> Table:
    from capsid.bench.paper_tables import TABLES
    from capsid.bench.plan_tables import OWN_TABLES, PlanCells
    from capsid.bench.results import plans_in

    if against is not None and name != "significance":
        raise ConfigError(f"--against needs the table significance, got {name!r}", hint="leave --against out")
    if plan is None and dataset is None and against is None and name in TABLES:
        return TABLES[name](_source(store, filtered))
    if plan is None and name not in TABLES:
        own = plans_in(store)
        if name not in own:
            raise ConfigError(f"there is no table {name!r}", hint=nearest(name, [*TABLES, *own]))
        name, plan = "main", name
    if name not in OWN_TABLES:
        raise ConfigError(f"there is no table {name!r} for your own plans", hint=nearest(name, OWN_TABLES))
    evaluation = _evaluation(filtered)
    return OWN_TABLES[name](
        PlanCells.read(store, plan or "main", dataset=dataset, evaluation=evaluation, against=against)
    )


def _report_of_plan(out: Path, store: Path, filtered: bool, plan: str | None, dataset: str | None) -> None:
    from capsid.bench.plan_tables import OWN_TABLES, PlanCells
    from capsid.bench.table import latex, markdown

    cells = PlanCells.read(store, plan or "main", dataset=dataset, evaluation=_evaluation(filtered))
    tables = [make(cells) for make in OWN_TABLES.values()]
    for table in tables:
        write_bytes(out / f"{table.name}.tex", latex(table).encode())
    write_bytes(out / "report.md", "\n".join(map(markdown, tables)).encode())
    say(f"{len(tables)} tables in {out}")


def _evaluation(filtered: bool) -> str:
    return "test-filtered" if filtered else "test"


def _source(store: Path, filtered: bool) -> Source:
    from capsid.bench.rows import Source

    return Source(store, _evaluation(filtered))
