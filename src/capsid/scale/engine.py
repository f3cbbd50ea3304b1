"""Engines run the shards of a job: this process, processes on this machine, or Ray tasks on any number of machines.

An engine gets a job as text and the numbers of its shards, and hands out names, never rows. If a worker is killed,
another one repeats its shard, three times at most; the others are not affected. Results arrive as they finish. Nothing
is pickled. Processes have one thread each and get shard numbers on their standard input; if this process is killed,
they notice that their input has closed and end after their current shard. Ray itself retries the task of a worker or
machine that died; on this machine it starts with a small object store, and without dashboard and usage statistics.
Knows no concrete job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from capsid.base.run_options import ONE_THREAD
from capsid.errors import CapsidError, ConfigError, nearest, reason_of
from capsid.progress import Progress, silent
from capsid.scale.jobs import Job, job_text, opened, run_shard, shard_done
from capsid.scale.shards import (
    Part,
    ShardDone,
    Shards,
    ShardsDone,
    check_folder,
    collect,
    numbers_of,
    shard_lock,
    write_shard,
)

COMMAND = (sys.executable, "-m", "capsid.scale.worker")
TRIES = 3
# Tasks that are handed over per worker: one runs, one waits, so that no worker idles.
AHEAD = 2
# The least that Ray allows; answers have some hundred bytes.
STORE_BYTES = 80 << 20
ANSWER_SECONDS = 5.0
START_HINT = "start one with `ray start --head`, or use --engine processes"
INSTALL_HINT = "pip install 'capsid-rec[scale]' -c constraints.txt"


class Engine(Protocol):
    """Makes shards somewhere."""

    kind: ClassVar[str]

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        """Make these shards; the first error stops the run and is raised."""


@dataclass(frozen=True)
class Here:
    """One shard after the other in this process."""

    kind: ClassVar[str] = "here"

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        shards = opened(job)
        try:
            for number in numbers:
                yield write_shard(shards, number)
        finally:
            # Whatever the job has loaded is not needed any more.
            opened.cache_clear()


@dataclass(frozen=True)
class Processes:
    """Processes of one thread each on this machine."""

    kind: ClassVar[str] = "processes"
    workers: int

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        pool = _Pool(job, numbers)
        threads = [threading.Thread(target=pool.serve, daemon=True) for _ in range(min(self.workers, len(numbers)))]
        for thread in threads:
            thread.start()
        try:
            for _ in numbers:
                yield shard_done(pool.answers.get())
        finally:
            pool.stop()
            for thread in threads:
                thread.join()


@dataclass(frozen=True)
class Ray:
    """Ray tasks: on the cluster at `address`, or on a cluster of this machine that ends with the run."""

    kind: ClassVar[str] = "ray"
    workers: int | None = None
    address: str | None = None

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        with connected(self.workers, self.address) as ray:
            task = ray.remote(num_cpus=1, max_retries=TRIES)(run_shard)
            most = AHEAD * (self.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1))
            left, waiting = iter(numbers), {}
            try:
                while True:
                    for number in left:
                        waiting[task.remote(job, number)] = number
                        if len(waiting) >= most:
                            break
                    if not waiting:
                        return
                    (done,), _ = ray.wait(list(waiting), num_returns=1)
                    yield shard_done(_answer(ray, done, waiting.pop(done)))
            finally:
                for reference in waiting:
                    ray.cancel(reference, force=False)


ENGINES = (Here.kind, Processes.kind, Ray.kind)


def engine_named(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name; options that it does not have are errors."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r:.60}", hint=nearest(name[:60], ENGINES))
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {workers}", hint="such as --workers 4")
    if name == Here.kind and workers not in (None, 1):
        raise ConfigError(f"the engine 'here' has one worker, got --workers {workers}", hint="add --engine processes")
    if address is not None and name != Ray.kind:
        raise ConfigError(f"--address is for --engine ray, got --engine {name}", hint="add --engine ray")
    if name == Ray.kind:
        return Ray(workers, address)
    return Processes(workers or os.cpu_count() or 1) if name == Processes.kind else Here()


def run_job(
    job: Job, engine: Engine | None = None, *, part: Part = (1, 1), progress: Progress = silent
) -> tuple[Shards, ShardsDone]:
    """Make the shards of a job that are not there yet; returns the opened folder and what was done.

    `part` (i, n) takes every n-th shard beginning with the i-th. Which engine makes a shard does not change a byte.
    """
    shards, engine = job.open(), engine or Here()
    numbers = numbers_of(part, shards.count)
    check_folder(shards)
    with shard_lock(shards.folder, part):
        return shards, collect(shards, engine.map(job_text(job), numbers), progress, job.kind)


class _Pool:
    """Numbers to do, answers, and the processes that are at work."""

    def __init__(self, job: str, numbers: Sequence[int]) -> None:
        self.job = job
        self.todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in numbers:
            self.todo.put(number)
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stopped = threading.Event()
        self.running: set[_Worker] = set()
        self.lock = threading.Lock()

    def serve(self) -> None:
        """One worker's life: a number, an answer, until nothing is left. A dead process is replaced."""
        worker: _Worker | None = None
        while not self.stopped.is_set():
            try:
                number = self.todo.get_nowait()
            except queue.Empty:
                break
            answer: dict[str, Any] | None = None
            tries = 0
            while answer is None:
                worker, tries = worker or self._start(), tries + 1
                if worker is None:
                    return
                answer = worker.ask(number)
                if answer is None:
                    death = worker.death(number, tries)
                    self._dropped(worker)
                    answer, worker = death if tries == TRIES else None, None
            self.answers.put(answer)
        if worker is not None:
            worker.end()
            self._dropped(worker)

    def stop(self) -> None:
        """End the workers that are still at a shard, because an error or an interrupt ended the run."""
        with self.lock:
            self.stopped.set()
            for worker in self.running:
                worker.terminate()

    def _start(self) -> _Worker | None:
        with self.lock:
            if self.stopped.is_set():
                return None
            try:
                worker = _Worker(self.job)
            except OSError as error:
                said = f"a worker could not be started: {error.strerror}"
                self.answers.put({"number": -1, "error": said, "hint": "use fewer --workers"})
                return None
            self.running.add(worker)
            return worker

    def _dropped(self, worker: _Worker) -> None:
        with self.lock:
            self.running.discard(worker)


class _Worker:
    """One process."""

    def __init__(self, job: str) -> None:
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            # Ctrl-C must reach only this process, which then ends its workers.
            start_new_session=True,
        )
        self._say(job)

    def ask(self, number: int) -> dict[str, Any] | None:
        """Have a shard done; None if the process died of it."""
        assert self.process.stdout is not None
        self._say(str(number))
        try:
            return json.loads(self.process.stdout.readline())
        except (ValueError, OSError):
            return None

    def death(self, number: int, attempt: int) -> dict[str, Any]:
        """Why the process is gone, as an error of the shard."""
        code = self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        memory = "; it may have been out of memory" if code == -signal.SIGKILL else ""
        said = f"the worker of shard {number} {how}, {attempt} times in a row{memory}"
        return {"number": number, "error": said, "hint": "finished shards are kept: run the same command again"}

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()

    def terminate(self) -> None:
        """End the process at once; a half-written shard leaves only a hidden file that is reused."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    def _say(self, text: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # a dead process: `ask` notices
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()


class RayError(CapsidError):
    """Ray could not be reached, or gave up."""


def _answer(ray: Any, reference: Any, number: int) -> dict[str, Any]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        # A bug in a shard keeps its traceback.
        raise
    except ray.exceptions.RayError as error:
        message = f"Ray gave up on shard {number} after {TRIES} retries: {reason_of(error)}"
        raise RayError(message, hint="finished shards are kept: run the same command again") from None


@contextlib.contextmanager
def connected(workers: int | None, address: str | None) -> Iterator[Any]:
    """Ray, connected; disconnected afterwards unless the caller was connected already."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("the engine 'ray' needs Ray, which is not installed", hint=INSTALL_HINT) from None
    if address is not None:
        _check_address(address)
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    options["runtime_env"] = {"env_vars": ONE_THREAD}
    if address is None:
        # Without "local", Ray joins a cluster that happens to run on this machine.
        options |= {"address": "local", "num_cpus": workers}
        options |= {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    else:
        options["address"] = address
    _init(ray, options)
    try:
        yield ray
    finally:
        ray.shutdown()


def _init(ray: Any, options: dict[str, Any]) -> None:
    # Ray waits 30 seconds for its own processes. That may be too short on a busy machine, so a start is tried again.
    for last in (False, True):
        try:
            ray.init(**options)
            return
        except Exception as error:  # Ray raises anything, from ConnectionError to a plain Exception
            ray.shutdown()
            if options["address"] == "local" and not last:
                continue
            message = f"a Ray cluster does not answer at {options['address']!r:.100}: {reason_of(error)}"
            raise RayError(message, hint=START_HINT) from None


def _check_address(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host and not port.isdigit():
        return  # a name such as auto, which Ray looks up
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"--address must be HOST:PORT or auto, got {address!r:.100}", hint="such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise RayError(
            f"a Ray cluster does not answer at {address!r:.100}: {getattr(error, 'strerror', None) or error}",
            hint=START_HINT,
        ) from None
