"""`capsid compare`: is one method better than another, user by user, over as many seeds as there are runs?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.options import FilterHistory, single_verb
from capsid.cli.output import AsJson, print_json, say

app = single_verb()
Runs = Annotated[str, typer.Argument(metavar="RUN[,RUN...]", help="Runs of one method, one for each seed.")]


@app.command()
def compare(
    first: Runs,
    second: Runs,
    metric: Annotated[str, typer.Option("--metric", help="A metric that `capsid evaluate` stored.")] = "recall@10",
    split: Annotated[str, typer.Option("--split", help="test or valid.")] = "test",
    filter_history: FilterHistory = True,
    as_json: AsJson = False,
) -> None:
    """FIRST minus SECOND, paired by user, with a 95 % interval from a bootstrap over users and seeds.

    Reads the values that `capsid evaluate` stored in the runs; nothing is ranked again.

    Examples:

      capsid compare runs/capsid runs/rq-kmeans

      capsid compare runs/capsid-0,runs/capsid-1,runs/capsid-2 runs/rq-0,runs/rq-1,runs/rq-2 --no-filter-history --json
    """
    from capsid.evaluate.kept import compare_runs, evaluation_name

    ours, theirs = ([Path(run.strip()) for run in side.split(",") if run.strip()] for side in (first, second))
    found = compare_runs(ours, theirs, metric=metric, split=split, filter_history=filter_history)
    if as_json:
        print_json({"metric": metric, "evaluation": evaluation_name(split, filter_history), **found.to_dict()})
        return
    for label, mean, seeds in (
        ("first", found.first, found.first_by_seed),
        ("second", found.second, found.second_by_seed),
    ):
        say(f"{label:<7} {metric} {mean:.4f}   by seed: {', '.join(f'{s:.4f}' for s in seeds)}")
    ratio = f" ({100 * found.difference / found.second:+.1f} %)" if found.second else ""
    interval = f"95 % interval {found.low:+.4f} to {found.high:+.4f}"
    say(f"difference {found.difference:+.4f}{ratio}, {interval}, p {found.p_text}")
    verdict = "the interval excludes zero" if found.significant else "the difference is not significant"
    say(f"{found.users:,} users: {verdict}")
