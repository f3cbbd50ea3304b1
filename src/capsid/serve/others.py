"""Other runs beside the served one: what they recommend for the same history, and their stored metrics.

They are read-only: edits apply to the served run, and the others keep the catalogue of their folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from capsid.answering import Query
from capsid.errors import ArtifactError, DataError
from capsid.evaluate.kept import kept_evaluation
from capsid.evaluate.significance import paired_bootstrap
from capsid.recommender import Recommender
from capsid.serve.questions import titled
from capsid.serve.snapshot import Snapshot

# Draws of the bootstrap: enough for two digits of p.
DRAWS = 2_000


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
    answers = [{"run": path.name, **_answer(recommender, query)} for path, recommender in runs]
    return {"history": titled(snapshot, query.history), "runs": answers}


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
                "differences": {
                    "plain": None if path == served else _differences(path, served, False),
                    "filtered": None if path == served else _differences(path, served, True),
                },
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


def _differences(run: Path, served: Path, filter_history: bool) -> dict[str, dict[str, float]] | None:
    """Every metric minus that of the served run; None where the two were not evaluated on the same users."""
    try:
        kept = [kept_evaluation(path, filter_history=filter_history) for path in (run, served)]
    except ArtifactError:
        return None
    # The bootstrap takes a moment and evaluations rarely change: results are kept under the values themselves.
    values = [{name: values.tobytes() for name, values in one.values.items()} for one in kept]
    if not all(np.array_equal(getattr(kept[0], name), getattr(kept[1], name)) for name in ("users", "targets")):
        return None
    return {name: dict(_difference(values[0][name], values[1][name])) for name in values[0] if name in values[1]}


@lru_cache(maxsize=256)
def _difference(first: bytes, second: bytes) -> tuple[tuple[str, float], ...]:
    told = paired_bootstrap([np.frombuffer(first)], [np.frombuffer(second)], draws=DRAWS)
    return ("difference", told.difference), ("low", told.low), ("high", told.high), ("p", told.p)
