"""Estimates how long a cell will take: from finished cells of the same method, else from a table of rough speeds.

Each estimate names its basis. Estimates are used to plan within a budget; nothing else depends on them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from capsid.bench.cells import Job
from capsid.bench.results import Result

# One thread of a plain desktop core, both cores busy: tokens per second in training, by kind of generator.
TOKENS_PER_SECOND = {"transformer": 4_000.0, "timeline": 8_000.0}
SLOWEST = 4_000.0
USERS_PER_SECOND = 150.0
# Seconds per item for text vectors and a trained tokenizer; seconds to start a process and read the data.
SECONDS_PER_ITEM = 0.01
START = 10.0
# An unfinished cell has at least this share of its estimate left.
LEAST_LEFT = 0.1


@dataclass(frozen=True)
class Estimate:
    """`seconds` left, and the `basis` of the estimate."""

    seconds: float
    basis: str


def estimate(job: Job, finished: Sequence[Result], spent: float = 0.0) -> Estimate:
    """Estimate a job that has already run for `spent` seconds."""
    same = [r for r in finished if r.method == job.cell.method and r.taken_from is None and r.trained_by is None]
    # The closest match available: same row and data, same data, any.
    for kept in (
        [r for r in same if (r.label, r.dataset) == (job.cell.label, job.cell.dataset)],
        [r for r in same if r.dataset == job.cell.dataset],
        same,
    ):
        if kept:
            whole = statistics.median(_scaled(result, job) for result in kept)
            noun = "cell" if len(kept) == 1 else "cells"
            basis = f"{len(kept)} finished {noun} of {job.cell.method}"
            break
    else:
        whole, basis = rough_seconds(job), "table of rough speeds"
    return Estimate(max(whole - spent, LEAST_LEFT * whole), basis)


def rough_seconds(job: Job) -> float:
    """From the table: training, validation, evaluation, vectors and ids."""
    recipe, data = job.recipe, job.data
    depths = len(getattr(recipe.tokenizer, "codebooks", (1,))) + (recipe.collisions.kind == "suffix")
    length = min(max(data.interactions / max(data.users, 1) - 2, 1), getattr(recipe.generator, "history", 50))
    speed = TOKENS_PER_SECOND.get(recipe.generator.kind, SLOWEST)
    seconds = START + job.sequences * length * depths / speed
    for phase in recipe.schedule:
        looks = phase.training.steps / phase.training.validate_every
        seconds += looks * min(phase.training.validation_users, data.users) / USERS_PER_SECOND
    seconds += len(job.cell.evaluations) * data.users / USERS_PER_SECOND
    return seconds + (SECONDS_PER_ITEM * data.items if recipe.encoder is not None else 0.0)


def _scaled(result: Result, job: Job) -> float:
    """Scale training by sequences and the rest by interactions. A run that stopped early is assumed to be typical."""
    training = float(result.seconds.get("training", 0.0))
    wall = float(result.seconds.get("wall", training))
    planned = _planned(result)
    interactions = job.data.interactions / max(float(result.data["interactions"]), 1.0)
    more = job.sequences / planned if planned else 1.0
    return training * more + max(wall - training, 0.0) * interactions


def _planned(result: Result) -> float:
    phases = (phase["training"] for phase in result.recipe["schedule"])
    return float(sum(training["steps"] * training["batch_size"] for training in phases))


def fitting(seconds: Sequence[float], workers: int, budget: float | None) -> list[bool]:
    """Which cells would finish within the budget, if the first free worker always takes the next one."""
    if budget is None:
        return [True] * len(seconds)
    free = [0.0] * workers
    out = []
    for needed in seconds:
        first = min(range(workers), key=lambda w: free[w])
        fits = free[first] + needed <= budget
        if fits:
            free[first] += needed
        out.append(fits)
    return out


def time_left(seconds: Sequence[float], workers: int) -> float:
    """Seconds until this many workers have finished all of it."""
    free = [0.0] * max(workers, 1)
    for needed in seconds:
        free[free.index(min(free))] += needed
    return max(free)
