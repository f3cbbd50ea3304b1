"""Loads and queries thousands of crafted run folders, in processes with little memory and time.

    python faults/fuzz_artifacts.py [--quick] [--cases N] [--first N] [--out FILE.json]

Good is an error of one sentence with a hint, or a recommender that answers. Bad is any other exception, an error
without a hint, more memory than the bound, a process that dies, or one that hangs. `--first N --cases 1` reproduces
case N.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _benchmarks
import torch
from _crafted import spoil
from common import machine, memory_now, write_result

from capsid.data.planted import planted_dataset
from capsid.errors import CapsidError
from capsid.recommender import Recommender

MEMORY = 512 << 20
SECONDS = 20
BATCH = 200
GENERATOR = ("layers=1", "heads=2", "width=16", "feedforward=16", "history=4")
TRAINING = ("steps=4", "batch_size=8", "validate_every=4")
TOKENIZER = ("encoder=hashing", "encoder.dim=16")
CAPSULES = ("tokenizer.codebooks=4,4,4", "tokenizer.training.steps=4", "tokenizer.training.validate_every=4")
# Recipe -> settings beyond those of generator and training; together they have every kind of part.
RECIPES: dict[str, tuple[str, ...]] = {
    "rq-kmeans": (*TOKENIZER, "tokenizer.codebooks=4,4", "tokenizer.restarts=1"),
    "capsid": (*TOKENIZER, *CAPSULES),
    "capsid-bpe": (*TOKENIZER, *CAPSULES, "merges.size=6", "merges.min_count=2", "merges.training.steps=4"),
    "tiger": (*TOKENIZER, "tokenizer.codebooks=4,4", "tokenizer.hidden=8", "tokenizer.latent=4", *CAPSULES[1:]),
    "frequency": (),
    "sasrec": (),
    "popularity": (),
}


class TooLong(BaseException):
    """A case takes too long. Not an Exception: a reader turns those into sentences."""


def make_runs(folder: Path, names: Sequence[str]) -> list[Path]:
    """A tiny fitted run of every recipe."""
    data = planted_dataset(branching=(3, 2), items_per_leaf=3, users=24, length=6)
    for name in names:
        settings = [*RECIPES[name]]
        if name != "popularity":
            settings += [f"generator.{s}" for s in GENERATOR] + [f"schedule.0.training.{s}" for s in TRAINING]
        Recommender.from_recipe(name, settings=settings).fit(data).save_pretrained(folder / name)
    return [folder / name for name in names]


def ask(folder: Path) -> str:
    """Load a run and use it; what it said, if it refused. Anything but a CapsidError goes through."""
    try:
        recommender = Recommender.from_pretrained(folder)
        items = list(recommender.catalogue_.items)
        recommender.recommend(items[:2], 3)
        recommender.recommend([], 3)
        recommender.fitted.tokenizer.ids.statistics()
        recommender.evaluate("test", ks=(3,))
    except CapsidError as error:
        if not error.hint:
            raise AssertionError(f"no hint: {error.message}") from error
        if len(error.message) > 2_000 or "\x1b" in error.message:
            raise AssertionError(f"not for a terminal: {error.message[:200]!r}") from error
        return error.message
    return ""


def one(number: int, runs: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Craft case `number` and ask it."""
    shutil.copytree(runs[number % len(runs)], folder)
    try:
        group, about = spoil(folder, number)
        found = {"case": number, "run": runs[number % len(runs)].name, "group": group, "about": about}
        before, began = memory_now(), time.monotonic()
        signal.alarm(SECONDS)
        try:
            said = ask(folder)
            found |= {"verdict": "refused" if said else "accepted", "said": said}
        except MemoryError:
            found |= {"verdict": "memory", "said": traceback.format_exc(limit=-3)}
        except TooLong:
            found |= {"verdict": "hang", "said": traceback.format_exc(limit=-3)}
        except Exception:
            found |= {"verdict": "traceback", "said": traceback.format_exc(limit=-3)}
        finally:
            signal.alarm(0)
        if memory_now() - before > MEMORY:
            found["verdict"] = "memory"
        return found | {"seconds": round(time.monotonic() - began, 3)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def batch(first: int, last: int, runs: Sequence[Path], scratch: Path) -> list[dict[str, Any]]:
    """Cases in a process of their own, whose memory is bounded; one that dies is a finding and the rest goes on."""
    results: list[dict[str, Any]] = []
    while first < last:
        job = json.dumps({"numbers": [first, last], "runs": [str(r) for r in runs], "scratch": str(scratch)})
        command = [sys.executable, __file__, "--work", job]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        results += answers
        first = answers[-1]["case"] + 1 if answers else first
        if first < last:
            about = f"the process ended with code {done.returncode}"
            results.append({"case": first, "group": "?", "about": "", "verdict": "died", "said": about})
            first += 1
    return results


def work(job: dict[str, Any]) -> None:
    """What such a process does: a JSON line for every case."""
    torch.set_num_threads(1)
    runs = [Path(r) for r in job["runs"]]
    # Everything is loaded and every library has its buffers before memory is bounded.
    for run in runs:
        ask(run)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * MEMORY, size + 2 * MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    for number in range(*job["numbers"]):
        print(json.dumps(one(number, runs, Path(job["scratch"]) / "crafted")), flush=True)
        signal.signal(signal.SIGALRM, _too_long)


def _too_long(number: int, frame: Any) -> None:
    # A case that does not hear the first alarm is ended by the second, and its process with it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    raise TooLong(f"not done after {SECONDS} s")


def campaign(cases: int, first: int, names: Sequence[str], scratch: Path) -> list[dict[str, Any]]:
    """All cases, with a line of progress now and then."""
    runs = make_runs(scratch / "runs", names)
    results: list[dict[str, Any]] = []
    for start in range(first, first + cases, BATCH):
        results += batch(start, min(start + BATCH, first + cases), runs, scratch)
        bad = sum(r["verdict"] not in ("refused", "accepted") for r in results)
        print(f"{len(results):,} of {cases:,} folders, {bad} bad", file=sys.stderr, flush=True)
    return results


def summary(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Counts of every verdict by group."""
    groups: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        groups[result["group"]][result["verdict"]] += 1
    return {name: dict(sorted(groups[name].items())) for name in sorted(groups)}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="140 folders of two recipes")
    parser.add_argument("--cases", type=int, help="how many folders (default 5600)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(json.loads(options.work))
        sys.exit(0)
    torch.set_num_threads(1)
    cases = options.cases or (140 if options.quick else 5_600)
    names = ["rq-kmeans", "capsid-bpe"] if options.quick else list(RECIPES)
    with tempfile.TemporaryDirectory() as scratch:
        results = campaign(cases, options.first, names, Path(scratch))
    bad = [r for r in results if r["verdict"] not in ("refused", "accepted")]
    for result in bad[:20]:
        print(f"case {result['case']} ({result['group']}: {result['about']}): {result['verdict']}\n{result['said']}")
    found = {"cases": len(results), "bad": len(bad), "groups": summary(results)}
    print(json.dumps(found, indent=1))
    slowest = max((r.get("seconds", 0.0) for r in results), default=0.0)
    result = {**found, "slowest_seconds": slowest, "memory_bound_mb": MEMORY >> 20, "machine": machine(1)}
    if options.out or not options.quick:
        out = options.out or _benchmarks.RESULTS / "fuzz_artifacts.json"
        write_result("fuzz_artifacts", out, {"cases": cases, "first": options.first, "runs": names}, result)
    return {**result, "bad_cases": bad}


if __name__ == "__main__":
    sys.exit(1 if main()["bad"] else 0)
