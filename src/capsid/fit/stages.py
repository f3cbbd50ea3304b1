"""What a fit leaves behind as it goes: finished stages in its working folder, the log of its phases, a fitted memory.

Finished stages let a killed fit resume; without a folder nothing is saved. Process 0 of a team makes the ids and writes
all stages. The others wait for the ids and read them, and train with process 0. Without a folder every process makes
the ids itself. The log has one entry for each phase, and one more for each side that a joint term trains in it; parts
of a phase have none of their own, because a phase that gives items new ids forty times would have eighty.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from safetensors.torch import save as tensor_bytes

from capsid.base.config import Kinds
from capsid.base.randomness import numpy_rng
from capsid.base.run_options import CheckpointFile, RunOptions
from capsid.base.storage.artifacts import MANIFEST, new_folder, open_folder, read_json, write_json
from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split
from capsid.decode.ranked import Retriever, validating
from capsid.evaluate.evaluator import metric_values
from capsid.generate.generator import Trainable
from capsid.generate.terms import Objective, TermContext
from capsid.ids.semantic_ids import SemanticIds
from capsid.memory.fit import CASES, MemoryFit, fit_weights
from capsid.progress import Progress
from capsid.recipe import Recipe, Stretch
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.loop import Carried, TrainingResult

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
            # Making ids may take hours, so no connection waits, which would time out.
            while not (folder / MANIFEST).exists():
                time.sleep(POLL_SECONDS)
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


def _open_stage(folder: Path) -> Path:
    return open_folder(folder, kind="stage", hint=f"delete {folder} and run again; only that stage is refitted")


def entry_of(stretch: Stretch, result: TrainingResult) -> dict[str, Any]:
    """A stretch as an entry of its own, in plain values."""
    told = ("steps", "best_step", "seconds", "tokens", "averaged", "tokens_per_second")
    return {
        "phase": stretch.name,
        "trains": "tokenizer" if stretch.freezes else "generator",
        "parts": 1,
        "from_step": stretch.steps.start,
        **{name: getattr(result, name) for name in told},
        # Without validation the metric is minus infinity, which JSON cannot hold.
        "best_metric": result.best_metric if result.curve else None,
        "sequences": result.steps * stretch.training.batch_size,
        "curve": [dataclasses.asdict(p) for p in result.curve],
    }


class PhaseLog:
    """The entries of one phase: stretches of one name are one entry, with steps counted from the phase's first."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, Any]] = {}
        self._new_codes: list[int] = []

    @property
    def entries(self) -> list[dict[str, Any]]:
        """In order of their first stretches, the rest of the phase last."""
        found = list(self._by_name.values())
        if self._new_codes:
            found[0] = {**found[0], "new_codes": self._new_codes}
        return found

    def add(self, entry: dict[str, Any]) -> None:
        """Add a finished stretch. The best step is that of the last stretch: ids of earlier ones may be gone."""
        before = self._by_name.get(entry["phase"])
        if before is not None:
            shifted = [{**point, "seconds": before["seconds"] + point["seconds"]} for point in entry["curve"]]
            entry = {**entry, "from_step": before["from_step"]}
            summed = {n: before[n] + entry[n] for n in ("parts", "steps", "seconds", "tokens", "sequences")}
            entry = {**entry, **summed, "curve": [*before["curve"], *shifted]}
            entry["tokens_per_second"] = entry["tokens"] / entry["seconds"] if entry["seconds"] else 0.0
        self._by_name[entry["phase"]] = entry

    def settled(self, changed: int) -> None:
        self._new_codes.append(changed)


def with_memory(
    fitted: Fitted, recipe: Recipe, table: ItemTable, split: Split, *, seed: int, progress: Progress
) -> Fitted:
    """The fit with the memory of the recipe, whatever memory it had; items are alike by the vectors of their ids."""
    fitted = dataclasses.replace(fitted, memory=None)
    if recipe.memory is None:
        return fitted
    tokenizer = fitted.tokenizer
    transitions = recipe.memory.count(table.sequences, table.items, tokenizer.vectors_)
    context = TermContext(tokenizer.ids, fitted.tries, fitted.over, seed=seed)
    fits = fit_weights(fitted.generator, transitions, context, split.valid, table.sequences, fitted.dense)
    best, ranking = _best_ranking(fitted, recipe, fits, split.valid, seed, progress)
    progress.line(f"{best}{ranking}")
    return dataclasses.replace(fitted, memory=best.memory)


def _best_ranking(
    fitted: Fitted, recipe: Recipe, fits: tuple[MemoryFit, ...], cases: Cases, seed: int, progress: Progress
) -> tuple[MemoryFit, str]:
    """The fit that ranks the validation cases best, and how well; without cases or training, the most likely one."""
    if not len(cases) or not recipe.schedule:
        return fits[0], ""
    training = recipe.schedule[-1].training
    chosen = numpy_rng(seed, "memory ranking").permutation(len(cases))[: min(training.validation_users, CASES)]
    sample, found = cases.take(np.sort(chosen)), []
    for one in fits:
        progress.update(f"memory: {training.select} with the weights for temperature {one.memory.temperature}")
        retriever = Retriever(dataclasses.replace(fitted, memory=one.memory).model, validating(recipe.decoder))
        values = metric_values(retriever, sample, training.select, filter_history=training.select_filtered, part=(0, 1))
        found.append(float(values.mean()))
    # Equal values: the most likely of them, because it comes first.
    best = int(np.argmax(found))
    return fits[best], f"; valid {training.select} {found[best]:.4f}"
