"""`capsid tune`: search settings of a recipe by validation. If it is killed, the same command resumes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.input_files import all_settings
from capsid.cli.options import ConfigFile, Data, RecipeName, Seed, Settings, Ties, single_verb
from capsid.cli.output import AsJson, print_json, print_table, say
from capsid.errors import ConfigError
from capsid.progress import Console

app = single_verb()
SHOWN = 10


@app.command()
def tune(
    recipe: RecipeName,
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder of the search.")],
    trials: Annotated[int, typer.Option("--trials", metavar="N", help="How many settings to try.")] = 20,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="part.field=LOW:HIGH[:log]", help="Also search this setting, or within these bounds."
        ),
    ] = None,
    metric: Annotated[str, typer.Option("--metric", metavar="METRIC", help="recall@10 or ndcg@10.")] = "ndcg@10",
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Processes that share the trials.")] = 1,
    seed: Seed = 0,
    settings: Settings = None,
    config: ConfigFile = None,
    ties: Ties = None,
    as_json: AsJson = False,
) -> None:
    """Search settings of a recipe by their validation, history filtered; the test split is not read.

    FOLDER gets best.toml, which `capsid fit RECIPE --config` takes, and report.md. Trials whose validation stays below
    the median of the others are pruned. More --trials later go on with the same search.

    Examples:

      capsid tune sasrec-memory --data ./my-shop --out tuned --trials 20

      capsid tune ease --data movies --out tuned-ease --trials 10 --range generator.regularisation=50:2000:log

      capsid fit sasrec-memory --data ./my-shop --out runs/shop --config tuned/best.toml
    """
    for name, number in (("--trials", trials), ("--workers", workers)):
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, got {number}")
    if metric not in ("recall@10", "ndcg@10"):
        raise ConfigError(f"--metric must be recall@10 or ndcg@10, got {metric!r}")
    from capsid.data.sources import load_dataset
    from capsid.data.split import Holdout
    from capsid.fit.ranges import Range, ranges_of
    from capsid.fit.tune import Search
    from capsid.recipes import get_recipe

    chosen, given = get_recipe(recipe), all_settings(config, settings)
    wanted = ranges_of(chosen.with_settings(given), tuple(map(Range.parse, ranges or ())))
    progress = Console()
    dataset = load_dataset(data, ties=ties, progress=progress)
    search = Search(chosen, dataset, Holdout(), wanted, seed, given, metric, progress)
    helpers = [_helper() for _ in range(workers - 1)]
    try:
        found = search.run(out, trials)
    except BaseException:
        for helper in helpers:
            helper.terminate()
        raise
    for helper in helpers:
        helper.wait()
    if as_json:
        print_json(found.to_dict())
        return
    names = [r.name for r in wanted]
    rows = [
        [str(t.number), "pruned" if t.value is None else f"{t.value:.4f}", *(f"{t.settings[n]:.3g}" for n in names)]
        for t in found.trials[:SHOWN]
    ]
    print_table(["trial", f"valid {metric}", *names], rows)
    say(f"next:\n  capsid fit {recipe} --data {data} --out RUN --config {found.config}")


def _helper() -> subprocess.Popen[bytes]:
    """The same command as a process of its own, without helpers and without output."""
    command = [sys.executable, "-m", "capsid", *sys.argv[1:], "--workers", "1", "--json"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
