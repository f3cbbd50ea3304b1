"""Fit a recommender into a folder, or reuse the finished run that is already there."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsid.artifacts import MANIFEST, open_folder, read_json, reserved
from capsid.config import canonical_json, kinds_of
from capsid.data.dataset import Dataset
from capsid.data.split import Holdout, Split
from capsid.errors import ArtifactError, ConfigError
from capsid.progress import Progress, silent
from capsid.recipe import Recipe
from capsid.recommender import Recommender
from capsid.running import RunOptions
from capsid.stored import KIND

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
) -> RunSummary:
    """Fit and save, unless `out` holds a finished run of the same recipe, seed, data and holdout, which is reused.

    Unfinished work is kept beside the run and resumed; it is removed when the run is finished. Work of other seeds,
    recipes or data stays. A different or damaged run at `out` is replaced only with `force` (which always refits) or
    `replace`. Reusing a run does not fill the given recommender: load the run with `from_pretrained`.
    """
    began = time.monotonic()
    recommender.size_to(dataset)
    split = holdout.split(dataset)
    with reserved(Path(out), kind=KIND, replace=True) as place:
        if not force and _is_done(place, recommender, dataset, split, replace, progress):
            return summarise(out)
        work = place.parent / f".{place.name}.work"
        own = work / recommender.fingerprint(dataset, split)
        if force:
            shutil.rmtree(own, ignore_errors=True)
        progress.line(outlook(recommender.recipe, dataset, split))
        recommender.fit(dataset, split=split, work=work, progress=progress, run=run)
        recommender.save_pretrained(place)
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()
    return summarise(out, seconds=time.monotonic() - began, reused=False)


def summarise(run: str | Path, *, seconds: float = 0.0, reused: bool = True) -> RunSummary:
    """The summary of a finished run, read from its folder."""
    about, recipe, log = (read_json(Path(run) / f"{name}.json") for name in ("about", "recipe", "log"))
    last = log[-1] if log else None
    # Recipes of older versions do not name the metric: it was always this one.
    training = recipe["schedule"][-1]["training"] if recipe["schedule"] else {}
    metric = training.get("select", "recall@10") + ("-filtered" if training.get("select_filtered") else "")
    return RunSummary(
        run=str(run),
        recipe=recipe["name"],
        data=about["dataset"],
        seed=about["seed"],
        holdout=about["split"],
        steps=sum(phase["steps"] for phase in log),
        best_step=last["best_step"] if last else None,
        selected_by=metric,
        validation=last["best_metric"] if last and last["curve"] else None,
        tokens_per_second=round(last["tokens_per_second"]) if last else None,
        seconds=round(seconds, 1),
        reused=reused,
    )


def steps_until_best(run: str | Path) -> tuple[str, ...]:
    """Settings that train as many steps, of as many sequences, as `run` did until it validated best.

    For a fit on all data, which has nothing to validate on.
    """
    folder = open_folder(Path(run), kind=KIND)
    recipe, log = Recipe.from_dict(read_json(folder / "recipe.json")), read_json(folder / "log.json")
    if not log or not log[-1]["curve"]:
        raise ConfigError(
            f"{run} was fitted without validation, so it does not know how many steps are best",
            hint="fit a run with --holdout last first",
        )
    settings, entries = [], iter(log)
    for number, phase in enumerate(recipe.schedule):
        *whole, last = [next(entries) for _ in phase.stretches()]
        steps = sum(entry["steps"] for entry in whole) + max(1, last["best_step"])
        settings += [f"schedule.{number}.training.steps={steps}"]
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
    steps = ", then ".join(f"{p.training.steps:,} steps of {p.training.batch_size} sequences" for p in recipe.schedule)
    return f"{text}, about {taken * depths:,} training tokens per epoch; at most {steps}"


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
        # Runs of earlier versions held out the last two items and do not have it.
        and about.get("split_fingerprint", split.fingerprint) == split.fingerprint
        and _read_again(stored, recommender.recipe) == canonical_json(recommender.recipe)
    )
    if not same and not replace:
        raise ArtifactError(
            f"{out} holds another run ({stored['name']} on {about['dataset']}, seed {about['seed']})",
            hint="choose another --out, or replace it with --force",
        )
    return bool(same)


def _read_again(stored: dict[str, Any], recipe: Recipe) -> str | None:
    """A stored recipe as the current code would write it; None if the current code cannot read it."""
    try:
        return canonical_json(Recipe.from_dict(stored, kinds_of(recipe)))
    except ConfigError:
        return None
