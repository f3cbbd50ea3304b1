"""`capsid compare`: is one method better than another, user by user, over as many seeds as there are runs?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.cli.output import print_json
from capsid.errors import DataError

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Runs = Annotated[str, typer.Argument(metavar="RUN[,RUN...]", help="Runs of one method, one for each seed.")]


@app.command()
def compare(
    first: Runs,
    second: Runs,
    metric: Annotated[str, typer.Option("--metric", help="A metric that `capsid evaluate` kept.")] = "recall@10",
    split: Annotated[str, typer.Option("--split", help="test or valid.")] = "test",
    filter_history: Annotated[
        bool, typer.Option("--filter-history/--no-filter-history", help="Which of the two evaluations to read.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """FIRST minus SECOND, paired by user, with a 95 % interval from a bootstrap over users and seeds.

    Reads what `capsid evaluate` kept in the runs; nothing is ranked again.

    Examples:

      capsid compare runs/capsid runs/rq-kmeans

      capsid compare runs/capsid-0,runs/capsid-1,runs/capsid-2 runs/rq-0,runs/rq-1,runs/rq-2 --filter-history --json
    """
    from capsid.evaluate.kept import evaluation_name
    from capsid.evaluate.significance import paired_bootstrap

    name = evaluation_name(split, filter_history)
    sides = [
        [_kept(Path(run.strip()), name, metric) for run in side.split(",") if run.strip()] for side in (first, second)
    ]
    _check_same_cases([run for side in sides for run in side])
    found = paired_bootstrap(*([values for _, values in side] for side in sides))
    if as_json:
        print_json(
            {"metric": metric, "evaluation": name, **dataclasses.asdict(found), "significant": found.significant}
        )
        return
    for label, mean, seeds in (
        ("first", found.first, found.first_by_seed),
        ("second", found.second, found.second_by_seed),
    ):
        print(f"{label:<7} {metric} {mean:.4f}   by seed: {', '.join(f'{s:.4f}' for s in seeds)}")
    ratio = f" ({100 * found.difference / found.second:+.1f} %)" if found.second else ""
    print(f"difference {found.difference:+.4f}{ratio}, 95 % of [{found.low:+.4f}, {found.high:+.4f}], p {found.p:.4f}")
    verdict = "the interval leaves out zero" if found.significant else "no difference can be told"
    print(f"{found.users:,} users: {verdict}")


def _kept(run: Path, name: str, metric: str) -> tuple[tuple[Path, np.ndarray, np.ndarray], np.ndarray]:
    """Who was asked about which target, and the metric's value of each."""
    from capsid.evaluate.kept import kept_values

    users, targets, values = kept_values(run, name, metric)
    return (run, users, targets), values


def _check_same_cases(runs: list) -> None:
    import numpy as np

    (base, users, targets), _ = runs[0]
    for (run, other_users, other_targets), _ in runs[1:]:
        if not (np.array_equal(users, other_users) and np.array_equal(targets, other_targets)):
            raise DataError(f"{base} and {run} were evaluated on different cases", hint="compare runs of the same data")
