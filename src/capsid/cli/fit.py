"""`capsid fit`: fit a recipe and write a run. Killed at any moment, the same command goes on where it was."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsid.cli.options import Data, RecipeName, Seed, Settings
from capsid.cli.output import print_json
from capsid.errors import ArtifactError
from capsid.progress import Console, Progress, duration

if TYPE_CHECKING:
    from capsid.data.dataset import Dataset
    from capsid.recipe import Recipe
    from capsid.recommender import Recommender

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def fit(
    recipe: RecipeName,
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The folder to write.")],
    seed: Seed = 0,
    settings: Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Fit anew and replace what stands at RUN.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Fit a recipe on a dataset; last item of every user is for test, the one before for validation.

    Examples:

      capsid fit rq-kmeans --data movies --out runs/films

      capsid fit rq-kmeans --data ./my-shop --out runs/shop --seed 1 --set schedule.0.training.steps=5000

      capsid fit sasrec --data amazon-beauty --out runs/beauty-sasrec
    """
    from capsid.artifacts import reserved
    from capsid.data.sources import load_dataset
    from capsid.recommender import Recommender
    from capsid.stored import KIND

    progress = Console()
    recommender = Recommender.from_recipe(recipe, seed=seed, settings=settings or ())
    with reserved(out, kind=KIND, replace=True):
        dataset = load_dataset(data, progress=progress)
        began = time.monotonic()
        reused = fit_or_reuse(recommender, dataset, out, force=force, progress=progress)
    if reused:
        progress.line(f"{out} is finished already, with the same recipe, seed and data; --force fits it anew")
    seconds = 0.0 if reused else time.monotonic() - began
    if as_json:
        print_json(_summary(out, seconds))
    else:
        _tell(out, seconds)


def fit_or_reuse(
    recommender: Recommender,
    dataset: Dataset,
    out: Path,
    *,
    force: bool = False,
    replace: bool = False,
    progress: Progress,
) -> bool:
    """Fit and save, unless the very same run stands there whole: then return True and leave all as it is.

    Unfinished work is kept beside the run and taken up again; it goes when the run is whole. Work of other seeds,
    recipes or data stays. Another run at `out`, or a damaged one, is replaced only with `force` or `replace`.
    """
    from capsid.artifacts import reserved
    from capsid.data.split import leave_one_out
    from capsid.stored import KIND

    with reserved(out, kind=KIND, replace=True) as place:
        if not force and _is_done(place, recommender, dataset, replace, progress):
            return True
        work = place.parent / f".{place.name}.work"
        own = work / recommender.fingerprint(dataset, leave_one_out(dataset))
        if force:
            shutil.rmtree(own, ignore_errors=True)
        progress.line(estimate(recommender.recipe, dataset))
        recommender.fit(dataset, work=work, progress=progress)
        recommender.save_pretrained(place)
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()
    return False


def estimate(recipe: Recipe, dataset: Dataset) -> str:
    """What lies ahead, in one line."""
    # The same for every tokenizer we have: one token a codebook, and the suffix; an atomic id is one token.
    depths = len(getattr(recipe.tokenizer, "codebooks", (1,))) + (recipe.collisions.kind == "suffix")
    users = len(dataset.users)
    taken = max(dataset.interactions - 2 * users, 0)
    text = f"{recipe.name} on {dataset.name}: {users:,} users, {len(dataset.items):,} items"
    if not recipe.schedule:
        return f"{text}, {taken:,} training interactions; nothing to train"
    steps = ", then ".join(f"{p.training.steps:,} steps of {p.training.batch_size} sequences" for p in recipe.schedule)
    return f"{text}, about {taken * depths:,} training tokens an epoch; at most {steps}"


def _is_done(out: Path, recommender: Recommender, dataset: Dataset, replace: bool, progress: Progress) -> bool:
    """Whether the very same run stands there, whole. Another one is not replaced without being asked."""
    from capsid.artifacts import MANIFEST, open_folder, read_json
    from capsid.config import canonical_json

    if not (out / MANIFEST).exists():
        return False
    try:
        open_folder(out, kind="run")
        about, stored = read_json(out / "about.json"), read_json(out / "recipe.json")
    except ArtifactError as error:
        if not replace:
            raise ArtifactError(error.message, hint="choose another --out, or fit it anew with --force") from None
        progress.line(f"what stands at {out} cannot be used and is replaced when the new run is whole: {error.message}")
        return False
    same = (
        about["seed"] == recommender.seed
        and about["dataset_fingerprint"] == dataset.fingerprint
        and canonical_json(stored) == canonical_json(recommender.recipe)
    )
    if not same and not replace:
        raise ArtifactError(
            f"{out} holds another run ({stored['name']} on {about['dataset']}, seed {about['seed']})",
            hint="choose another --out, or replace it with --force",
        )
    return bool(same)


def _summary(out: Path, seconds: float) -> dict[str, Any]:
    from capsid.artifacts import read_json

    about, recipe, log = (read_json(out / f"{name}.json") for name in ("about", "recipe", "log"))
    last = log[-1] if log else None
    return {
        "run": str(out),
        "recipe": recipe["name"],
        "data": about["dataset"],
        "seed": about["seed"],
        "steps": sum(phase["steps"] for phase in log),
        "best_step": last["best_step"] if last else None,
        "validation_recall@10": last["best_metric"] if last and last["curve"] else None,
        "tokens_per_second": round(last["tokens_per_second"]) if last else None,
        "seconds": round(seconds, 1),
    }


def _tell(out: Path, seconds: float) -> None:
    about = _summary(out, seconds)
    took = f", {duration(seconds)}" if seconds else ""
    print(f"{about['recipe']} on {about['data']}, seed {about['seed']}{took}")
    if about["validation_recall@10"] is not None:
        print(f"validation Recall@10 {about['validation_recall@10']:.4f} at step {about['best_step']:,}")
    print(f"run: {out}")
    print("next:")
    print(f"  capsid evaluate {out}")
    print(f"  capsid recommend {out} --history ID,ID,...")
    print(f"  capsid tokenizer report {out}")
