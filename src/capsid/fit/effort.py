"""How much work a fit does: `quick`, `standard` or `best`. A pure function of recipes, and a fit of several trials.

`quick` trains an eighth of the steps at twice the rate, `standard` is the recipe as it is, and `best` fits it with
three dropouts and keeps the run that validates best.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import reserved
from capsid.data.dataset import Dataset
from capsid.data.split import Holdout
from capsid.errors import ConfigError, nearest
from capsid.fit.folder import RunSummary, fit_or_reuse, holds, summarise
from capsid.progress import Progress, duration
from capsid.recipe import Phase, Recipe
from capsid.recommender import Recommender
from capsid.stored import KIND

EFFORTS = ("quick", "standard", "best")
QUICK = 8
DROPOUTS = (0.2, 0.4, 0.6)
_DROPPED = ("dropout", "embedding_dropout", "hidden_dropout")


def with_effort(recipe: Recipe, effort: str) -> dict[str, Recipe]:
    """The recipes to fit, by the name of the trial; there are several with `best` alone."""
    if effort not in EFFORTS:
        raise ConfigError(f"--effort must be {', '.join(EFFORTS)}, got {effort!r}", hint=nearest(effort, EFFORTS))
    if effort == "quick":
        return {"quick": replace(recipe, schedule=tuple(map(_quick, recipe.schedule)))}
    generator: Any = recipe.generator
    names = [name for name in _DROPPED if hasattr(generator, name)]
    if effort == "standard" or not recipe.schedule or not names:
        return {"standard": recipe}
    return {
        f"dropout-{rate}": replace(recipe, generator=replace(generator, **dict.fromkeys(names, rate)))
        for rate in DROPOUTS
    }


def _quick(phase: Phase) -> Phase:
    training = phase.training
    steps, every = (max(1, round(number / QUICK)) for number in (training.steps, training.validate_every))
    rate = 2 * training.learning_rate
    return replace(
        phase,
        training=replace(training, steps=steps, validate_every=every, learning_rate=rate, final_rate=0.05, warmup=0.1),
    )


def fit_best(
    trials: Mapping[str, Recommender],
    dataset: Dataset,
    out: Path,
    *,
    holdout: Holdout,
    force: bool,
    progress: Progress,
    **options: Any,
) -> RunSummary:
    """Fit every trial and save the one that validates best at `out`. A killed fit resumes with the trial it was in."""
    if holdout.kind == "none":
        raise ConfigError(
            "--effort best chooses by validation, and --holdout none holds out nothing",
            hint="fit with --holdout last first, then use --steps-from",
        )
    with reserved(out, kind=KIND, replace=True) as place:
        if not force and any(holds(place, one, dataset, holdout) for one in trials.values()):
            return summarise(out)
        folder = place.parent.absolute() / f".{place.name}.trials"
        found = {}
        for number, (name, one) in enumerate(trials.items(), start=1):
            progress.line(f"trial {number} of {len(trials)}: {name}")
            rest = {"holdout": holdout, "force": force, "progress": progress, **options}
            found[name] = fit_or_reuse(one, dataset, folder / name, replace=True, **rest)
        best = max(found, key=lambda name: found[name].validation or 0.0)
        values = ", ".join(f"{name} {summary.validation:.4f}" for name, summary in found.items())
        seconds = sum(summary.seconds for summary in found.values())
        progress.line(f"validation {found[best].selected_by}: {values}; kept {best}, {duration(seconds)} in all")
        Recommender.from_pretrained(folder / best).save_pretrained(place)
        shutil.rmtree(folder, ignore_errors=True)
    return summarise(out, seconds=seconds, reused=False)
