"""Simple methods that are fitted beside a run in seconds, and whether the run is better than they are.

They are compared on the test cases after everything has been chosen; nothing is selected by it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from capsid.data.dataset import Dataset
from capsid.data.split import Holdout
from capsid.evaluate.kept import compare_runs, keep_evaluation
from capsid.evaluate.significance import Comparison
from capsid.fit.folder import fit_or_reuse
from capsid.progress import Progress
from capsid.recipes import get_recipe
from capsid.recommender import Recommender

BASELINES = ("popularity", "memory", "item-knn")
METRIC = "recall@10"


@dataclass(frozen=True)
class Beside:
    """A row of the table: a method with its metrics on the test cases, and the run minus it (None: the run itself)."""

    name: str
    run: str
    recall: float
    ndcg: float
    difference: Comparison | None

    @property
    def verdict(self) -> str:
        """Whether the run is better than this baseline."""
        if self.difference is None or self.difference.low > 0:
            return ""
        return "better than this run" if self.difference.high < 0 else "as good as this run"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `capsid fit --json` prints them."""
        return {**asdict(self), "verdict": self.verdict}


def beside(run: Path, dataset: Dataset, *, holdout: Holdout, seed: int, progress: Progress) -> tuple[Beside, ...]:
    """Fit the baselines in a folder beside the run, or reuse them, and compare the run with each."""
    folder = run.with_name(f"{run.name}.baselines")
    encoder = Recommender.from_pretrained(run).recipe.encoder
    rows = [_row(run, None, progress)]
    for name in BASELINES:
        recipe = get_recipe(name)
        # The memory knows the same item vectors as the run, if that has any.
        recipe = replace(recipe, encoder=encoder) if recipe.encoder and encoder else recipe
        method = Recommender.from_recipe(recipe, seed=seed)
        fit_or_reuse(method, dataset, folder / name, holdout=holdout, replace=True, progress=progress)
        rows.append(_row(folder / name, run, progress))
    return tuple(rows)


def _row(place: Path, run: Path | None, progress: Progress) -> Beside:
    """Evaluate a run, and compare the main run with it."""
    method = Recommender.from_pretrained(place)
    result = method.evaluate("test", progress=progress)
    keep_evaluation(place, result, method.catalogue_.split.test)
    difference = None if run is None else compare_runs([run], [place], metric=METRIC)
    return Beside(method.recipe.name, str(place), result.metrics[METRIC], result.metrics["ndcg@10"], difference)
