"""Looks at a plan before it runs: which cells are finished, which can run and for how long, which cannot and why.

Loads datasets only to fingerprint them, and downloads one only if allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsid.base.storage.artifacts import cache_home, folder_kind
from capsid.bench.cell_journal import read_journal
from capsid.bench.cells import DataFacts, Job, code_fingerprint, make_job
from capsid.bench.estimate import Estimate, estimate
from capsid.bench.plans import Cell, Plan
from capsid.bench.results import Result
from capsid.bench.store import Finished, Place
from capsid.data.sources import SOURCES, load_dataset
from capsid.errors import CapsidError, ConfigError, DataError, nearest
from capsid.progress import Progress, silent

FINISHED, TWIN, READY, UNAVAILABLE = "finished", "same as a finished one", "to run", "not available"


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


def data_facts(name: str, source: str, *, download: bool, progress: Progress = silent) -> DataFacts:
    """Load the dataset and keep its facts."""
    known = SOURCES.get(source)
    there = folder_kind(cache_home() / "datasets" / source / "prepared") is not None
    if known is not None and known.needs_download and not there and not download:
        raise DataError(f"{source} is not in the cache", hint=f"a run downloads it, or give --data {name}=PATH")
    return DataFacts.of(name, source, load_dataset(source, progress=progress))


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
    facts: dict[str, DataFacts | CapsidError] = {}
    for name in plan.datasets:
        try:
            facts[name] = data_facts(name, sources[name], download=download, progress=progress)
        except CapsidError as error:
            facts[name] = error
    return [_prospect(cell, facts[cell.dataset], place, finished) for cell in plan.cells]


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
