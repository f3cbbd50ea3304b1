"""How much work a fit does: `quick`, `standard` or `best`. Pure functions of recipes, and a fit of several trials.

Of a recipe that trains, `quick` takes an eighth of the steps at twice the rate, and `best` tries three dropouts.
Without a recipe, `quick` is the recommended one, `standard` tries three penalties of it, and `best` also a network.
Of several trials the one that validates best is kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import read_json, reserved, write_json
from capsid.data.dataset import Dataset
from capsid.data.split import Holdout
from capsid.errors import ConfigError, nearest
from capsid.fit.folder import RunSummary, fit_or_reuse, holds, summarise
from capsid.progress import Progress
from capsid.recipe import Phase, Recipe
from capsid.recipes import RECOMMENDED, get_recipe
from capsid.recommender import Recommender
from capsid.stored import KIND

EFFORTS = ("quick", "standard", "best")
QUICK = 8
DROPOUTS = (0.2, 0.4, 0.6)
METRIC = "ndcg@10"
PENALTIES = (50.0, 200.0, 1_000.0)
_DROPPED = ("dropout", "embedding_dropout", "hidden_dropout")


def recommended(effort: str) -> dict[str, Recipe]:
    """What is fitted if no recipe is named, by the name of the trial."""
    first = get_recipe(RECOMMENDED)
    if effort == "quick":
        return {first.name: first}
    trials = with_effort(first, "best")
    return trials if _checked(effort) == "standard" else {**trials, **with_effort(get_recipe("sasrec-memory"), "best")}


def with_effort(recipe: Recipe, effort: str) -> dict[str, Recipe]:
    """The recipes to fit, by the name of the trial; there are several with `best` alone."""
    if _checked(effort) == "quick":
        return {"quick": replace(recipe, schedule=tuple(map(_quick, recipe.schedule)))}
    generator: Any = recipe.generator
    dropped = [name for name in _DROPPED if hasattr(generator, name)] if recipe.schedule else []
    if effort == "best" and dropped:
        tried = {f"dropout {rate}": dict.fromkeys(dropped, rate) for rate in DROPOUTS}
    elif effort == "best" and hasattr(generator, "regularisation"):
        tried = {f"penalty {penalty:g}": {"regularisation": penalty} for penalty in PENALTIES}
    else:
        return {"standard": recipe}
    return {
        f"{recipe.name}, {name}": replace(recipe, generator=replace(generator, **changes))
        for name, changes in tried.items()
    }


def _checked(effort: str) -> str:
    if effort not in EFFORTS:
        raise ConfigError(f"--effort must be {', '.join(EFFORTS)}, got {effort!r}", hint=nearest(effort, EFFORTS))
    return effort


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
            "several trials are chosen by validation, and --holdout none holds out nothing",
            hint="fit with --holdout last first, then use --steps-from",
        )
    began = time.monotonic()
    with reserved(out, kind=KIND, replace=True) as place:
        # Names the trials of the run at `out`: a run alone may be one of them that nothing was compared with.
        record = place.with_name(f"{place.name}.trials.json")
        before = list(read_json(record)["tried"]) if record.exists() else []
        if not force and before == list(trials) and any(holds(place, t, dataset, holdout) for t in trials.values()):
            return summarise(out)
        folder = place.parent.absolute() / f".{place.name}.trials"
        values = {}
        for number, (name, one) in enumerate(trials.items(), start=1):
            progress.line(f"trial {number} of {len(trials)}: {name}")
            own = folder / str(number)
            fit_or_reuse(one, dataset, own, holdout=holdout, force=force, replace=True, progress=progress, **options)
            values[own, name] = Recommender.from_pretrained(own).evaluate("valid", progress=progress).metrics[METRIC]
        (kept, name), best = max(values.items(), key=lambda pair: pair[1])
        shown = "; ".join(f"{one} {value:.4f}" for (_, one), value in values.items())
        progress.line(f"valid {METRIC}: {shown}; kept: {name}")
        Recommender.from_pretrained(kept).save_pretrained(place)
        write_json(
            record, {"metric": METRIC, "tried": {one: value for (_, one), value in values.items()}, "kept": name}
        )
        shutil.rmtree(folder, ignore_errors=True)
    summary = summarise(out, seconds=time.monotonic() - began, reused=False)
    return replace(summary, selected_by=f"{METRIC}-filtered", validation=best)
