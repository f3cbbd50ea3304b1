"""Real processes, killed with -9 on either side; a repeated run resumes and ends with the same line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench_world import TINY, jobs_of, plan_of, run, stored, without_times, work_here

from capsid.base.storage.artifacts import read_json
from capsid.base.storage.locks import held
from capsid.bench.process import DONE, KILLED
from capsid.bench.store import Place, read_journal

LONG = [*TINY, "schedule.0.training.steps=300", "schedule.0.training.validate_every=50"]


def wait_for(what: Callable[[], object], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def test_runner_and_worker_killed(shop: Path, tmp_path: Path) -> None:
    plan = plan_of({"method": "rq-kmeans", "settings": LONG})
    (job,) = jobs_of(plan, shop)
    place, whole = Place(tmp_path / "store", "toy"), Place(tmp_path / "whole", "toy")
    work = place.work(job.key)

    # The runner, as soon as its worker is at work: the worker notices and ends.
    file = tmp_path / "toy.toml"
    file.write_text(
        f'datasets = ["shop"]\nevaluations = ["test"]\n[[cells]]\nmethod = "rq-kmeans"\nsettings = {json.dumps(LONG)}'
    )
    options = ["--store", str(place.store), "--data", f"shop={shop}", "--checkpoint-every", "0"]
    command = [sys.executable, "-m", "capsid", "bench", "run", str(file), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: read_journal(work) or process.poll() is not None)
    assert process.poll() is None
    process.kill()
    process.wait()
    with held(work / "cell.lock", wait=True):
        assert not len(stored(place))
        assert not (work / "result.json").exists()

    # The worker, in the middle of training: the runner reports it.
    def kill_worker() -> None:
        wait_for(lambda: list(work.glob("fit/*/*.checkpoint")))
        os.kill(read_journal(work)["pid"], signal.SIGKILL)

    finger = threading.Thread(target=kill_worker)
    finger.start()
    summary, _ = run(plan, place, shop)
    finger.join()
    assert [o.state for o in summary.outcomes] == [KILLED]
    assert summary.failed

    summary, watch = run(plan, place, shop)
    assert [o.state for o in summary.outcomes] == [DONE]
    assert any("generator: resuming from step" in line for line in watch.lines)
    assert "rq-kmeans/shop/0: starts, resumes" in watch.lines
    assert not work.exists()
    (result,) = stored(place)
    assert result.attempts == 3

    assert work_here(job, whole)[0] == 0
    unbroken = read_json(whole.work(job.key) / "result.json")
    assert without_times(result.to_dict()) == without_times(unbroken)
    assert len(stored(place).values(result, "test", "recall@10")) == 60
