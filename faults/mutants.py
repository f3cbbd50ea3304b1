"""Plants one mistake at a time in a copy of the package and checks whether the tests notice.

    python faults/mutants.py [--quick] [--only WORDS] [--seconds N] [--resume] [--out FILE.json]

The list is fixed (`_planted.py` and its three lists). A mistake whose place in the code is gone is stale: it counts as
unnoticed until its entry is updated. At least 95 % should be noticed. With `--seconds` no mistake is started after that
time; those with quick tests come first, and the result says how many are left. The file is written after every mistake;
`--resume` plants only those that are not yet noticed in that file. The tests run in forked copies of this process, in
which the libraries are loaded already, so this file imports nothing of capsid before the last test.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import _benchmarks
import _forked
import pytest
from _mutant import Mutant
from _planted import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 600
# Folders of tests, the quickest first.
QUICKEST = ("helpers", "ids", "data", "train", "decode", "encode", "evaluate", "blocks", "generate", "noticed", "runs")
LIBRARIES = ("torch", "polars", "faiss", "scipy.sparse", "hypothesis", "typer", "rich.table", "safetensors.torch")


def plant(mutant: Mutant, source: Path) -> bool:
    """Write the mistake into a copy of the package; False where its place is gone."""
    path = source / "capsid" / mutant.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(mutant.old) != 1:
        return False
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return True


def run_tests(source: Path, tests: Sequence[str], log: Path) -> int:
    """The exit code of pytest with this copy of the package: 1 is a test that failed, or one that took too long."""

    def act() -> int:
        os.chdir(ROOT)
        os.environ.update(PYTHONPATH=str(source), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        sys.path[0] = str(source)
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]))

    child, end = _forked.start(act, log=log), time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    _forked.wait(child)
    return 1


def judge(mutant: Mutant, scratch: Path) -> dict[str, Any]:
    """Whether the tests notice one mistake."""
    source, began = scratch / "src", time.monotonic()
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        verdict = "stale"
        if plant(mutant, source):
            code = run_tests(source, mutant.tests, scratch / "log")
            # 2: the tests could not even be collected. Others: pytest itself failed.
            verdict = "unnoticed" if code == 0 else "noticed" if code in (1, 2) else f"pytest ended with {code}"
        return {"name": mutant.name, "verdict": verdict, "seconds": round(time.monotonic() - began, 1)}
    finally:
        shutil.rmtree(source)


def _cost(mutant: Mutant) -> int:
    """Mistakes whose tests are all in quick folders come first."""
    rooms = [test.partition("/")[0] for test in mutant.tests]
    return max(QUICKEST.index(room) if room in QUICKEST else len(QUICKEST) for room in rooms)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="the first two")
    parser.add_argument("--only", default="", help="those whose name has these words")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mistake after this time")
    parser.add_argument("--resume", action="store_true", help="keep what --out has as noticed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    chosen = sorted((m for m in MUTANTS if options.only in m.name), key=_cost)[: 2 if options.quick else None]
    path = options.out or (None if options.quick or options.only else _benchmarks.RESULTS / "mutants.json")
    known = _noticed_before(path) if options.resume and path else {}
    for name in LIBRARIES:
        import_module(name)
    results = [known[m.name] for m in chosen if m.name in known]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for mutant in (m for m in chosen if m.name not in known):
            if time.monotonic() - began > options.seconds:
                break
            results.append(judge(mutant, Path(scratch)))
            print(f"{results[-1]['verdict']:<10} {mutant.name} ({results[-1]['seconds']} s)", flush=True)
            if path:
                _write(path, _summary(chosen, results, options.only))
    found = _summary(chosen, results, options.only)
    print(f"{found['noticed']} of {found['planted']} noticed")
    return found


def _summary(chosen: Sequence[Mutant], results: list[dict[str, Any]], only: str) -> dict[str, Any]:
    judged = {r["name"] for r in results}
    return {
        "benchmark": "mutants",
        "config": {"only": only},
        "date": datetime.date.today().isoformat(),
        "planted": len(results),
        "noticed": sum(r["verdict"] == "noticed" for r in results),
        "left": len(chosen) - len(results),
        "modules": len({m.file for m in chosen if m.name in judged}),
        "mistakes": results,
    }


def _noticed_before(path: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))["mistakes"] if path.is_file() else []
    return {r["name"]: r for r in found if r["verdict"] == "noticed"}


def _write(path: Path, found: dict[str, Any]) -> None:
    # Not by `common.write_result`, which imports capsid.
    part = path.with_name(f".{path.name}.partial")
    part.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    outcome = main()
    sys.exit(0 if outcome["noticed"] >= 0.95 * outcome["planted"] else 1)
