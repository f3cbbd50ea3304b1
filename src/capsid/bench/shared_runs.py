"""Trained runs that cells of a plan share: recipes that differ only in how items are ranked, or in a memory that is
fitted after training, are trained once.

work/trained/<training fingerprint>/ is a run as `capsid fit` saves it. The JSON file beside it says which cell trained
it, with which code and for how long; it is written first, so a run that is there is always described.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsid.base.storage.artifacts import read_json, write_json
from capsid.bench.cell_journal import Journal
from capsid.bench.cells import Job
from capsid.bench.store import Place
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.errors import ArtifactError
from capsid.fit.with_memory import with_memory
from capsid.progress import Progress
from capsid.recommender import Recommender


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
        """Forget the run."""
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
