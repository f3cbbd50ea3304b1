"""One cell in one process: fit, evaluate, describe the ids, and write the result to the cell's working folder.

`python -m capsid.bench.worker FOLDER` is started by the runner, with pipes for its input and output. It reports
progress as JSON lines and ends when its runner is gone, so that two processes never run the same cell. It does not
write stored lines.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

import capsid
from capsid.base.config import from_dict
from capsid.base.run_options import RunOptions
from capsid.base.storage.artifacts import MANIFEST, check_place, new_folder, open_folder, read_json, write_json
from capsid.base.storage.locks import held
from capsid.bench.cells import Job, code_fingerprint, tokenizer_fingerprint, values_key
from capsid.bench.plans import POSITIONS
from capsid.bench.process import JOB, RESULT
from capsid.bench.results import Result, arrays_hash
from capsid.bench.store import Journal, Place, SharedRun, now, plain, write_values
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.data.sources import load_dataset
from capsid.data.split import Cases, Split
from capsid.data.ties import order_of, tied
from capsid.encode.cache import cached_parts, encode_items
from capsid.errors import ArtifactError, CapsidError, DataError
from capsid.evaluate.evaluator import metrics_of, position_accuracy
from capsid.evaluate.tokenizer_quality import quality_of
from capsid.progress import Progress, duration
from capsid.recommender import Recommender
from capsid.stored import KIND as RUN
from capsid.stored import generator_entries
from capsid.tokenize.item_tokenizer import ItemTokenizer

LOCK = "cell.lock"
INTERRUPTED = 143
SHARED = "tokenizer"
# Number of test cases for accuracy by position; the whole catalogue is scored for each.
SAMPLED = 200


class Interrupted(BaseException):
    """The runner asked the cell to stop; its work is in checkpoints."""


class Told:
    """Progress as JSON lines; at most five updates per second."""

    def __init__(self, file: IO[str], journal: Journal | None = None) -> None:
        self.file, self.journal = file, journal
        self.last = 0.0

    def line(self, text: str) -> None:
        self.say(line=text)

    def update(self, text: str) -> None:
        if time.monotonic() - self.last >= 0.2:
            self.last = time.monotonic()
            self.say(update=text)
        if self.journal is not None:
            self.journal.tick()

    def say(self, **message: Any) -> None:
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()


def run_cell(
    job: Job,
    place: Place,
    journal: Journal,
    progress: Progress,
    run: RunOptions,
    keep: Path | None = None,
    share: bool = False,
) -> Result:
    """Run a whole cell; called again after a kill, it resumes. The fitted run is saved at `keep`.

    `share`: the trained run is left to cells that differ only in how they rank items, or in a memory fitted afterwards.
    """
    if keep is not None:
        check_place(keep, kind=RUN, replace=True)
    ties, order = order_of(job.data.order)
    dataset = load_dataset(job.data.source, ties=ties, order_seed=order, progress=progress)
    if dataset.fingerprint != job.data.fingerprint:
        raise DataError(f"the data at {job.data.source} changed since the run began", hint="run the plan again")
    split = job.cell.held.split(dataset)
    shared = SharedRun.of(job, place)
    recommender = shared.load(dataset, journal, progress)
    if recommender is None:
        recommender = _fitted(job, dataset, split, place, journal, progress, run)
        if share:
            shared.save(recommender, journal)
    if keep is not None:
        recommender.save_pretrained(keep)
    evaluations: dict[str, Any] = {}
    values: dict[str, np.ndarray] = {}
    spent = 0.0
    for name in job.cell.evaluations:
        if name == POSITIONS:
            test = recommender.catalogue_.split.test
            found_at = position_accuracy(recommender.retriever.model, test, users=SAMPLED, progress=progress)
            evaluations[name] = dataclasses.asdict(found_at)
            continue
        part, _, filtered = name.partition("-")
        found = recommender.evaluate(part, ks=job.cell.ks, filter_history=bool(filtered), progress=progress)
        evaluations[name] = found.summary()
        spent += found.seconds
        cases = split.cases(part)
        if dataset.times is not None and split.cold is None:
            tied_C = _tied_targets(dataset, cases)
            evaluations[name]["untied"] = metrics_of(found.values, ~tied_C)
            values[f"{name}/tied"] = tied_C
        values |= {f"{name}/user": cases.users.astype(np.int64), f"{name}/target": cases.targets.astype(np.int64)}
        values[f"{name}/target_count"] = recommender.catalogue_.counts[cases.targets].astype(np.int64)
        values |= {f"{name}/{metric}": v.astype(np.float32) for metric, v in found.values.items()}
        progress.line(f"{name}: recall@{max(job.cell.ks)} {found.metrics[f'recall@{max(job.cell.ks)}']:.4f}")
    progress.update("looking at the ids")
    codes = recommender.fitted.tokenizer.ids.codes
    values |= {"ids/codes": codes.values.astype(np.int32), "ids/offsets": codes.offsets.astype(np.int64)}
    write_values(place.values(values_key(job, code_fingerprint())), values)
    journal.stage("evaluation", spent)
    return _result(job, recommender, evaluations, arrays_hash(values), journal)


def _fitted(
    job: Job, dataset: Dataset, split: Split, place: Place, journal: Journal, progress: Progress, run: RunOptions
) -> Recommender:
    if job.recipe.encoder is not None and "vectors" not in journal.kept["seconds"]:
        # Fill the cache. Cells that need the same part of the vectors wait for the one that is computing it.
        table, seconds, seed = ItemTable.from_training(dataset, split.train), 0.0, job.cell.seed
        busy = "vectors: waiting for another cell that is computing the same"
        for part in cached_parts(job.recipe.encoder):
            lock = place.works / f"vectors-{part.cache_key(table, seed=seed)[:16]}.lock"
            with held(lock, waiting=lambda: progress.line(busy)):
                began = time.monotonic()
                encode_items(part, table, seed=seed, progress=progress)
                seconds += time.monotonic() - began
        journal.stage("vectors", seconds)
    ids = SharedTokenizers(job, place, journal, run)
    work = place.work(job.key) / "fit"
    return Recommender(job.recipe, seed=job.cell.seed).fit(
        dataset, split=split, work=work, progress=progress, run=run, tokenizer_from=ids
    )


class SharedTokenizers:
    """Fitted ids shared by cells with the same parts, data and seed: the first cell fits them, the others wait.

    Ids fitted by other code are not used: a cell must not mix them with its own.
    """

    def __init__(self, job: Job, place: Place, journal: Journal, run: RunOptions) -> None:
        self.recipe, self.journal, self.run = job.recipe, journal, run
        key = tokenizer_fingerprint(job.recipe, job.data.key, job.cell.seed)
        self.folder = place.tokenizers / code_fingerprint() / key

    def __call__(self, table: ItemTable, seed: int, progress: Progress) -> ItemTokenizer:
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        with held(lock, waiting=lambda: progress.line("ids: waiting for another cell that is fitting the same ids")):
            self._drop_damaged(progress)
            there = (self.folder / MANIFEST).exists()
            if not there:
                self._make(table, seed, progress)
            made = read_json(self.folder / "made.json")
            if there:
                progress.line(f"ids: reused from another cell, which fitted them in {duration(made['seconds'])}")
            self.journal.kept["tokenizer_shared"] = there
            self.journal.stage("tokenizer", made["seconds"])
            return ItemTokenizer.load(self.folder)

    def _make(self, table: ItemTable, seed: int, progress: Progress) -> None:
        began = time.monotonic()
        checkpoint = self.run.checkpoint(self.folder.with_suffix(".checkpoint"))
        made = self.recipe.item_tokenizer().fit(table, seed=seed, progress=progress, checkpoint=checkpoint)
        with new_folder(self.folder, kind=SHARED) as new:
            made.save(new)
            write_json(new / "made.json", {"seconds": time.monotonic() - began})
        checkpoint.remove()
        progress.line(f"ids: fitted in {duration(time.monotonic() - began)}")

    def _drop_damaged(self, progress: Progress) -> None:
        if not self.folder.exists():
            return
        try:
            open_folder(self.folder, kind=SHARED)
        except ArtifactError as error:
            progress.line(f"ids: those of another cell are damaged and will be fitted again: {error.message}")
            shutil.rmtree(self.folder, ignore_errors=True)


def _tied_targets(dataset: Dataset, cases: Cases) -> np.ndarray:
    """Whether each target has the time of the item before it, so that the order of the two is not known."""
    place_C = dataset.sequences.offsets[:-1][cases.users] + cases.histories.lengths
    found: np.ndarray = tied(dataset)[place_C]
    return found


def _result(
    job: Job, recommender: Recommender, evaluations: dict[str, Any], values_hash: str, journal: Journal
) -> Result:
    fitted = recommender.fitted
    tokenizer, log = fitted.tokenizer, fitted.log
    quality = quality_of(tokenizer)
    journal.stage("training", float(sum(phase["seconds"] for phase in log)))
    kept, network = journal.kept, getattr(fitted.generator, "network", None)
    return Result(
        **job.described(),
        key=values_key(job, code_fingerprint()),
        # A result does not record the path of the data.
        data={k: v for k, v in job.to_dict()["data"].items() if k != "source"},
        code=code_fingerprint(),
        codes=tuple(kept["codes"]),
        ks=job.cell.ks,
        evaluations=evaluations,
        ids={**quality.to_dict(), "vocabulary": tokenizer.ids.layout.vocabulary},
        seconds={**kept["seconds"], "wall": kept["wall"]},
        peak_memory_mb=kept["peak_memory_mb"],
        parameters=0 if network is None else sum(p.numel() for p in network.parameters()),
        **{name: sum(phase[name] for phase in generator_entries(log)) for name in ("tokens", "sequences", "steps")},
        best_step=log[-1]["best_step"] if log else None,
        log=log,
        versions=_versions(),
        started=kept["started"],
        ended=now(),
        attempts=kept["attempts"],
        tokenizer_shared=bool(kept.get("tokenizer_shared", False)),
        values_hash=values_hash,
        trained_by=kept.get("trained_by"),
    )


def _versions() -> dict[str, str]:
    import torch

    own = {"capsid": capsid.__version__, "python": platform.python_version()}
    return {**own, "torch": torch.__version__, "numpy": np.__version__}


def work(folder: Path, told: Told) -> int:
    """Run the job of a working folder and return the exit code."""
    # A worker of a dead runner may need a moment to notice and end.
    with held(folder / LOCK):
        content = read_json(folder / JOB)
        job = Job.from_dict(content)
        keep = Path(content["keep"]) if content.get("keep") else None
        run: RunOptions = from_dict(RunOptions, content.get("run", {}), {})
        # The job is in the cell's own folder, three levels below the store.
        place = Place(folder.parents[2], folder.parents[1].name)
        journal = told.journal = Journal(folder, code_fingerprint())
        try:
            result = run_cell(job, place, journal, told, run, keep, bool(content.get("share")))
            write_json(folder / RESULT, plain(result.to_dict()))
        except Interrupted:
            return INTERRUPTED
        except CapsidError as error:
            told.say(error=error.message, hint=error.hint)
            return 1
        finally:
            journal.write()
    return 0


def _until_alone() -> None:
    """End when the pipe closes: the runner never writes to it, so a closed pipe means that the runner has ended."""
    while os.read(0, 1):
        pass
    os._exit(INTERRUPTED)


def _stop(number: int, frame: Any) -> None:
    raise Interrupted


def main(arguments: list[str]) -> int:
    """Entry point of the process."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_until_alone, daemon=True).start()
    # Output of libraries goes to the log, not into the message stream.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return work(Path(arguments[0]), Told(pipe))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Interrupted:
        sys.exit(INTERRUPTED)
