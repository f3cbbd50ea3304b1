"""Runs the cells of a plan in order, in parallel and within a budget, each in its own process. Resumes after a kill.

Finished cells are skipped, and the same work is not done twice. If a cell fails, is killed or runs out of memory, it is
reported and the others continue. Prints nothing itself: a `Watch` receives all messages.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from capsid.base.run_options import RunOptions
from capsid.bench.cells import Job, code_fingerprint
from capsid.bench.plans import TRIED, Plan
from capsid.bench.prepare import (
    FINISHED,
    LEAST_LEFT,
    TWIN,
    UNAVAILABLE,
    WAITING,
    Estimate,
    Prospect,
    estimate,
    fitting,
    look,
    time_left,
)
from capsid.bench.process import COMMAND, DONE, FAILED, KILLED, CellProcess, Outcome, left_result
from capsid.bench.results import Result
from capsid.bench.store import (
    Finished,
    Place,
    SharedRun,
    adopt,
    append,
    forget_other_code,
    forget_work,
    opened,
    read_journal,
)
from capsid.errors import ArtifactError
from capsid.progress import Progress, duration

TAKEN, NO_TIME = "taken over", "not started"
BAD = (FAILED, KILLED)


class Watch(Progress, Protocol):
    """Receives the messages of a run."""

    def workers(self, lines: Sequence[str]) -> None:
        """What every worker is doing; may be dropped."""

    def plan(self, prospects: Sequence[Prospect], starts: Sequence[bool]) -> None:
        """The cells, and which of them are expected to fit into the budget."""


@dataclass(frozen=True)
class Summary:
    """The outcome of the plan in this run."""

    plan: str
    outcomes: tuple[Outcome, ...]
    seconds: float

    def count(self, *states: str) -> int:
        """How many cells are in one of these states."""
        return sum(outcome.state in states for outcome in self.outcomes)

    @property
    def failed(self) -> bool:
        """Whether any cell failed; cells that were not started or were asked to stop do not count."""
        return self.count(*BAD, UNAVAILABLE) > 0


@dataclass(frozen=True)
class Options:
    """`budget` in seconds; `keep`: a folder for fitted runs; `grace`: how long a cell may take to stop when asked;
    `run`: how each cell runs."""

    workers: int = 1
    budget: float | None = None
    fresh_code: bool = False
    keep: Path | None = None
    grace: float = 60.0
    command: Sequence[str] = COMMAND
    run: RunOptions = field(default_factory=RunOptions)


def run_plan(
    plan: Plan, place: Place, sources: Mapping[str, str], options: Options, watch: Watch, *, whole: bool = True
) -> Summary:
    """Run the unfinished cells. `whole`: these are all cells of the plan, so shared files may be removed at the end."""
    began = time.monotonic()
    with opened(place, watch.line), _terminated_as_interrupt():
        run, waiting = _Run(place, options, watch, began), len(plan.cells) + 1
        try:
            while True:
                prospects = look(plan, place, sources, fresh_code=options.fresh_code, download=True, progress=watch)
                before, waiting = waiting, sum(p.state == WAITING for p in prospects)
                if waiting == before:
                    break
                ahead = [p.estimate.seconds if p.estimate else 0.0 for p in prospects]
                watch.plan(prospects, fitting(ahead, options.workers, options.budget))
                run.take_in(prospects)
                run.go()
                if not waiting:
                    break
        finally:
            run.stop_all()
        summary = Summary(plan.name, run.summary(prospects), time.monotonic() - began)
        if whole and summary.count(FINISHED, DONE, TAKEN) == len(prospects):
            for shared in (place.tokenizers, place.trained):
                shutil.rmtree(shared, ignore_errors=True)
    return summary


@dataclass
class _Run:
    place: Place
    options: Options
    watch: Watch
    began: float
    pending: list[Prospect] = field(default_factory=list)
    running: list[CellProcess] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    finished: Finished = field(default_factory=lambda: Finished(()))
    messages: queue.Queue[tuple[CellProcess, Any]] = field(default_factory=queue.Queue)

    def take_in(self, prospects: Sequence[Prospect]) -> None:
        """Record the outcome of cells that need no work."""
        self.code, self.pending = code_fingerprint(), []
        self.finished = Finished.read(self.place, self.code if self.options.fresh_code else None)
        if self.options.fresh_code:
            forget_other_code(self.place, self.code)
        for p in prospects:
            if p.cell.name in self.outcomes or p.state == WAITING:
                continue
            if p.error is not None:
                self._settle(Outcome(p.cell.name, UNAVAILABLE, 0.0, p.error.message, p.error.hint))
            elif p.state == FINISHED and p.job is not None:
                self.outcomes[p.cell.name] = Outcome(p.cell.name, FINISHED)
                forget_work(self.place, p.job.key)
            else:
                self.pending.append(p)

    def go(self) -> None:
        """Run until no cell is left to run."""
        while True:
            self._watch_budget()
            while len(self.running) < self.options.workers and (p := self._next()) is not None:
                self._start(p)
            if not self.running:
                return
            self._hear(0.2)
            self.watch.workers(self._lines())

    def summary(self, prospects: Sequence[Prospect]) -> tuple[Outcome, ...]:
        """Outcomes in the plan's order."""
        late = {True: "its trials are not finished", False: "it would not fit into the budget"}
        nothing = {p.cell.name: Outcome(p.cell.name, NO_TIME, 0.0, late[p.state == WAITING]) for p in prospects}
        return tuple((nothing | self.outcomes)[p.cell.name] for p in prospects)

    def stop_all(self) -> None:
        """Ask every cell to stop and wait for it."""
        for process in self.running:
            process.ask_to_stop()
        while self.running:
            self._lose_patience()
            self._hear(0.2)

    def _left(self) -> float | None:
        budget = self.options.budget
        return None if budget is None else budget - (time.monotonic() - self.began)

    def _watch_budget(self) -> None:
        left = self._left()
        if left is not None and left <= 0:
            for process in self.running:
                if process.asked_at is None:
                    self.watch.line(f"{process.job.cell.name}: the budget is used up, asked to stop")
                    process.ask_to_stop()
        self._lose_patience()

    def _lose_patience(self) -> None:
        for process in self.running:
            if process.asked_at is not None and time.monotonic() - process.asked_at > self.options.grace:
                waited = duration(self.options.grace)
                self.watch.line(f"{process.job.cell.name}: did not stop within {waited}, its process is killed")
                process.kill()

    def _next(self) -> Prospect | None:
        """The first cell that fits and whose training is not already under way in another cell."""
        left = self._left()
        busy = {process.job.training for process in self.running}
        for p in self.pending:
            assert p.job is not None
            if p.job.training not in busy and (left is None or self._estimate(p).seconds <= left):
                self.pending.remove(p)
                return p
        return None

    def _estimate(self, p: Prospect) -> Estimate:
        assert p.job is not None
        if self.finished.twin(p.job) is not None:
            return Estimate(0.0, "the same work is done")
        trained = SharedRun.of(p.job, self.place).described()
        return estimate(p.job, self.finished.cells, p.spent if trained is None else float(trained["wall"]))

    def _shared(self, job: Job) -> bool:
        """Whether another cell waits for the job's training, or may: a row has that of its best trial."""
        return job.cell.evaluations == (TRIED,) or any(
            p.job is not None and p.job.training == job.training for p in self.pending
        )

    def _start(self, p: Prospect) -> None:
        job = p.job
        assert job is not None
        folder = self.place.work(job.key)
        twin = p.result if p.state == TWIN else self.finished.twin(job)
        if twin is not None:
            try:
                result = adopt(self.place, job, twin)
            except ArtifactError as error:
                self.watch.line(f"{p.cell.name}: {error.message}, so it runs again")
            else:
                self.finished = self.finished.and_also(result)
                self._settle(Outcome(p.cell.name, TAKEN, 0.0), f"the result of {result.taken_from} is the same work")
                return
        others = set(read_journal(folder).get("codes", [])) - {self.code}
        if self.options.fresh_code and others:
            shutil.rmtree(folder, ignore_errors=True)
        left = left_result(folder, job)
        if left is not None and self._store(job, left):
            self._settle(Outcome(p.cell.name, DONE, 0.0), "was finished, only its line was missing")
            return
        again = ", resumes" if p.spent else ""
        self.watch.line(f"{p.cell.name}: starts{again}")
        o = self.options
        share = self._shared(job)
        self.running.append(CellProcess(job, folder, self.messages, o.run, o.command, o.keep, share))

    def _store(self, job: Job, result: Result) -> bool:
        if not self.place.values(result.key).exists():
            return False
        append(self.place, result)
        self.finished = self.finished.and_also(result)
        if set(result.codes) != {self.code}:
            self.watch.line(f"{job.cell.name}: another version of the code ran part of it")
        forget_work(self.place, job.key)
        if not self._shared(job):
            SharedRun.of(job, self.place).remove()
        return True

    def _hear(self, timeout: float) -> None:
        """Handle all waiting messages, or wait for the first one."""
        try:
            process, message = self.messages.get(timeout=timeout)
            while True:
                self._heard(process, message)
                process, message = self.messages.get_nowait()
        except queue.Empty:
            return

    def _heard(self, process: CellProcess, message: Any) -> None:
        if message is not None:
            line = process.heard(message)
            if line is not None:
                self.watch.line(f"{process.job.cell.name}: {line}")
            return
        outcome = process.ending()
        self.running.remove(process)
        result = left_result(process.folder, process.job) if outcome.state == DONE else None
        if outcome.state == DONE and (result is None or not self._store(process.job, result)):
            outcome = replace(outcome, state=FAILED, error="it ended without a whole result", hint="run the plan again")
        self._settle(outcome)

    def _settle(self, outcome: Outcome, words: str = "") -> None:
        self.outcomes[outcome.cell] = outcome
        told = outcome.error or words or f"after {duration(outcome.seconds)}"
        hint = f" (hint: {outcome.hint})" if outcome.hint else ""
        self.watch.line(f"{outcome.cell}: {outcome.state}, {told}{hint}")

    def _lines(self) -> list[str]:
        ahead = []
        for process in self.running:
            whole = estimate(process.job, self.finished.cells).seconds
            ahead.append(max(whole - (time.monotonic() - process.began), LEAST_LEFT * whole))
        ahead += [self._estimate(p).seconds for p in self.pending]
        total = len(self.outcomes) + len(self.running) + len(self.pending)
        head = f"{len(self.outcomes)}/{total} cells, ETA {duration(time_left(ahead, self.options.workers))}"
        return [f"[{head}] {p.job.cell.name}: {p.status}" for p in self.running]


@contextlib.contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: ask the cells to stop first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
