"""`capsid refit`: continue a run on newer data. Known items keep their ids; the verb reports what changed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.cli.input_files import all_settings
from capsid.cli.options import (
    CHECKPOINT_EVERY,
    CheckpointEvery,
    ConfigFile,
    Data,
    Force,
    HoldoutKind,
    HoldoutShare,
    HoldoutTarget,
    Settings,
    Ties,
    check_share,
    run_options,
    single_verb,
)
from capsid.cli.output import print_json, say
from capsid.progress import Console, duration

if TYPE_CHECKING:
    from capsid.fit.refit import Refitted

app = single_verb()


@app.command()
def refit(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run to continue from; it is not changed.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="RUN2", help="The folder to write.")],
    holdout: HoldoutKind = "last",
    holdout_share: HoldoutShare = 0.1,
    holdout_target: HoldoutTarget = "last",
    ties: Ties = None,
    settings: Settings = None,
    config: ConfigFile = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary and the churn as JSON.")] = False,
) -> None:
    """Refit a run on newer data. The data must hold all present interactions, not only the new ones.

    Known items keep their ids, new items get ids as with `tokenizer add`, and items that are no longer in the data
    are retired. Training starts from the old weights and takes a quarter of the steps at a lower learning rate.
    A stopped refit resumes.

    Examples:

      capsid refit runs/shop --data ./my-shop-june --out runs/shop-june

      capsid refit runs/live --data ./my-shop-june --out runs/live-june --holdout none
    """
    from capsid.base.storage.artifacts import reserved
    from capsid.data.sources import load_dataset
    from capsid.data.split import Holdout
    from capsid.fit.refit import refit as refit_run
    from capsid.stored import KIND

    progress, run = Console(), run_options(checkpoint_every)
    held = Holdout(holdout, check_share(holdout_share), holdout_target)
    given = all_settings(config, settings)
    with reserved(out, kind=KIND, replace=force):
        dataset = load_dataset(data, ties=ties, progress=progress)
        found = refit_run(path, dataset, out, settings=given, holdout=held, replace=force, progress=progress, run=run)
    if as_json:
        print_json({**found.summary.to_dict(), "churn": asdict(found.churn)})
    else:
        _tell(found)


def _tell(found: Refitted) -> None:
    summary, churn = found.summary, found.churn
    say(f"{summary.recipe} on {summary.data}, {duration(summary.seconds)}")
    say(
        f"ids: {churn.changed_ids:,} of {churn.known_items:,} known items changed, {churn.new_items:,} new items, "
        f"{churn.retired_items:,} retired"
    )
    say(
        f"lists of {churn.users:,} users: {churn.overlap:.0%} of the first {churn.k} items are the same, "
        f"{churn.same_first:.0%} have the same first item"
    )
    if summary.validation is not None:
        say(f"validation {summary.selected_by} {summary.validation:.4f} at step {summary.best_step:,}")
    say(f"run: {summary.run}")
