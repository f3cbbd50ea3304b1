"""A stretch of training as a job, and the finished stages of a fit in its working folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from safetensors.torch import save as tensor_bytes

from capsid.artifacts import MANIFEST, new_folder, open_folder, read_json, write_json
from capsid.config import Kinds
from capsid.data.item_table import ItemTable
from capsid.fitting.log import entry_of
from capsid.generate.fit import fit_generator
from capsid.generate.generator import Trainable
from capsid.generate.terms import Objective
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, duration
from capsid.recipe import Stretch
from capsid.running import CheckpointFile, RunOptions, Team
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.loop import Carried

POLL_SECONDS = 0.2


@dataclass(frozen=True, eq=False)
class Job:
    """A stretch of training with everything it needs."""

    stretch: Stretch
    generator: Trainable
    ids: SemanticIds
    table: ItemTable
    objective: Objective
    validate: Callable[[], float] | None
    seed: int
    team: Team
    before: Carried | None

    def fit(self, checkpoint: CheckpointFile | None, progress: Progress) -> Done:
        """Train."""
        stretch, phase = self.stretch, self.stretch.phase
        result = fit_generator(
            self.generator,
            self.ids,
            self.table.sequences,
            self.objective,
            stretch.training,
            seed=self.seed,
            learns=() if stretch.freezes else phase.learns,
            augment=phase.augment,
            validate=self.validate,
            steps=stretch.steps,
            checkpoint=checkpoint,
            progress=progress,
            name=stretch.name,
            team=self.team,
            before=self.before,
        )
        if stretch.part is None:
            made = stretch.steps.start + result.steps
            progress.line(f"{stretch.name}: best at step {result.best_step:,} of {made:,}, {duration(result.seconds)}")
        return Done(entry_of(stretch, result), result.carried or {})


@dataclass(frozen=True, eq=False)
class Done:
    """A finished stretch: its entry of the log, and what it carries on."""

    log: dict[str, Any]
    carried: Carried


@dataclass(frozen=True, eq=False)
class Stages:
    """Finished stages in the working folder; without a folder nothing is saved.

    Process 0 of a team makes the ids and writes all stages. The others wait for the ids and read them, and train with
    process 0. Without a folder every process makes the ids itself.
    """

    work: Path | None
    kinds: Kinds
    run: RunOptions

    def tokenizer(self, name: str, make: Callable[[CheckpointFile | None], ItemTokenizer]) -> ItemTokenizer:
        if self.work is None:
            return make(None)
        folder = self.work / name
        if self.run.team.rank:
            _wait_for(folder / MANIFEST)
        elif not (folder / MANIFEST).exists():
            made = make(self.run.checkpoint(folder.with_suffix(".checkpoint")))
            with new_folder(folder, kind="stage") as new:
                made.save(new)
            return made
        return ItemTokenizer.load(_open_stage(folder), self.kinds)

    def train(self, number: int, job: Job, progress: Progress) -> Done:
        """Train a stretch, or load it if an earlier run has finished it."""
        if self.work is None:
            return job.fit(None, progress)
        folder = self.work / f"phase-{number}"
        if (folder / MANIFEST).exists():
            _open_stage(folder)
            job.generator.load_state(job.ids, load_file(folder / "generator.safetensors"))
            if job.objective.learns:
                job.objective.load_state_dict(load_file(folder / "objective.safetensors"))
            carried = load_file(folder / "carried.safetensors") if job.before is not None else {}
            return Done(read_json(folder / "log.json"), carried)
        done = job.fit(self.run.checkpoint(folder.with_suffix(".checkpoint")), progress)
        if self.run.team.rank:
            return done
        with new_folder(folder, kind="stage") as new:
            (new / "generator.safetensors").write_bytes(tensor_bytes(job.generator.state()))
            if job.objective.learns:
                (new / "objective.safetensors").write_bytes(tensor_bytes(job.objective.state_dict()))
            if job.before is not None:
                (new / "carried.safetensors").write_bytes(tensor_bytes(dict(done.carried)))
            write_json(new / "log.json", done.log)
        return done


def _wait_for(file: Path) -> None:
    """Wait until process 0 has written a file. That may take hours, so no connection waits, which would time out."""
    while not file.exists():
        time.sleep(POLL_SECONDS)


def _open_stage(folder: Path) -> Path:
    return open_folder(folder, kind="stage", hint=f"delete {folder} and run again; only that stage is refitted")
