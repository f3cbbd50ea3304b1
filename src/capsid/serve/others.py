"""Other runs beside the one that is served: what they recommend after the same history, and their kept metrics.

They are read-only: edits apply to the served run, and the others keep the catalogue of their folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capsid.answering import Query
from capsid.errors import ArtifactError, DataError
from capsid.evaluate.kept import kept_evaluation
from capsid.recommender import Recommender
from capsid.serve.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class OtherRun:
    """A run to compare with."""

    path: Path
    recommender: Recommender

    @classmethod
    def load(cls, path: str) -> OtherRun:
        """Read a run's folder."""
        return cls(Path(path), Recommender.from_pretrained(path))


def compared(served: Path, snapshot: Snapshot, others: list[OtherRun], query: Query) -> dict[str, Any]:
    """What each run recommends. A run that cannot answer (it lacks the items of an allow list) says why."""
    runs = [(served, snapshot.recommender), *((other.path, other.recommender) for other in others)]
    return {"runs": [{"run": path.name, **_answer(recommender, query)} for path, recommender in runs]}


def _answer(recommender: Recommender, query: Query) -> dict[str, Any]:
    about: dict[str, Any] = {"recipe": recommender.recipe.name, "items": [], "personal": False, "problem": None}
    try:
        (found,) = recommender.answerer.answer([query])
    except DataError as error:
        return {**about, "problem": error.message}
    ranked = zip(found.items, found.titles, found.scores)
    items = [{"item": item, "title": title, "score": score} for item, title, score in ranked]
    return {**about, "items": items, "personal": found.personal}


def listed(served: Path, snapshot: Snapshot, others: list[OtherRun]) -> dict[str, Any]:
    """All runs, with their metrics on the test split if they were evaluated."""
    runs = [(served, snapshot.recommender), *((other.path, other.recommender) for other in others)]
    return {
        "runs": [
            {
                "run": path.name,
                "served": path == served,
                "recipe": recommender.recipe.name,
                "dataset": recommender.catalogue_.name,
                "seed": recommender.seed,
                "items": len(recommender.catalogue_.items),
                "metrics": {"plain": _metrics(path, False), "filtered": _metrics(path, True)},
            }
            for path, recommender in runs
        ]
    }


def _metrics(run: Path, filter_history: bool) -> dict[str, dict[str, float]] | None:
    """Mean and standard error over users of every kept metric; None where the run was not evaluated."""
    try:
        kept = kept_evaluation(run, filter_history=filter_history)
    except ArtifactError:
        return None
    return {
        name: {"mean": float(np.mean(values)), "error": float(np.std(values) / max(len(values), 1) ** 0.5)}
        for name, values in kept.values.items()
    }
