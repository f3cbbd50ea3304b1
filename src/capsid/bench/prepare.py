"""Looks at a plan before it runs: which cells are finished, which can run and for how long, which cannot and why.

Loads datasets only to fingerprint them, and downloads one only if allowed. Time is estimated from finished cells of the
same method, else from a table of rough speeds, and nothing but plans within a budget depends on it. A store remembers a
user's own plan, so that later its name is enough: its text is `plan.toml` in the plan's folder, the paths of its data
are in `data.json` in its working folder, which is not for publishing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsid.base.storage.artifacts import cache_home, folder_kind, read_json, write_bytes, write_json
from capsid.bench.cells import DataFacts, Job, code_fingerprint, make_job
from capsid.bench.plans import Cell, Plan, is_built_in, plan_names, read_plan, settled
from capsid.bench.results import Result, plans_in
from capsid.bench.store import Finished, Place, read_journal
from capsid.data.dataset import FILE_ORDER
from capsid.data.sources import SOURCES, load_dataset
from capsid.data.split import Holdout
from capsid.errors import CapsidError, ConfigError, DataError, nearest
from capsid.progress import Progress, silent

# One thread of a plain desktop core, both cores busy: tokens per second in training, by kind of generator.
TOKENS_PER_SECOND = {"transformer": 4_000.0, "timeline": 8_000.0}
SLOWEST = 4_000.0
USERS_PER_SECOND = 150.0
# Seconds per item for text vectors and a trained tokenizer; seconds to start a process and read the data.
SECONDS_PER_ITEM = 0.01
START = 10.0
# An unfinished cell has at least this share of its estimate left.
LEAST_LEFT = 0.1
LAST = Holdout()
FINISHED, TWIN, READY, UNAVAILABLE = "finished", "same as a finished one", "to run", "not available"
WAITING = "waits for its trials"
PLAN = "plan.toml"
DATA = "data.json"


@dataclass(frozen=True, eq=False)
class Prospect:
    """The state of a cell. `result` if there is one, `job` if it can run, `error` if it cannot."""

    cell: Cell
    state: str
    job: Job | None = None
    result: Result | None = None
    estimate: Estimate | None = None
    spent: float = 0.0
    error: CapsidError | None = None


def data_sources(plan: Plan, given: Sequence[str], remembered: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where each dataset of the plan is; `given` are NAME=PATH and take precedence over `remembered` paths.

    An unknown name is an error before anything runs.
    """
    sources = {name: path for name, path in (remembered or {}).items() if Path(path).is_dir()}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise ConfigError(f"--data must be NAME=PATH, got {text!r}", hint="NAME is a dataset of the plan")
        if name not in plan.datasets:
            raise ConfigError(f"the plan {plan.name!r} has no dataset {name!r}", hint=nearest(name, plan.datasets))
        sources[name] = path
    for name in plan.datasets:
        if name not in sources and name not in SOURCES and not Path(name).expanduser().is_dir():
            raise ConfigError(
                f"the plan {plan.name!r} names the dataset {name!r}, which does not exist",
                hint=f"{nearest(name, SOURCES)}; or give its path: --data {name}=PATH",
            )
        sources.setdefault(name, name)
    # A cell's process may run in another working directory.
    return {n: s if s in SOURCES else str(Path(s).expanduser().resolve()) for n, s in sources.items()}


def data_facts(
    name: str,
    source: str,
    *,
    download: bool,
    ties: str = FILE_ORDER,
    order: int = 0,
    held: Holdout = LAST,
    progress: Progress = silent,
) -> DataFacts:
    """Load the dataset with its ties in the order of a cell, and keep its facts and how a cell splits it."""
    known = SOURCES.get(source)
    there = folder_kind(cache_home() / "datasets" / source / "prepared") is not None
    if known is not None and known.needs_download and not there and not download:
        raise DataError(f"{source} is not in the cache", hint=f"a run downloads it, or give --data {name}=PATH")
    return DataFacts.of(name, source, load_dataset(source, ties=ties, order_seed=order, progress=progress), held)


def look(
    plan: Plan,
    place: Place,
    sources: Mapping[str, str],
    *,
    fresh_code: bool = False,
    download: bool = False,
    progress: Progress = silent,
) -> list[Prospect]:
    """The state of every cell of the plan, in order."""
    finished = Finished.read(place, code_fingerprint() if fresh_code else None)
    facts: dict[tuple[str, str, int, Holdout], DataFacts | CapsidError] = {}
    for key in dict.fromkeys(_data_of(cell) for cell in plan.cells):
        name, ties, order, held = key
        try:
            facts[key] = data_facts(
                name, sources[name], download=download, ties=ties, order=order, held=held, progress=progress
            )
        except CapsidError as error:
            facts[key] = error
    trials = {cell.name: cell for cell in plan.cells}

    def result(trial: Cell) -> Result | None:
        found = _prospect(trial, facts[_data_of(trial)], place, finished)
        # A twin is work that was done under another name.
        return found.result

    prospects = []
    for cell in plan.cells:
        known = settled(cell, trials, result)
        waits = Prospect(cell, WAITING)
        prospects.append(waits if known is None else _prospect(known, facts[_data_of(cell)], place, finished))
    return prospects


def _data_of(cell: Cell) -> tuple[str, str, int, Holdout]:
    return cell.dataset, cell.ties, cell.order, cell.held


def _prospect(cell: Cell, facts: DataFacts | CapsidError, place: Place, finished: Finished) -> Prospect:
    try:
        if isinstance(facts, CapsidError):
            raise facts
        job = make_job(cell, facts)
    except CapsidError as error:
        return Prospect(cell, UNAVAILABLE, error=error)
    own = finished.of(job)
    if own is not None:
        return Prospect(cell, FINISHED, job, own)
    twin = finished.twin(job)
    if twin is not None:
        return Prospect(cell, TWIN, job, twin, Estimate(0.0, f"reuses the result of {twin.plan}:{twin.name}"))
    spent = float(read_journal(place.work(job.key)).get("wall", 0.0))
    return Prospect(cell, READY, job, None, estimate(job, finished.cells, spent), spent)


def find_plan(name_or_path: str | Path, store: Path) -> Plan:
    """A built-in plan, a TOML file, or a plan that was run into the store before."""
    name = str(name_or_path)
    if is_built_in(name) or Path(name).is_file():
        return read_plan(name)
    kept = store / name / PLAN
    if "/" in name or not kept.is_file():
        known = [*plan_names(), *plans_in(store)]
        raise ConfigError(f"there is no plan and no file called {name!r}", hint=nearest(name, known))
    return read_plan(kept, name=name)


def remember(place: Place, name_or_path: str | Path, sources: Mapping[str, str]) -> None:
    """Keep the text of a plan's file, and the paths of its data."""
    path = Path(name_or_path)
    if not is_built_in(str(name_or_path)) and path.is_file():
        write_bytes(place.folder / PLAN, path.read_bytes())
    paths = {name: source for name, source in sources.items() if source not in SOURCES}
    if paths:
        write_json(place.works / DATA, {**remembered_sources(place), **paths})


def remembered_sources(place: Place) -> dict[str, str]:
    """Where the datasets of the plan were when it last ran."""
    path = place.works / DATA
    content = read_json(path) if path.is_file() else {}
    return {str(name): str(source) for name, source in content.items()} if isinstance(content, dict) else {}


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
    phases = (phase["training"] for phase in result.recipe["schedule"])
    planned = float(sum(training["steps"] * training["batch_size"] for training in phases))
    interactions = job.data.interactions / max(float(result.data["interactions"]), 1.0)
    more = job.sequences / planned if planned else 1.0
    return training * more + max(wall - training, 0.0) * interactions


def fitting(seconds: Sequence[float], workers: int, budget: float | None) -> list[bool]:
    """Which cells would finish within the budget, if the first free worker always takes the next one."""
    free, out = [0.0] * workers, []
    for needed in seconds:
        first = free.index(min(free))
        out.append(budget is None or free[first] + needed <= budget)
        free[first] += needed if out[-1] else 0.0
    return out


def time_left(seconds: Sequence[float], workers: int) -> float:
    """Seconds until this many workers have finished all of it."""
    free = [0.0] * max(workers, 1)
    for needed in seconds:
        free[free.index(min(free))] += needed
    return max(free)
