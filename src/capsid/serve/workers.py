"""Worker processes that share a port: starts them, replaces those that end, and stops them on a signal.

A worker that cannot start ends the service only if no other is ready: a run that cannot be loaded should be noticed at
once, but a folder that is being exchanged while one worker restarts should not stop the others. Knows no HTTP.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

logger = logging.getLogger("capsid.serve")
_SPAWN = multiprocessing.get_context("spawn")
# Seconds between two looks at the workers, and between two signs of life of a worker.
_LOOK, _BEAT = 0.1, 1.0
# A worker without a sign of life for this long hangs. Not less: on a busy machine, importing and loading a run may hold
# the interpreter for many seconds.
_SILENCE = 60.0
# Seconds before a worker is started again that ended before it was ready: twice as long each time, up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

Target = Callable[[socket.socket], None]


@dataclass
class _Place:
    """One of the workers; `process` is None until `due`."""

    process: SpawnProcess | None = None
    pulse: Connection | None = None
    heard: float = 0.0
    due: float = 0.0
    failures: int = 0

    def start(self, target: Target, port: socket.socket) -> None:
        self.pulse, told = _SPAWN.Pipe(duplex=False)
        self.process = _SPAWN.Process(target=_work, args=(target, port, told))
        self.process.start()
        told.close()
        self.heard = time.monotonic()

    def ended(self) -> bool:
        """Whether the process has ended; one that hangs is killed."""
        assert self.process is not None
        assert self.pulse is not None
        if not self.process.is_alive():
            return True
        try:
            while self.pulse.poll():
                self.pulse.recv_bytes()
                self.heard = time.monotonic()
        except EOFError:
            pass
        if time.monotonic() - self.heard < _SILENCE:
            return False
        logger.error("worker %d has given no sign of life for %g s and is killed", self.process.pid, _SILENCE)
        self.process.kill()
        self.process.join()
        return True

    def clear(self, pause: float) -> None:
        """Forget a process that has ended; the next may start after the pause."""
        assert self.pulse is not None
        self.pulse.close()
        self.process = self.pulse = None
        self.due = time.monotonic() + pause


class Workers:
    """Runs `target` with the port in `count` processes; `ready` says whether the process with a pid was ever ready."""

    def __init__(self, target: Target, port: socket.socket, count: int, ready: Callable[[int], bool]) -> None:
        self._target, self._port, self._ready = target, port, ready
        self._places = [_Place() for _ in range(count)]
        self._asked = False

    def run(self) -> int:
        """Keep the workers alive until SIGINT or SIGTERM. Returns the exit code of the service: 0 after a signal."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        code = 0
        while not self._asked and not code:
            code = self._look()
            time.sleep(_LOOK)
        self._end()
        return 0 if self._asked else code

    def _stop(self, number: int, frame: object) -> None:
        self._asked = True

    def _look(self) -> int:
        """Replace workers that have ended; returns an exit code if the service should end."""
        for place in self._places:
            if place.process is None:
                if time.monotonic() >= place.due:
                    place.start(self._target, self._port)
            elif place.ended() and not self._asked and (code := self._replace(place)):
                return code
        return 0

    def _replace(self, place: _Place) -> int:
        assert place.process is not None
        pid, code = place.process.pid, place.process.exitcode
        if self._was_ready(place):
            place.failures, pause = 0, 0.0
        elif any(other is not place and self._was_ready(other) for other in self._places):
            place.failures += 1
            pause = min(_FIRST_PAUSE * 2 ** (place.failures - 1), _LONGEST_PAUSE)
        else:
            logger.error("worker %s ended before it was ready (exit code %s) and no other is: stopping", pid, code)
            return code if code is not None and code > 0 else 1
        logger.error("worker %s ended (exit code %s); another is started in %g s", pid, code, pause)
        place.clear(pause)
        return 0

    def _was_ready(self, place: _Place) -> bool:
        return place.process is not None and place.process.pid is not None and self._ready(place.process.pid)

    def _end(self) -> None:
        """Tell all workers to end, and wait. They share the port, so it closes when the last of them has closed it."""
        self._port.close()
        running = [place.process for place in self._places if place.process is not None]
        for process in running:
            process.terminate()
        for process in running:
            process.join()


def _work(target: Target, port: socket.socket, pulse: Connection) -> None:
    """The main function of a worker."""
    threading.Thread(target=_beat, args=(pulse,), daemon=True).start()
    try:
        target(port)
    except KeyboardInterrupt:
        return  # from the terminal, which tells the parent too


def _beat(pulse: Connection) -> None:
    """Give signs of life. If the parent has gone, end as well: nobody else would free the port."""
    while True:
        try:
            pulse.send_bytes(b".")
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(_BEAT)


class Peers:
    """The workers of one service, each of which creates a file when it is ready. Without a folder there is one worker.

    A worker that is restarted later does not make the others unready: its own queries are refused until it is ready.
    """

    def __init__(self, folder: Path | None, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._complete = folder is None or workers == 1

    def join(self) -> None:
        if self._folder is not None:
            _file(self._folder, os.getpid()).touch()

    @property
    def complete(self) -> bool:
        """Whether as many processes as there are workers have got ready, once or at the same time."""
        if not self._complete and self._folder is not None:
            self._complete = sum(1 for _ in self._folder.glob("ready-*")) >= self._workers
        return self._complete


def has_joined(folder: Path, pid: int) -> bool:
    """Whether the process with this number was ever ready."""
    return _file(folder, pid).exists()


def _file(folder: Path, pid: int) -> Path:
    return folder / f"ready-{pid}"
