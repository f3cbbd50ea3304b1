"""Kills fit, bench, import and predict at random moments: nothing is half-written, and resumed runs are bit-identical.

    python faults/kills.py [--quick] [--kills N] [--seed N] [--out FILE.json]

Every round starts a command and kills it at a moment drawn from the time that the whole command takes, a few times in a
row, and then lets it finish. After each kill the output must be complete or absent; at the end it must equal that of a
command that was never killed, and nothing else may be left in its folder.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _benchmarks
import _forked
import faiss  # noqa: F401  (loaded once, before any fork)
import numpy as np
import scipy.sparse  # noqa: F401
import torch
from common import machine, write_result
from fuzz_artifacts import GENERATOR, RECIPES

from capsid.base.storage.artifacts import MANIFEST, open_folder
from capsid.cli.main import run
from capsid.errors import ArtifactError

SETTINGS = [
    *RECIPES["rq-kmeans"],
    *(f"generator.{s}" for s in GENERATOR),
    *(f"schedule.0.training.{s}" for s in ("steps=24", "batch_size=16", "validate_every=8")),
]
# Files of a run and a store that hold times, which differ from run to run.
TIMED = ("log.json", MANIFEST)
MOST_IN_A_ROW = 4
SECONDS = 300
# How many of a hundred kills each verb gets: a cell of the benchmark starts processes, which takes longest.
SHARES = {"fit": 50, "import": 24, "predict": 20, "bench": 6}


@dataclass(frozen=True)
class Verb:
    """A command that writes `name` into a folder, and what must be equal afterwards."""

    name: str
    command: Callable[[Path], list[str]]
    content: Callable[[Path], Any]
    kind: str | None = None


def verbs(scratch: Path) -> dict[str, Verb]:
    """The four commands, on a small shop."""
    shop, fitted, plan = scratch / "shop", scratch / "fitted", scratch / "toy.toml"
    settings = [part for s in SETTINGS for part in ("--set", s)]
    plan.write_text(
        'datasets = ["shop"]\nevaluations = ["test"]\n[[cells]]\nmethod = "rq-kmeans"\nsettings = '
        + json.dumps(SETTINGS)
    )
    fit = ["fit", "rq-kmeans", "--data", str(shop), *settings, "--exact", "--checkpoint-every", "0", "--out"]
    bench = ["bench", "run", str(plan), "--data", f"shop={shop}", "--checkpoint-every", "0", "--store"]
    return {
        "fit": Verb("run", lambda f: [*fit, str(f / "run")], lambda f: _files(f / "run"), "run"),
        "import": Verb(
            "new",
            lambda f: ["data", "import", str(shop), "--force", "--out", str(f / "new")],
            lambda f: _files(f / "new"),
            "dataset",
        ),
        "predict": Verb(
            "lists",
            lambda f: ["predict", str(fitted), "-k", "5", "--force", "--out", str(f / "lists")],
            lambda f: (f / "lists").read_bytes(),
        ),
        "bench": Verb("store", lambda f: [*bench, str(f / "store")], lambda f: _metrics(f / "store")),
    }


def _files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: data for name, data in found.items() if name not in TIMED}


def _metrics(store: Path) -> Any:
    """The metrics of every stored cell; other fields hold times."""
    lines = [json.loads(line) for path in sorted(store.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    cells = [line for line in lines if "evaluations" in line]
    return [[(name, e["metrics"]) for name, e in cell["evaluations"].items()] for cell in cells]


def execute(command: Sequence[str], log: Path, *, kill_after: float | None = None) -> int:
    """The exit code of `capsid`; with `kill_after` it and what it started are killed after so many seconds."""
    child = _forked.start(lambda: run(list(command)), log=log)
    if kill_after is not None:
        end = time.monotonic() + kill_after
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(min(0.005, max(0.0, end - time.monotonic())))
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)
    return _forked.wait(child)


def half_written(verb: Verb, folder: Path) -> str:
    """What is half-written after a kill; empty if the output is whole or absent."""
    out = folder / verb.name
    if verb.kind is None or not out.exists():
        return ""
    try:
        open_folder(out, kind=verb.kind)
    except ArtifactError as error:
        return error.message
    return ""


def round_of(
    verb: Verb, folder: Path, whole: Any, seconds: float, rng: np.random.Generator, most: int
) -> dict[str, Any]:
    """Kill a command up to `most` times in a row, let it finish, and compare."""
    folder.mkdir()
    log, moments, wrong = folder.with_suffix(".log"), [], ""
    for _ in range(int(rng.integers(1, most + 1))):
        moment = float(rng.uniform(0, 1.05 * seconds))
        code = execute(verb.command(folder), log, kill_after=moment)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            wrong = wrong or f"exit code {code}: {log.read_text()[-600:]}"
        moments.append(round(moment, 3))
        wrong = wrong or half_written(verb, folder)
    code = execute(verb.command(folder), log)
    if code != 0:
        wrong = wrong or f"resumed with exit code {code}: {log.read_text()[-600:]}"
    elif verb.content(folder) != whole:
        wrong = wrong or "other bits than without a kill"
    left = sorted(p.name for p in folder.iterdir() if p.name != verb.name)
    return {"kills": len(moments), "moments": moments, "wrong": wrong or (f"left {left}" if left else "")}


def campaign(kills: int, seed: int, scratch: Path) -> dict[str, dict[str, Any]]:
    """Rounds of every verb until each has its share of the kills."""
    from capsid.data.planted import planted_dataset
    from capsid.data.prepared import write_prepared

    def prepare() -> int:
        data = planted_dataset(branching=(4, 2, 2), items_per_leaf=4, users=120, length=8)
        write_prepared(data, scratch / "shop")
        return 0

    assert _forked.wait(_forked.start(prepare)) == 0
    every = verbs(scratch)
    fit = [*every["fit"].command(scratch / "no")[:-1], str(scratch / "fitted")]
    assert execute(fit, scratch / "fit.log") == 0, (scratch / "fit.log").read_text()
    rng, results = np.random.default_rng(seed), {}
    for name, verb in every.items():
        wanted = kills * SHARES[name] // 100
        if not wanted:
            continue
        whole = scratch / f"{name}-whole"
        whole.mkdir()
        began = time.monotonic()
        assert execute(verb.command(whole), scratch / "whole.log") == 0, (scratch / "whole.log").read_text()
        seconds, content = time.monotonic() - began, verb.content(whole)
        rounds: list[dict[str, Any]] = []
        while (left := wanted - sum(r["kills"] for r in rounds)) > 0 and len(rounds) < 20 * wanted:
            folder = scratch / f"{name}-{len(rounds)}"
            rounds.append(round_of(verb, folder, content, seconds, rng, min(MOST_IN_A_ROW, left)))
        bad = [r for r in rounds if r["wrong"]]
        results[name] = {"kills": sum(r["kills"] for r in rounds), "rounds": len(rounds), "bad": bad}
        print(f"{name}: {results[name]['kills']} kills, {len(bad)} bad", file=sys.stderr, flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="2 kills of fit, one of import, one of predict")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(CAPSID_HOME=f"{scratch}/home", OMP_NUM_THREADS="1", POLARS_MAX_THREADS="1")
        results = campaign(5 if options.quick else options.kills, options.seed, Path(scratch))
    total = Counter[str]()
    for found in results.values():
        total.update(kills=found["kills"], rounds=found["rounds"], bad=len(found["bad"]))
    for name, found in results.items():
        for wrong in found["bad"]:
            print(f"{name}: killed after {wrong['moments']} s: {wrong['wrong']}")
    outcome = {**total, "verbs": results, "date": datetime.date.today().isoformat()}
    print(json.dumps(dict(total)))
    if options.out or not options.quick:
        config = {"kills": options.kills, "seed": options.seed, "settings": SETTINGS}
        write_result(
            "kills", options.out or _benchmarks.RESULTS / "kills.json", config, {**outcome, "machine": machine(1)}
        )
    return outcome


if __name__ == "__main__":
    sys.exit(1 if main()["bad"] else 0)
