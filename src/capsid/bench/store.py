"""The store of results: one line per finished cell, values beside it, and what unfinished cells leave behind.

<store>/<plan>/cells.jsonl   values/<key>.npz   work/<key>/   work/tokenizers/   work/trained/

Values are written before their line, and a line is one write followed by fsync. A line that a kill cut off is found and
repaired when the store is next opened. One runner at a time.

The journal of a cell is a small JSON file in its working folder, with times, memory and the versions of the code over
all attempts. It is written after each stage and at intervals, so a kill loses seconds. Recipes that differ only in how
items are ranked, or in a memory that is fitted after training, are trained once: work/trained/<training fingerprint>/
is a run as `capsid fit` saves it. The JSON file beside it says which cell trained it, with which code and for how long;
it is written first, so a run that is there is always described.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.storage.artifacts import read_json, write_bytes, write_json
from capsid.base.storage.locks import held
from capsid.bench.cells import Job, stored_recipe_key, values_key
from capsid.bench.results import LINES, VALUES, Result, archive_of, load, plans_in, read_lines
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.errors import ArtifactError
from capsid.fit.stages import with_memory
from capsid.progress import Progress
from capsid.recommender import Recommender

JOURNAL = "journal.json"
EVERY_SECONDS = 20.0


@dataclass(frozen=True)
class Place:
    """The paths of a plan's files."""

    store: Path
    plan: str

    @property
    def folder(self) -> Path:
        return self.store / self.plan

    @property
    def lines(self) -> Path:
        """The results."""
        return self.folder / LINES

    @property
    def works(self) -> Path:
        """Unfinished cells, and ids that cells share."""
        return self.folder / "work"

    @property
    def tokenizers(self) -> Path:
        """Ids that cells share."""
        return self.works / "tokenizers"

    @property
    def trained(self) -> Path:
        return self.works / "trained"

    def work(self, key: str) -> Path:
        return self.works / key

    def values(self, key: str) -> Path:
        return self.folder / VALUES / f"{key}.npz"


@contextlib.contextmanager
def opened(place: Place, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the plan's store as its only writer; leftovers of a kill are repaired or removed first."""
    if (archive := archive_of(place.folder)) is not None:
        raise ArtifactError(
            f"{place.folder} holds the archived results of release {archive.release}, which nothing is added to",
            hint="choose another --store",
        )
    try:
        place.works.mkdir(parents=True, exist_ok=True)
        # Working folders hold gigabytes that do not belong in a repository.
        write_bytes(place.works / ".gitignore", b"*\n")
    except OSError as error:
        raise ArtifactError(
            f"{place.folder} cannot be written: {error.strerror}", hint="choose another --store"
        ) from None
    with held(place.works / "runner.lock", wait=False) as got:
        if not got:
            raise ArtifactError(
                f"another run of the plan {place.plan!r} is using {place.store}",
                hint="wait for it, or choose another --store",
            )
        repair(place.lines, tell)
        for leftover in (place.folder / VALUES).glob(".*"):
            leftover.unlink(missing_ok=True)
        yield


def repair(lines: Path, tell: Callable[[str], None]) -> None:
    """Rewrite the file without a last line that was cut off."""
    kept, notes = read_lines(lines)
    if notes:
        write_bytes(lines, b"".join(_line(line) for line in kept))
        tell(f"{notes[0]}; the file was repaired and the cell will run again")


def append(place: Place, result: Result) -> None:
    """Add a finished cell; its values must already be written."""
    if not place.values(result.key).exists():
        raise ArtifactError(f"the values of {result.name} are missing, so its line was not written")
    handle = os.open(place.lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        data = _line(result.to_dict())
        written = os.write(handle, data)
        os.fsync(handle)
    except OSError as error:
        raise ArtifactError(f"could not write {place.lines}: {error.strerror}", hint="is the disk full?") from error
    finally:
        os.close(handle)
    if written != len(data):
        raise ArtifactError(
            f"{place.lines} received only part of a line", hint="is the disk full? run again to repair it"
        )


def write_values(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays, compressed; the file is written whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(arrays))
    write_bytes(path, buffer.getvalue())


def forget_work(place: Place, key: str) -> None:
    """Remove the working folder of a cell that is stored."""
    shutil.rmtree(place.work(key), ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Finished:
    """Finished cells of all plans of a store. With `code`, only those that this code finished count."""

    cells: tuple[Result, ...]
    code: str | None = None

    @classmethod
    def read(cls, place: Place, code: str | None = None) -> Finished:
        """Read the current store, without what an earlier release has archived there."""
        plans = [plan for plan in plans_in(place.store) if archive_of(place.store / plan) is None]
        return cls(tuple(c for plan in plans for c in load(place.store, plan, history=True)), code)

    def and_also(self, result: Result) -> Finished:
        return replace(self, cells=(*self.cells, result))

    def of(self, job: Job) -> Result | None:
        """The job's own result, if it has one. Only the latest line of a name counts, because tables show that one."""
        own = [c for c in self.cells if c.plan == job.cell.plan and c.name == job.cell.name]
        return own[-1] if own and self._did(own[-1], job) else None

    def twin(self, job: Job) -> Result | None:
        """A result of the same work under another name, in another plan, or before the plan was changed and back."""
        same = [c for c in self.cells if self._did(c, job)]
        return same[-1] if same else None

    def _did(self, cell: Result, job: Job) -> bool:
        return self.code in (None, cell.code) and covers(cell, job)


def covers(cell: Result, job: Job) -> bool:
    """Whether a finished cell did the job's work: the same recipe, data, seed and ks, and at least its evaluations."""
    if cell.fingerprint == job.fingerprint:
        return True
    return _work(cell) == job.work and set(job.cell.evaluations) <= set(cell.evaluations)


@functools.cache
def _work(cell: Result) -> tuple[object, ...]:
    return stored_recipe_key(cell.recipe), cell.data_key, cell.seed, cell.ks


def adopt(place: Place, job: Job, twin: Result) -> Result:
    """Copy the result of the same work, with its values; `taken_from` names its source.

    Only the job's own evaluations are listed, although the values may hold more.
    """
    source = Place(place.store, twin.plan).values(twin.key)
    if not source.exists():
        raise ArtifactError(f"{source} is missing")
    key = values_key(job, twin.code)
    write_bytes(place.values(key), source.read_bytes())
    new = replace(
        twin,
        **job.described(),
        data={**twin.data, "order": job.data.order, "split": job.data.split},
        key=key,
        evaluations={name: twin.evaluations[name] for name in job.cell.evaluations},
        taken_from=f"{twin.plan}:{twin.name}",
    )
    append(place, new)
    return new


def plain(value: Any) -> Any:
    """JSON values: NumPy numbers become Python numbers, and numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _line(value: Any) -> bytes:
    return (json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n").encode()


class Journal:
    """Opened by the process that runs the cell; each opening counts as an attempt."""

    def __init__(self, folder: Path, code: str) -> None:
        self.path = folder / JOURNAL
        self.kept: dict[str, Any] = {
            "started": now(),
            "attempts": 0,
            "wall": 0.0,
            "peak_memory_mb": 0.0,
            "codes": [],
            "seconds": {},
            **read_journal(folder),
        }
        self.kept |= {"attempts": self.kept["attempts"] + 1, "pid": os.getpid()}
        if code not in self.kept["codes"]:
            self.kept["codes"].append(code)
        self.began, self.before = time.monotonic(), float(self.kept["wall"])
        self.write()

    def write(self) -> None:
        self.kept["wall"] = self.before + time.monotonic() - self.began
        self.kept["peak_memory_mb"] = max(self.kept["peak_memory_mb"], peak_memory_mb())
        write_json(self.path, self.kept)
        self.written = time.monotonic()

    def tick(self) -> None:
        """Write if the interval has passed."""
        if time.monotonic() - self.written > EVERY_SECONDS:
            self.write()

    def stage(self, name: str, seconds: float) -> None:
        """Measure the time of a stage."""
        self.kept["seconds"][name] = seconds
        self.write()


def read_journal(folder: Path) -> dict[str, Any]:
    """The values of the last attempt; empty if there was none."""
    try:
        found = read_json(folder / JOURNAL)
    except ArtifactError:
        return {}
    return found if isinstance(found, dict) else {}


def now() -> str:
    """The time of day, for people."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory_mb() -> float:
    """Peak memory of this process."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes on Linux, bytes on a Mac.
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@dataclass(frozen=True)
class SharedRun:
    """Where the trained run of a job is, if another cell has left it there."""

    job: Job
    folder: Path

    @classmethod
    def of(cls, job: Job, place: Place) -> SharedRun:
        """The place for the job's training."""
        return cls(job, place.trained / job.training)

    @property
    def about(self) -> Path:
        """The file that describes the run."""
        return self.folder.with_suffix(".json")

    def described(self) -> dict[str, Any] | None:
        """`cell`, `codes`, `seconds` by stage and `wall`; None if there is no run."""
        if not self.folder.is_dir():
            return None
        try:
            found = read_json(self.about)
        except ArtifactError:
            return None
        return found if isinstance(found, dict) else None

    def save(self, recommender: Recommender, journal: Journal) -> None:
        """Leave a trained run to others. A kill leaves a whole run or none."""
        journal.write()
        kept = {name: journal.kept[name] for name in ("codes", "seconds", "wall")}
        write_json(self.about, {"cell": self.job.cell.name, **kept})
        recommender.save_pretrained(self.folder)

    def load(self, dataset: Dataset, journal: Journal, progress: Progress) -> Recommender | None:
        """The run with the job's own memory and way to rank items; None if there is none, or if it is damaged."""
        about = self.described()
        if about is None:
            return None
        try:
            run = Recommender.from_pretrained(self.folder)
        except ArtifactError as error:
            progress.line(f"the trained run of {about['cell']} is damaged and is trained again: {error.message}")
            self.remove()
            return None
        if about["cell"] != self.job.cell.name:
            progress.line(f"trained by {about['cell']}: only the memory or the ranking of items differs")
            journal.kept |= {"trained_by": about["cell"], "tokenizer_shared": True}
        journal.kept["codes"] = list(dict.fromkeys([*about["codes"], *journal.kept["codes"]]))
        journal.kept["seconds"] = {**about["seconds"], **journal.kept["seconds"]}
        recipe, split = self.job.recipe, run.catalogue_.split
        if run.recipe.memory != recipe.memory:
            table = ItemTable.from_training(dataset, split.train)
            run.fitted_ = with_memory(run.fitted, recipe, table, split, seed=run.seed, progress=progress)
        run.recipe = recipe
        return run

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.about.unlink(missing_ok=True)


def forget_other_code(place: Place, code: str) -> None:
    """Remove trained runs that other code had a part in."""
    for about in place.trained.glob("*.json"):
        try:
            own = read_json(about).get("codes") == [code]
        except (ArtifactError, AttributeError):
            own = False
        if not own:
            shutil.rmtree(about.with_suffix(""), ignore_errors=True)
            about.unlink(missing_ok=True)
