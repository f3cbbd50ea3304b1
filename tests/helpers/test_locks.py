"""Locks: one holder at a time, named, and nothing left of the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from capsid.base.storage.locks import held, holder

HOLD = """
import sys, time
from pathlib import Path
from capsid.base.storage.locks import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with held(tmp_path / "lock", waiting=lambda: order.append("waits")):
            order.append("second")

    with held(tmp_path / "lock") as got:
        assert got
        other = threading.Thread(target=second)
        other.start()
        while "waits" not in order:
            time.sleep(0.01)
        order.append("first")
    other.join()
    assert order == ["waits", "first", "second"]
    assert not (tmp_path / "lock").exists()


def test_a_taken_lock_names_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with held(lock), held(lock, wait=False) as second:
        assert not second
        by = holder(lock)
        assert by is not None
        assert by.pid == os.getpid()
        assert str(by) == f"process {os.getpid()}, for 0 s"
    assert holder(lock) is None


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, lock], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with held(lock, wait=False) as got:
        assert not got
        by = holder(lock)
        assert by is not None
        assert by.pid == process.pid
    process.kill()
    process.communicate()
    assert lock.exists(), "a killed process removes nothing"
    with held(lock, wait=False) as got:
        assert got
    assert not lock.exists()


def test_many_threads_never_hold_it_together(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with held(tmp_path / "lock"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
