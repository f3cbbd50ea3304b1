"""The parent of worker processes: when it replaces one, when it gives up, and what it does with one that hangs."""

from __future__ import annotations

import os
import signal
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from capsid.serve import workers
from capsid.serve.workers import Workers, _Place


def hang(port: socket.socket) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def crowd(*places: _Place, ready: set[int]) -> Workers:
    made = Workers(hang, socket.socket(), 0, lambda pid: pid in ready)
    made._places = list(places)
    return made


def place(pid: int, code: int | None = None, failures: int = 0) -> _Place:
    process: Any = SimpleNamespace(pid=pid, exitcode=code)
    pulse: Any = SimpleNamespace(close=lambda: None)
    return _Place(process=process, pulse=pulse, failures=failures)


def test_a_worker_that_was_ready_is_replaced_at_once() -> None:
    ended = place(1, -9, failures=3)
    assert crowd(ended, place(2), ready={1})._replace(ended) == 0
    assert (ended.process, ended.failures) == (None, 0)
    assert ended.due <= time.monotonic()


@pytest.mark.parametrize(("failures", "pause"), [(0, 1), (1, 2), (4, 16), (5, 30), (50, 30)])
def test_pauses_grow_while_another_serves(failures: int, pause: float) -> None:
    ended = place(1, 3, failures)
    before = time.monotonic()
    assert crowd(ended, place(2), ready={2})._replace(ended) == 0
    assert before + pause <= ended.due <= time.monotonic() + pause


@pytest.mark.parametrize(("code", "told"), [(3, 3), (1, 1), (-9, 1), (0, 1)])
def test_without_any_that_is_ready_the_service_fails(code: int, told: int) -> None:
    ended = place(1, code)
    assert crowd(ended, place(2), ready={7})._replace(ended) == told


def test_a_worker_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SILENCE", 5.0)
    with socket.socket() as port:
        hung = _Place()
        hung.start(hang, port)
        assert hung.process is not None
        assert not hung.ended()
        end = time.monotonic() + 60
        while not hung.ended():
            assert time.monotonic() < end
            time.sleep(0.05)
        assert hung.process.exitcode == -signal.SIGKILL
        hung.clear(0.0)
