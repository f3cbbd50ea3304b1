"""Workers on this machine: single-threaded processes that get shard numbers on their standard input.

A worker that is killed or crashes is replaced, and its shard is retried at most three times. If this process is killed,
workers notice that their input has closed and end after their current shard. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from capsid.base.run_options import ONE_THREAD

COMMAND = (sys.executable, "-m", "capsid.scale.worker")
TRIES = 3


def run_in_processes(job: str, numbers: Sequence[int], workers: int) -> Iterator[dict[str, Any]]:
    """The answers of `run_shard`, as they come."""
    pool = _Pool(job, numbers)
    threads = [threading.Thread(target=pool.serve, daemon=True) for _ in range(min(workers, len(numbers)))]
    for thread in threads:
        thread.start()
    try:
        for _ in numbers:
            yield pool.answers.get()
    finally:
        pool.stop()
        for thread in threads:
            thread.join()


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
