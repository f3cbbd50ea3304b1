"""Fits a recommender into a folder, or reuses the finished run that is already there."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsid.base.config import canonical_json, kinds_of
from capsid.base.run_options import RunOptions, Team
from capsid.base.storage.artifacts import MANIFEST, open_folder, read_json, reserved
from capsid.data.dataset import FILE_ORDER, Dataset
from capsid.data.split import Holdout, Split
from capsid.errors import ArtifactError, ConfigError
from capsid.progress import Progress, silent
from capsid.recipe import Recipe
from capsid.recommender import Recommender
from capsid.stored import KIND, generator_entries, stored_recipe

if TYPE_CHECKING:
    from capsid.fit.schedule import TokenizerFrom

LAST = Holdout()


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run's folder, and whether it was fitted now or reused. `seconds` is the time it took now.

    `validation` is the best value of the metric that chose the weights; `selected_by` names that metric.
    """

    run: str
    recipe: str
    data: str
    seed: int
    holdout: str
    order: str
    steps: int
    best_step: int | None
    selected_by: str
    validation: float | None
    tokens_per_second: int | None
    seconds: float
    reused: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `capsid fit --json` prints them."""
        plain = dataclasses.asdict(self)
        plain[f"validation_{plain.pop('selected_by')}"] = plain.pop("validation")
        return plain


def fit_or_reuse(
    recommender: Recommender,
    dataset: Dataset,
    out: str | Path,
    *,
    holdout: Holdout = LAST,
    force: bool = False,
    replace: bool = False,
    progress: Progress = silent,
    run: RunOptions | None = None,
    tokenizer_from: TokenizerFrom | None = None,
) -> RunSummary:
    """Fit and save, unless `out` holds a finished run of the same recipe, seed, data and holdout, which is reused.

    Unfinished work is kept beside the run and resumed; it is removed when the run is finished. Work of other seeds,
    recipes or data stays. A different or damaged run at `out` is replaced only with `force` (which always refits) or
    `replace`. Reusing a run does not fill the given recommender: load the run with `from_pretrained`.

    `tokenizer_from` supplies a tokenizer fitted with the same parts, data and seed. In a team this is what process 0
    does; the others call `assist_fit`.
    """
    began, run = time.monotonic(), run or RunOptions()
    recommender.size_to(dataset)
    split = holdout.split(dataset)
    with reserved(Path(out), kind=KIND, replace=True) as place:
        if not force and _is_done(place, recommender, dataset, split, replace, progress):
            run.team.broadcast(None)
            return summarise(out)
        work = place.parent.absolute() / f".{place.name}.work"
        own = work / recommender.fingerprint(dataset, split)
        # A launcher that starts a killed team again repeats the command, which must not discard what was done.
        if force and not run.team.restarts:
            shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True, exist_ok=True)
        run.team.broadcast(str(work))
        progress.line(outlook(recommender.recipe, dataset, split))
        recommender.fit(dataset, split=split, work=work, progress=progress, run=run, tokenizer_from=tokenizer_from)
        # The others still read the working folder.
        run.team.meet()
        recommender.save_pretrained(place)
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()
    return summarise(out, seconds=time.monotonic() - began, reused=False)


def assist_fit(recommender: Recommender, dataset: Dataset, *, holdout: Holdout = LAST, run: RunOptions) -> None:
    """Take part in `fit_or_reuse` as one of the other processes of a team: train with process 0 and write nothing."""
    recommender.size_to(dataset)
    split = holdout.split(dataset)
    work = run.team.broadcast(None)
    if work is None:
        return
    if not (Path(work) / recommender.fingerprint(dataset, split)).is_dir():
        raise ArtifactError(
            f"process {run.team.rank} does not find the working folder {work} of process 0",
            hint="put --out on a disk that all processes share, and give all of them the same command and data",
        )
    recommender.fit(dataset, split=split, work=Path(work), progress=silent, run=run)
    run.team.meet()


def summarise(run: str | Path, *, seconds: float = 0.0, reused: bool = True) -> RunSummary:
    """The summary of a finished run, read from its folder."""
    about, recipe, log = (read_json(Path(run) / f"{name}.json") for name in ("about", "recipe", "log"))
    last = log[-1] if log else None
    training = recipe["schedule"][-1]["training"] if recipe["schedule"] else {}
    metric = training.get("select", "recall@10") + ("-filtered" if training.get("select_filtered") else "")
    return RunSummary(
        run=str(run),
        recipe=recipe["name"],
        data=about["dataset"],
        seed=about["seed"],
        holdout=about["split"],
        # Runs of earlier versions do not name it.
        order=about.get("order", FILE_ORDER),
        steps=sum(phase["steps"] for phase in generator_entries(log)),
        best_step=last["best_step"] if last else None,
        selected_by=metric,
        validation=last["best_metric"] if last and last["curve"] else None,
        tokens_per_second=round(last["tokens_per_second"]) if last else None,
        seconds=round(seconds, 1),
        reused=reused,
    )


def lanes_of_team(recipe: Recipe, team: Team) -> tuple[str, ...]:
    """Settings that cut batches into lanes which the processes of a team can share."""
    from capsid.train.lanes import lanes_for

    lanes = lanes_for(team.size)
    return tuple(f"schedule.{n}.training.lanes={lanes}" for n in range(len(recipe.schedule)))


def steps_until_best(run: str | Path) -> tuple[str, ...]:
    """Settings that train as many steps, of as many sequences, as `run` did until it validated best.

    For a fit on all data, which has nothing to validate on.
    """
    recipe, log = stored_recipe(run), read_json(Path(run) / "log.json")
    if not recipe.schedule:
        return ()
    if not log or not log[-1]["curve"]:
        raise ConfigError(
            f"{run} was fitted without validation, so it does not know how many steps are best",
            hint="fit a run with --holdout last first",
        )
    settings, entries = [], iter(log)
    for number, phase in enumerate(recipe.schedule):
        own = [next(entries) for _ in dict.fromkeys(stretch.name for stretch in phase.stretches())]
        steps = max(1, own[-1]["best_step"])
        settings += [f"schedule.{number}.training.unit=steps", f"schedule.{number}.training.steps={steps}"]
        settings += [f"schedule.{number}.training.batch_size={phase.training.batch_size}"]
    return tuple(settings)


def outlook(recipe: Recipe, dataset: Dataset, split: Split) -> str:
    """The planned work in one line."""
    # True for every tokenizer: one token per codebook, plus the suffix; an atomic id is one token.
    depths = len(getattr(recipe.tokenizer, "codebooks", (1,))) + (recipe.collisions.kind == "suffix")
    users = len(dataset.users)
    taken = len(split.train.values)
    text = f"{recipe.name} on {dataset.name}: {users:,} users, {len(dataset.items):,} items"
    if not recipe.schedule:
        return f"{text}, {taken:,} training interactions; nothing to train"
    steps = ", then ".join(
        f"{p.training.steps:,} {p.training.unit} of {p.training.batch_size} sequences" for p in recipe.schedule
    )
    return f"{text}, about {taken * depths:,} training tokens per epoch; at most {steps}"


def holds(out: Path, recommender: Recommender, dataset: Dataset, holdout: Holdout) -> bool:
    """Whether a finished run of the recipe, seed and data is at `out`."""
    recommender.size_to(dataset)
    return _is_done(out, recommender, dataset, holdout.split(dataset), True, silent)


def _is_done(
    out: Path, recommender: Recommender, dataset: Dataset, split: Split, replace: bool, progress: Progress
) -> bool:
    """Whether `out` holds the same run, finished. A different run is an error unless it may be replaced."""
    if not (out / MANIFEST).exists():
        return False
    try:
        open_folder(out, kind=KIND)
        about, stored = read_json(out / "about.json"), read_json(out / "recipe.json")
    except ArtifactError as error:
        if not replace:
            raise ArtifactError(error.message, hint="choose another --out, or refit it with --force") from None
        progress.line(f"the run at {out} cannot be used; the new run will replace it when finished: {error.message}")
        return False
    same = (
        about["seed"] == recommender.seed
        and about["dataset_fingerprint"] == dataset.fingerprint
        and about["split"] == split.kind
        and about["split_fingerprint"] == split.fingerprint
        and _read_again(stored, recommender.recipe) == canonical_json(recommender.recipe)
    )
    if not same and not replace:
        raise ArtifactError(
            f"{out} holds another run ({stored['name']} on {about['dataset']}, seed {about['seed']})",
            hint="choose another --out, or replace it with --force",
        )
    return bool(same)


def _read_again(stored: dict[str, Any], recipe: Recipe) -> str | None:
    """A stored recipe as the current code would write it; None if the current code cannot read it.

    It gets the current description: a sentence that was rewritten does not make another run.
    """
    try:
        again = Recipe.from_dict(stored, kinds_of(recipe))
    except ConfigError:
        return None
    again = dataclasses.replace(again, about=recipe.about, paper=recipe.paper, deviations=recipe.deviations)
    return canonical_json(again)
