"""`capsid fit`: fit a recipe and write a run. If it is killed, the same command resumes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsid.cli.input_files import all_settings
from capsid.cli.options import (
    CHECKPOINT_EVERY,
    CheckpointEvery,
    ConfigFile,
    Data,
    Device,
    Exact,
    HoldoutKind,
    HoldoutShare,
    HoldoutTarget,
    OwnVectors,
    Seed,
    Settings,
    Ties,
    check_share,
    run_options,
    single_verb,
)
from capsid.cli.output import AsJson, print_json, print_table, say
from capsid.cli.own_tables import Columns, DropDuplicates, SkipBadRows, Text, table_options, write_skipped
from capsid.errors import ConfigError
from capsid.progress import Console, Progress, duration, silent

if TYPE_CHECKING:
    from capsid.base.run_options import RunOptions, Team
    from capsid.data.dataset import Dataset
    from capsid.data.split import Holdout
    from capsid.data.table_options import TableOptions
    from capsid.fit.baselines import Beside
    from capsid.fit.folder import RunSummary
    from capsid.recipe import Recipe
    from capsid.recommender import Recommender

app = single_verb()
ALL_STEPS = "nothing is held out, so all steps of the recipe are trained; --steps-from RUN sets their number"
Named = Annotated[
    str | None,
    typer.Argument(metavar="RECIPE", help="A recipe (`capsid recipes list`); default: the recommended one."),
]
Effort = Annotated[
    str,
    typer.Option(
        "--effort",
        metavar="EFFORT",
        help="How much work: quick, standard or best (several trials; the best by validation is kept).",
    ),
]
StepsFrom = Annotated[
    Path | None,
    typer.Option("--steps-from", metavar="RUN", help="Train for as many steps as RUN took to its best validation."),
]
TokenizerFolder = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="TOK", help="Use the ids of `capsid tokenizer fit` with the same recipe, data and seed."
    ),
]


@app.command()
def fit(
    recipe: Named = None,
    *,
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The folder to write.")],
    seed: Seed = 0,
    effort: Effort = "standard",
    vectors: OwnVectors = None,
    settings: Settings = None,
    config: ConfigFile = None,
    exact: Exact = False,
    holdout: HoldoutKind = "last",
    holdout_share: HoldoutShare = 0.1,
    holdout_target: HoldoutTarget = "last",
    ties: Ties = None,
    columns: Columns = None,
    text: Text = None,
    skip_bad_rows: SkipBadRows = False,
    drop_duplicates: DropDuplicates = False,
    steps_from: StepsFrom = None,
    tokenizer: TokenizerFolder = None,
    device: Device = "cpu",
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    force: Annotated[bool, typer.Option("--force", help="Refit and replace the existing RUN.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit a recipe on a dataset. Each user's last item is held out for the test, the one before for validation.

    Without RECIPE the recommended one is fitted, and compared with popularity, memory and item-knn, which are fitted
    in RUN.baselines.

    Interactions of a user with equal times are shuffled first, always in the same way (`--ties file`: as in the file).
    `--holdout time` holds out everything after a date, `cold` a sample of items, and `none` nothing, for production.
    Sizes adapt to the data unless --set or --config sets them.

    Examples:

      capsid fit --data ./my-shop --out runs/shop

      capsid fit rq-kmeans --data ./my-shop --out runs/rq --seed 1 --set schedule.0.training.steps=5000

      capsid fit capsid --data ./my-shop --out runs/ids --config shop.toml --vectors my-embeddings.npz

      capsid fit --data ./my-shop --out runs/live --holdout none --steps-from runs/shop

      torchrun --nproc-per-node 2 -m capsid fit capsid --data ./my-shop --out runs/ids --tokenizer ids
    """
    from capsid.base.devices import choose
    from capsid.data.split import Holdout
    from capsid.recommender import Recommender
    from capsid.train.team import joined

    held, chosen = Holdout(holdout, check_share(holdout_share), holdout_target), choose(device)
    with joined(chosen) as team:
        progress = Console() if team.rank == 0 else silent
        recipes = _recipes(recipe, effort, steps_from, held)
        given = (*_derived(next(iter(recipes.values())), team, steps_from), *all_settings(config, settings))
        rest: dict[str, Any] = {"seed": seed, "settings": given, "vectors": vectors}
        rest["sizes"] = "exact" if exact else "auto"
        trials = {name: Recommender.from_recipe(one, **rest) for name, one in recipes.items()}
        if holdout == "none" and steps_from is None:
            progress.line(ALL_STEPS)
        run = run_options(checkpoint_every, team, str(chosen))
        tables = table_options(columns, text, skip_bad_rows, drop_duplicates)
        job = _Job(trials, data, tables, ties, out, held, tokenizer, force, progress, run)
        summary = job.fit()
        rows = job.beside() if summary is not None and recipe is None and holdout != "none" else ()
    if summary is not None:
        _tell(summary, rows, as_json)


def _recipes(name: str | None, effort: str, steps_from: Path | None, held: Holdout) -> dict[str, Recipe]:
    """The recipes to fit, by the name of the trial: that of an earlier run if no other is named."""
    from capsid.fit.effort import recommended, with_effort
    from capsid.recipes import get_recipe
    from capsid.stored import stored_recipe

    if name is not None:
        return with_effort(get_recipe(name), effort)
    if steps_from is not None:
        return {"as before": stored_recipe(steps_from)}
    return recommended("quick" if held.kind == "none" else effort)


def _derived(recipe: Recipe, team: Team, steps_from: Path | None) -> tuple[str, ...]:
    """Settings that follow from the team and from `--steps-from`; those given by the user take precedence."""
    from capsid.fit.folder import lanes_of_team, steps_until_best
    from capsid.train.team import launched

    lanes = lanes_of_team(recipe, team) if launched() else ()
    return (*lanes, *(() if steps_from is None else steps_until_best(steps_from)))


@dataclass(frozen=True)
class _Job:
    """One fit as the options say, and the baselines beside it."""

    trials: dict[str, Recommender]
    data: str
    tables: TableOptions
    ties: str | None
    out: Path
    holdout: Holdout
    tokenizer: Path | None
    force: bool
    progress: Progress
    run: RunOptions

    @cached_property
    def dataset(self) -> Dataset:
        """The data, loaded once."""
        from capsid.data.findings import Findings
        from capsid.data.sources import load_dataset

        findings = Findings(whole=self.tables.skip_bad)
        dataset = load_dataset(
            self.data, ties=self.ties, options=self.tables, findings=findings, progress=self.progress
        )
        write_skipped(findings, self.out, self.progress)
        return dataset

    def fit(self) -> RunSummary | None:
        """Fit and write the run. Process 0 of a team does this; the others help it, write nothing, have no summary."""
        from capsid.base.storage.artifacts import reserved
        from capsid.fit.effort import fit_best
        from capsid.fit.folder import assist_fit, fit_or_reuse
        from capsid.fit.tokenizers import tokenizer_source
        from capsid.stored import KIND

        (first, *others) = self.trials.values()
        if others and self.run.team.size > 1:
            raise ConfigError("torchrun fits one run, not several trials", hint="name a recipe, or use --effort quick")
        if self.run.team.rank:
            assist_fit(first, self.dataset, holdout=self.holdout, run=self.run)
            return None
        with reserved(self.out, kind=KIND, replace=True):
            ids = (
                None
                if self.tokenizer is None
                else tokenizer_source(self.tokenizer, self.dataset, self.holdout, seed=first.seed)
            )
            options: dict[str, Any] = {"force": self.force, "run": self.run, "tokenizer_from": ids}
            options |= {"holdout": self.holdout, "progress": self.progress}
            if others:
                summary = fit_best(self.trials, self.dataset, self.out, **options)
            else:
                summary = fit_or_reuse(first, self.dataset, self.out, **options)
        if summary.reused:
            self.progress.line(f"{self.out} is already finished with the same recipe, seed and data; --force refits it")
        return summary

    def beside(self) -> tuple[Beside, ...]:
        """The run and the baselines, compared."""
        from capsid.fit.baselines import beside

        (first, *_) = self.trials.values()
        rest: dict[str, Any] = {"seed": first.seed, "progress": self.progress}
        return beside(self.out, self.dataset, holdout=self.holdout, **rest)


def _tell(summary: RunSummary, rows: Sequence[Beside], as_json: bool) -> None:
    if as_json:
        print_json({**summary.to_dict(), **({"baselines": [row.to_dict() for row in rows[1:]]} if rows else {})})
        return
    took = f", {duration(summary.seconds)}" if summary.seconds else ""
    say(f"{summary.recipe} on {summary.data}, seed {summary.seed}, order of ties: {summary.order}{took}")
    if summary.validation is not None:
        at = "" if summary.best_step is None else f" at step {summary.best_step:,}"
        say(f"validation {summary.selected_by} {summary.validation:.4f}{at}")
    say(f"run: {summary.run}")
    _compare(rows)
    say("next:")
    if summary.holdout != "none":
        say(f"  capsid evaluate {summary.run}")
    say(f"  capsid recommend {summary.run} --history ID,ID,...")
    say(f"  capsid tokenizer report {summary.run}")


def _compare(rows: Sequence[Beside]) -> None:
    """The table of the run and its baselines, and one sentence about them."""
    if not rows:
        return
    say("test, items of the history left out:")
    table = []
    for row in rows:
        gap = row.difference
        shown = "" if gap is None else f"{gap.difference:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})"
        table.append([row.name, row.recall, row.ndcg, shown])
    print_table(["", "Recall@10", "NDCG@10", "this run minus it, Recall@10, 95 %"], table)
    doubted = [f"{row.name} is {row.verdict}" for row in rows if row.verdict]
    say("; ".join(doubted) if doubted else f"{rows[0].name} is better than all three")
