"""`capsid bench`: run a plan of many cells, resume it after a kill, and show its progress.

`capsid.cli.bench_show` makes tables and figures of the results.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsid.base.printable import printable
from capsid.cli import bench_show
from capsid.cli.options import BENCH_STORE, CHECKPOINT_EVERY, BenchStore, CheckpointEvery, run_options, verb_group
from capsid.cli.output import AsJson, print_json, print_table, say
from capsid.errors import ConfigError
from capsid.progress import Console, duration

if TYPE_CHECKING:
    from capsid.bench.prepare import Prospect
    from capsid.bench.runner import Summary

app = verb_group("Run the benchmark: many methods, datasets, seeds and settings under one protocol.")
PlanName = Annotated[
    str,
    typer.Argument(
        metavar="PLAN",
        help="clean, clean-time, file-order, heart, main, ablation, sensitivity, smoke, or a TOML file.",
    ),
]
DataPaths = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="NAME=PATH", help="Path of a dataset in the plan; repeatable."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PATTERN",
        help="Only cells whose label/dataset/seed, or one of the three, matches; repeatable, in the order to run.",
    ),
]
for _name, _verb in bench_show.VERBS.items():
    app.command(_name)(_verb)


@app.command("run")
def run_command(
    plan: PlanName,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an earlier run. This is the default; the flag only states it.")
    ] = False,
    store: BenchStore = BENCH_STORE,
    data: DataPaths = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="MINUTES", help="Start only cells expected to end in this time.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", help="Cells to run in parallel, one thread each.")
    ] = 1,
    only: Only = None,
    fresh_code: Annotated[
        bool, typer.Option("--fresh-code", help="Rerun cells that a different version of the code finished.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FOLDER", help="Save newly fitted runs as FOLDER/DATASET-SEED/LABEL."),
    ] = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, without running it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run every cell of a plan that is not finished. If it is killed, the same command resumes it.

    Examples:

      capsid bench run smoke

      capsid bench run main --data amazon-beauty=./beauty --workers 2 --budget 120

      capsid bench run main --only "capsid*" --only tiger --keep runs/bench

      capsid bench run mine.toml --data my-shop=./my-shop

      capsid bench run ablation --only "T=1" --dry-run
    """
    if workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {workers}", hint="more workers than cores are no faster")
    if budget is not None and not budget > 0:
        raise ConfigError(f"--budget must be above 0, got {budget:g}", hint="give minutes, such as --budget 120")
    run = run_options(checkpoint_every)
    from capsid.bench.prepare import data_sources, find_plan, fitting, look, remember, remembered_sources
    from capsid.bench.runner import Options, run_plan
    from capsid.bench.store import Place

    wanted = find_plan(plan, store)
    place = Place(store.resolve(), wanted.name)
    sources = data_sources(wanted, data or (), remembered_sources(place))
    wanted = wanted.only(*only) if only else wanted
    seconds = None if budget is None else 60 * budget
    if dry_run:
        prospects = look(wanted, place, sources, fresh_code=fresh_code)
        ahead = [p.estimate.seconds if p.estimate else 0.0 for p in prospects]
        _show_prospects(prospects, fitting(ahead, workers, seconds), as_json)
        return
    remember(place, plan, sources)
    options = Options(workers=workers, budget=seconds, fresh_code=fresh_code, keep=keep, run=run)
    summary = run_plan(wanted, place, sources, options, BenchConsole(), whole=not only)
    _show_summary(summary, place.lines, store, as_json)
    if summary.failed:
        raise typer.Exit(1)


@app.command("status")
def status(
    plan: PlanName, store: BenchStore = BENCH_STORE, data: DataPaths = None, only: Only = None, as_json: AsJson = False
) -> None:
    """Show the progress of a plan: metrics of finished cells, and the state of the others. Runs nothing.

    Examples:

      capsid bench status main

      capsid bench status smoke --store bench-results --json
    """
    from capsid.bench.prepare import data_sources, find_plan, look, remembered_sources
    from capsid.bench.process import left_error
    from capsid.bench.results import load
    from capsid.bench.store import Place

    wanted = find_plan(plan, store)
    place = Place(store.resolve(), wanted.name)
    sources = data_sources(wanted, data or (), remembered_sources(place))
    wanted = wanted.only(*only) if only else wanted
    for note in load(place.store, wanted.name).notes:
        Console().line(f"{note}; `capsid bench run` repairs it")
    prospects = look(wanted, place, sources)
    left = {p.cell.name: left_error(place.work(p.job.key)) for p in prospects if p.job is not None}
    failures = {name: f"failed: {error}" for name, error in left.items() if error is not None}
    _show_prospects(prospects, [True] * len(prospects), as_json, failures)


class BenchConsole(Console):
    """Progress on standard error: one line per worker, redrawn in place on a terminal, else printed at intervals."""

    def __init__(self) -> None:
        super().__init__()
        self._between = 0.5 if self._updates else 30.0
        self._told = time.monotonic()
        self._drawn = 0

    def line(self, text: str) -> None:
        self._wipe()
        super().line(text)

    def workers(self, lines: Sequence[str]) -> None:
        if time.monotonic() - self._told < self._between:
            return
        self._told = time.monotonic()
        self._wipe()
        if self._updates:
            import shutil

            # A wrapped line cannot be redrawn in place.
            width = shutil.get_terminal_size().columns - 1
            lines = [text[:width] for text in lines]
            self._drawn = len(lines)
        for text in lines:
            print(printable(text), file=sys.stderr)
        sys.stderr.flush()

    def plan(self, prospects: Sequence[Prospect], starts: Sequence[bool]) -> None:
        """Show the state and the expected time of every cell."""
        for prospect, fits in zip(prospects, starts):
            self.line(_ahead(prospect, fits))
        seconds = sum(p.estimate.seconds for p, fits in zip(prospects, starts) if p.estimate and fits)
        count = sum(p.estimate is not None and fits for p, fits in zip(prospects, starts))
        self.line(f"{count} of {len(prospects)} cells to run, about {duration(seconds)} of work")

    def _wipe(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J", end="", file=sys.stderr)
            self._drawn = 0


def _ahead(prospect: Prospect, fits: bool) -> str:
    name = prospect.cell.name
    if prospect.error is not None:
        return f"{name}: {prospect.state}: {prospect.error.message}"
    if prospect.estimate is None:
        return f"{name}: {prospect.state}"
    if not prospect.estimate.seconds:
        return f"{name}: {prospect.estimate.basis}"
    spent = f", {duration(prospect.spent)} done" if prospect.spent else ""
    late = "" if fits else "; would not fit into the budget"
    return f"{name}: about {duration(prospect.estimate.seconds)} to go ({prospect.estimate.basis}{spent}){late}"


def _show_prospects(
    prospects: Sequence[Prospect], starts: Sequence[bool], as_json: bool, failures: dict[str, str] | None = None
) -> None:
    rows = [_prospect_row(p, fits, (failures or {}).get(p.cell.name)) for p, fits in zip(prospects, starts)]
    if as_json:
        print_json(rows)
        return
    columns = ["cell", "state", "recall@10", "ndcg@10", "minutes", "note"]
    shown = [
        [*(r[n] for n in columns[:4]), "-" if r["seconds"] is None else f"{r['seconds'] / 60:.1f}", r["note"] or ""]
        for r in rows
    ]
    print_table(columns, shown)
    for hint in dict.fromkeys(row["hint"] for row in rows if row["hint"]):
        Console().line(f"hint: {hint}")


def _prospect_row(prospect: Prospect, fits: bool, failure: str | None) -> dict[str, Any]:
    from capsid.bench.prepare import FINISHED, READY

    result, estimate, error = prospect.result, prospect.estimate, prospect.error
    metrics: dict[str, Any] = {}
    if result is not None and result.evaluations:
        first = "test" if "test" in result.evaluations else next(iter(result.evaluations))
        metrics = dict(result.evaluations[first]["metrics"])
    state = "started" if prospect.state == READY and prospect.spent else prospect.state
    seconds = (
        result.seconds["wall"] if prospect.state == FINISHED and result else estimate.seconds if estimate else None
    )
    note = failure or (error.message if error else estimate.basis if estimate else None)
    if not fits:
        note = f"would not fit into the budget ({note})"
    return {
        "cell": prospect.cell.name,
        "method": prospect.cell.method,
        "label": prospect.cell.label,
        "dataset": prospect.cell.dataset,
        "seed": prospect.cell.seed,
        "priority": prospect.cell.priority,
        "state": state,
        "recall@10": metrics.get("recall@10"),
        "ndcg@10": metrics.get("ndcg@10"),
        "seconds": seconds,
        "spent": prospect.spent,
        "fits": fits,
        "note": note,
        "hint": error.hint if error else None,
    }


def _show_summary(summary: Summary, lines: Path, store: Path, as_json: bool) -> None:
    from capsid.bench.prepare import UNAVAILABLE
    from capsid.bench.process import DONE, FAILED, INTERRUPTED, KILLED
    from capsid.bench.runner import NO_TIME

    if as_json:
        print_json(
            {"plan": summary.plan, "results": str(lines), **dataclasses.asdict(summary), "failed": summary.failed}
        )
        return
    counts: dict[str, int] = {}
    for outcome in summary.outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    told = ", ".join(f"{n} {state}" for state, n in counts.items())
    say(f"{summary.plan}: {told}; {duration(summary.seconds)}")
    for outcome in summary.outcomes:
        if outcome.state in (FAILED, KILLED, INTERRUPTED, UNAVAILABLE, NO_TIME):
            say(f"  {outcome.cell}: {outcome.state}{': ' + outcome.error if outcome.error else ''}")
    say(f"results: {lines}")
    if summary.count(INTERRUPTED, KILLED, NO_TIME):
        say("run the same command again to resume")
    elif summary.count(DONE):
        option = "" if store == BENCH_STORE else f" --store {store}"
        say("next:")
        say(f"  capsid bench status {summary.plan}{option}")
        say(f"  capsid bench table {summary.plan}{option}")
