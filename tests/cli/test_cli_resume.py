"""A fit killed in the middle: nothing half-written, and the same command ends with the same bits as an unbroken one."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from cli_world import capsid, contents, settings

STEPS = settings("schedule.0.training.steps=400", "schedule.0.training.validate_every=25")


def test_killed_and_resumed_gives_the_same_bits(shop: Path, fitted: Path, tmp_path: Path) -> None:
    # `fitted` has filled the cache of vectors, so that the killed process trains at once.
    out = tmp_path / "run"
    command = ["fit", "rq-kmeans", "--data", str(shop), "--out", str(out), *STEPS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "capsid", *command], stderr=subprocess.PIPE, env=environment, text=True
    )
    wait_for_checkpoint(tmp_path / ".run.work", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    half = capsid("evaluate", out)
    assert (half.code, "there is no folder" in half.err) == (1, True)

    resumed = capsid(*command)
    assert resumed.code == 0, resumed.err
    assert "resuming from step" in resumed.err
    assert [p.name for p in tmp_path.iterdir()] == ["run"], "no working folder is left"

    whole = tmp_path / "whole"
    unbroken = capsid("fit", "rq-kmeans", "--data", shop, "--out", whole, *STEPS)
    assert "going on" not in unbroken.err
    broken_off, never = contents(out), contents(whole)
    assert broken_off.keys() == never.keys()
    # The log and the manifest hold times.
    assert {n for n in never if never[n] != broken_off[n]} <= {"log.json", "manifest.json"}


def wait_for_checkpoint(work: Path, process: subprocess.Popen[str], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not list(work.glob("*/*.checkpoint")):
        assert process.poll() is None, f"ended before it could be killed: {process.communicate()[1]}"
        assert time.monotonic() < until, "no checkpoint was written"
        time.sleep(0.01)


def test_control_c_leaves_work_to_resume(shop: Path, tmp_path: Path) -> None:
    over = threading.Event()

    def press() -> None:
        while not list((tmp_path / ".run.work").glob("*/*.checkpoint")) and not over.is_set():
            time.sleep(0.01)
        if not over.is_set():
            _thread.interrupt_main()

    # A shell starts background jobs deaf to Control-C, and they bequeath it; there the finger would press in vain.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    finger = threading.Thread(target=press)
    finger.start()
    # So many steps that the interruption surely comes first.
    long = settings("schedule.0.training.steps=1000000", "schedule.0.training.validate_every=20")
    stopped = capsid("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", *long)
    over.set()
    finger.join()
    signal.signal(signal.SIGINT, before)
    assert stopped.code == 130
    assert stopped.err.endswith("\nstopped; run the same command again to resume\n")
    assert "Traceback" not in stopped.err
    assert [p.name for p in tmp_path.iterdir()] == [".run.work"]
