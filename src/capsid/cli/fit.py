"""`capsid fit`: fit a recipe and write a run. If it is killed, the same command resumes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    RecipeName,
    Seed,
    Settings,
    Ties,
    check_share,
    run_options,
    single_verb,
)
from capsid.cli.output import print_json, say
from capsid.progress import Console, Progress, duration, silent

if TYPE_CHECKING:
    from capsid.base.run_options import RunOptions, Team
    from capsid.data.split import Holdout
    from capsid.fit.folder import RunSummary
    from capsid.recommender import Recommender

app = single_verb()
ALL_STEPS = "nothing is held out, so all steps of the recipe are trained; --steps-from RUN sets their number"
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

ALL_STEPS = "nothing is held out, so all steps of the recipe are trained; --steps-from RUN sets their number"


@app.command()
def fit(
    recipe: RecipeName,
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The folder to write.")],
    seed: Seed = 0,
    vectors: OwnVectors = None,
    settings: Settings = None,
    config: ConfigFile = None,
    exact: Exact = False,
    holdout: HoldoutKind = "last",
    holdout_share: HoldoutShare = 0.1,
    holdout_target: HoldoutTarget = "last",
    ties: Ties = None,
    steps_from: StepsFrom = None,
    tokenizer: TokenizerFolder = None,
    device: Device = "cpu",
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    force: Annotated[bool, typer.Option("--force", help="Refit and replace the existing RUN.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Fit a recipe on a dataset. Each user's last item is held out for the test, the one before for validation.

    Interactions of a user with equal times are shuffled first, always in the same way; `--ties file` keeps the order of
    the file.

    `--holdout time` holds out everything after a date, `cold` a sample of items, and `none` nothing. Use `none` for
    production, with `--steps-from` an earlier run.

    Codebooks, batches, steps and validations adapt to the size of the data, unless --set or --config sets them.

    Under torchrun several processes train together; the weights are bit-identical with 1, 2 or 4 of them.

    Examples:

      capsid fit rq-kmeans --data movies --out runs/films

      capsid fit rq-kmeans --data ./my-shop --out runs/shop --seed 1 --set schedule.0.training.steps=5000

      capsid fit sasrec --data amazon-beauty --out runs/beauty-sasrec

      capsid fit capsid --data ./my-shop --out runs/shop --config shop.toml

      capsid fit capsid --data ./my-shop --out runs/shop --vectors my-embeddings.npz

      capsid fit capsid --data ./my-shop --out runs/live --holdout none --steps-from runs/shop

      torchrun --nproc-per-node 2 -m capsid fit capsid --data ./my-shop --out runs/shop --tokenizer ids
    """
    from capsid.base.devices import choose
    from capsid.data.split import Holdout
    from capsid.recommender import Recommender
    from capsid.train.team import joined

    held = Holdout(holdout, check_share(holdout_share), holdout_target)
    chosen = choose(device)
    with joined(chosen) as team:
        progress = Console() if team.rank == 0 else silent
        run = run_options(checkpoint_every, team, str(chosen))
        given = (*_derived(recipe, team, steps_from), *all_settings(config, settings))
        recommender = Recommender.from_recipe(
            recipe, seed=seed, settings=given, vectors=vectors, sizes="exact" if exact else "auto"
        )
        if holdout == "none" and steps_from is None:
            progress.line(ALL_STEPS)
        summary = _fit(recommender, data, ties, out, held, tokenizer, force, progress, run)
    if summary is not None and summary.reused:
        progress.line(f"{out} is already finished with the same recipe, seed and data; --force refits it")
    if summary is not None:
        print_json(summary.to_dict()) if as_json else _tell(summary)


def _derived(recipe: str, team: Team, steps_from: Path | None) -> tuple[str, ...]:
    """Settings that follow from the team and from `--steps-from`; those given by the user take precedence."""
    from capsid.fit.folder import lanes_of_team, steps_until_best
    from capsid.train.team import launched

    lanes = lanes_of_team(recipe, team) if launched() else ()
    return (*lanes, *(() if steps_from is None else steps_until_best(steps_from)))


def _fit(
    recommender: Recommender,
    data: str,
    ties: str | None,
    out: Path,
    holdout: Holdout,
    tokenizer: Path | None,
    force: bool,
    progress: Progress,
    run: RunOptions,
) -> RunSummary | None:
    """Fit and write the run. Process 0 of a team does this; the others help it, write nothing and have no summary."""
    from capsid.base.storage.artifacts import reserved
    from capsid.data.sources import load_dataset
    from capsid.fit.folder import assist_fit, fit_or_reuse
    from capsid.fit.tokenizers import tokenizer_source
    from capsid.stored import KIND

    if run.team.rank:
        assist_fit(recommender, load_dataset(data, ties=ties, progress=progress), holdout=holdout, run=run)
        return None
    with reserved(out, kind=KIND, replace=True):
        dataset = load_dataset(data, ties=ties, progress=progress)
        ids = None if tokenizer is None else tokenizer_source(tokenizer, dataset, holdout, seed=recommender.seed)
        return fit_or_reuse(
            recommender,
            dataset,
            out,
            holdout=holdout,
            force=force,
            progress=progress,
            run=run,
            tokenizer_from=ids,
        )


def _tell(summary: RunSummary) -> None:
    took = f", {duration(summary.seconds)}" if summary.seconds else ""
    say(f"{summary.recipe} on {summary.data}, seed {summary.seed}, order of ties: {summary.order}{took}")
    if summary.validation is not None:
        say(f"validation {summary.selected_by} {summary.validation:.4f} at step {summary.best_step:,}")
    say(f"run: {summary.run}")
    say("next:")
    if summary.holdout != "none":
        say(f"  capsid evaluate {summary.run}")
    say(f"  capsid recommend {summary.run} --history ID,ID,...")
    say(f"  capsid tokenizer report {summary.run}")
