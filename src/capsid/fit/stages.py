"""The finished stages of a fit in its working folder, so that a killed fit resumes. Without a folder nothing is saved.

Process 0 of a team makes the ids and writes all stages. The others wait for the ids and read them, and train with
process 0. Without a folder every process makes the ids itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from safetensors.torch import save as tensor_bytes

from capsid.base.config import Kinds
from capsid.base.run_options import CheckpointFile, RunOptions
from capsid.base.storage.artifacts import MANIFEST, new_folder, open_folder, read_json, write_json
from capsid.generate.generator import Trainable
from capsid.generate.terms import Objective
from capsid.ids.semantic_ids import SemanticIds
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.loop import Carried

POLL_SECONDS = 0.2
# The entry of a stretch in the log, and what it carries on.
Done = tuple[dict[str, Any], Carried]


@dataclass(frozen=True, eq=False)
class Stages:
    """One folder for each tokenizer and each stretch of training."""

    work: Path | None
    kinds: Kinds
    options: RunOptions

    def tokenizer(self, name: str, make: Callable[[CheckpointFile | None], ItemTokenizer]) -> ItemTokenizer:
        """The tokenizer of this name: read, waited for, or made and saved."""
        if self.work is None:
            return make(None)
        folder = self.work / name
        if self.options.team.rank:
            _wait_for(folder / MANIFEST)
        elif not (folder / MANIFEST).exists():
            made = make(self.options.checkpoint(folder.with_suffix(".checkpoint")))
            with new_folder(folder, kind="stage") as new:
                made.save(new)
            return made
        return ItemTokenizer.load(_open_stage(folder), self.kinds)

    def checkpoint(self, number: int) -> CheckpointFile | None:
        """Where a stretch that is not finished saves its checkpoints."""
        return None if self.work is None else self.options.checkpoint(self.work / f"phase-{number}.checkpoint")

    def finished(
        self, number: int, ids: SemanticIds, generator: Trainable, objective: Objective, *, carries: bool
    ) -> Done | None:
        """Give generator and objective the weights of a finished stretch; None if it is not finished."""
        if self.work is None or not ((folder := self.work / f"phase-{number}") / MANIFEST).exists():
            return None
        _open_stage(folder)
        generator.load_state(ids, load_file(folder / "generator.safetensors"))
        if objective.learns:
            objective.load_state_dict(load_file(folder / "objective.safetensors"))
        return read_json(folder / "log.json"), load_file(folder / "carried.safetensors") if carries else {}

    def finish(self, number: int, generator: Trainable, objective: Objective, done: Done, *, carries: bool) -> None:
        """Save a stretch that has just been trained."""
        if self.work is None or self.options.team.rank:
            return
        entry, carried = done
        with new_folder(self.work / f"phase-{number}", kind="stage") as new:
            (new / "generator.safetensors").write_bytes(tensor_bytes(generator.state()))
            if objective.learns:
                (new / "objective.safetensors").write_bytes(tensor_bytes(objective.state_dict()))
            if carries:
                (new / "carried.safetensors").write_bytes(tensor_bytes(dict(carried)))
            write_json(new / "log.json", entry)


def _wait_for(file: Path) -> None:
    """Wait until process 0 has written a file. That may take hours, so no connection waits, which would time out."""
    while not file.exists():
        time.sleep(POLL_SECONDS)


def _open_stage(folder: Path) -> Path:
    return open_folder(folder, kind="stage", hint=f"delete {folder} and run again; only that stage is refitted")
