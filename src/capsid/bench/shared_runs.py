"""What cells leave behind before they are finished: the journal of a cell, and trained runs that cells share.

The journal is a small JSON file in the working folder of a cell, with times, memory and the versions of the code over
all attempts. It is written after each stage and at intervals, so a kill loses seconds. Recipes that differ only in how
items are ranked, or in a memory that is fitted after training, are trained once: work/trained/<training fingerprint>/
is a run as `capsid fit` saves it. The JSON file beside it says which cell trained it, with which code and for how long;
it is written first, so a run that is there is always described.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import read_json, write_json
from capsid.bench.cells import Job
from capsid.bench.store import Place
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.errors import ArtifactError
from capsid.fit.stages import with_memory
from capsid.progress import Progress
from capsid.recommender import Recommender

FILE = "journal.json"
EVERY_SECONDS = 20.0


class Journal:
    """Opened by the process that runs the cell; each opening counts as an attempt."""

    def __init__(self, folder: Path, code: str) -> None:
        self.path = folder / FILE
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
        found = read_json(folder / FILE)
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
        return self._own(run, dataset, progress)

    def _own(self, run: Recommender, dataset: Dataset, progress: Progress) -> Recommender:
        """The run as the job's recipe has it."""
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
