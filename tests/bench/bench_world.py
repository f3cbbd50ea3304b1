"""Plans so small that a cell takes a moment, a watcher, and a cell's process that only pretends to work."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worlds import Watcher

from capsid.base.run_options import RunOptions
from capsid.base.storage.artifacts import write_json
from capsid.bench.cells import Job, make_job
from capsid.bench.plans import Plan, make_plan
from capsid.bench.prepare import Prospect, data_facts
from capsid.bench.process import JOB
from capsid.bench.results import Results, load
from capsid.bench.runner import Options, Summary, run_plan
from capsid.bench.store import Place
from capsid.bench.worker import Told, work

TINY = (
    "encoder=hashing",
    "encoder.dim=16",
    "tokenizer.codebooks=6,6",
    "tokenizer.restarts=1",
    "generator.layers=1",
    "generator.heads=2",
    "generator.width=8",
    "generator.feedforward=16",
    "generator.history=6",
    "decoder.width=15",
    "schedule.0.training.steps=12",
    "schedule.0.training.batch_size=32",
    "schedule.0.training.validate_every=4",
    "schedule.0.training.learning_rate=0.01",
    "schedule.0.training.validation_users=20",
)

# Pretends by the first word of its label, and leaves the result of a real cell as its own.
FAKE = """
import json, os, shutil, signal, sys, time

folder = sys.argv[1]
job = json.load(open(os.path.join(folder, "job.json")))
cell, template = job["cell"], sys.argv[0].replace("fake.py", "")
what = cell["label"].split("-")[0]


def say(**message):
    print(json.dumps(message), flush=True)


open(os.path.join(os.path.dirname(folder), "started.txt"), "a").write(cell["label"] + "\\n")
if what == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(line="works")
if what == "error":
    say(error="it cannot be", hint="do something else")
    sys.exit(1)
if what == "crash":
    raise RuntimeError("a bug of ours")
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("sleep", "stubborn"):
    say(update="asleep")
    time.sleep(100)
result = json.load(open(template + "result.json"))
same = {name: cell[name] for name in ("plan", "method", "label", "dataset", "seed", "settings")}
result.update(same, fingerprint=job["fingerprint"], key=job["key"], recipe=job["recipe"])
values = os.path.join(folder, "..", "..", "values", job["key"] + ".npz")
os.makedirs(os.path.dirname(values), exist_ok=True)
shutil.copy(template + "values.npz", values)
json.dump(result, open(os.path.join(folder, "result.json"), "w"))
"""


class Watch(Watcher):
    """Remembers what a run told."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[list[str]] = []
        self.prospects: list[Prospect] = []
        self.starts: list[bool] = []

    def workers(self, lines: Sequence[str]) -> None:
        if lines:
            self.shown.append(list(lines))

    def plan(self, prospects: Sequence[Prospect], starts: Sequence[bool]) -> None:
        self.prospects, self.starts = list(prospects), list(starts)


def plan_of(*groups: dict[str, Any], name: str = "toy", **more: Any) -> Plan:
    return make_plan({"name": name, "datasets": ["shop"], "evaluations": ["test"], **more, "cells": list(groups)}, name)


def fakes(*labels: str, **more: Any) -> Plan:
    """Cells that are different work, to be pretended."""
    return plan_of(
        *({"method": "popularity", "label": w, "settings": [f"decoder.width={n + 5}"]} for n, w in enumerate(labels)),
        **more,
    )


def run(plan: Plan, place: Place, shop: Path, fake: Path | None = None, **options: Any) -> tuple[Summary, Watch]:
    watch = Watch()
    if fake is not None:
        options["command"] = (sys.executable, "-S", str(fake))
    how = Options(run=RunOptions(checkpoint_every=0.0), **options)
    return run_plan(plan, place, {"shop": str(shop)}, how, watch), watch


def jobs_of(plan: Plan, shop: Path) -> list[Job]:
    facts = data_facts("shop", str(shop), download=False)
    return [make_job(cell, facts) for cell in plan.cells]


class Messages(Told):
    """What a worker says; a word in it can end everything, as a kill would."""

    def __init__(self, deadly: str | None = None) -> None:
        super().__init__(io.StringIO())
        self.deadly = deadly
        self.said: list[dict[str, Any]] = []

    def update(self, text: str) -> None:
        self.say(update=text)

    def say(self, **message: Any) -> None:
        self.said.append(message)
        if self.deadly and any(self.deadly in str(text) for text in message.values()):
            raise Killed

    @property
    def lines(self) -> list[str]:
        return [m["line"] for m in self.said if "line" in m]


class Killed(BaseException):
    """Not even `except Exception` holds it."""


def work_here(job: Job, place: Place, messages: Messages | None = None, *, share: bool = False) -> tuple[int, Messages]:
    """What a cell's process does, in this one."""
    messages = messages or Messages()
    write_json(place.work(job.key) / JOB, {**job.to_dict(), "run": {"checkpoint_every": 0.0}, "share": share})
    return work(place.work(job.key), messages), messages


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """A stored line without what may differ between two runs of the same work."""
    kept = {k: v for k, v in line.items() if k not in ("seconds", "started", "ended", "attempts", "peak_memory_mb")}
    kept = {k: v for k, v in kept.items() if k not in ("tokenizer_shared", "code", "codes", "key")}
    kept["evaluations"] = {
        name: {k: v for k, v in found.items() if k != "seconds"} for name, found in line["evaluations"].items()
    }
    times = ("seconds", "tokens_per_second")
    kept["log"] = [
        {k: v for k, v in phase.items() if k not in times}
        | {"curve": [{k: v for k, v in point.items() if k != "seconds"} for point in phase["curve"]]}
        for phase in line["log"]
    ]
    return json.loads(json.dumps(kept))


def stored(place: Place) -> Results:
    return load(place.store, place.plan)
