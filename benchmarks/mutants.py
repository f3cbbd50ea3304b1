"""Plant one mistake at a time in a copy of the package and see whether the tests notice.

    python benchmarks/mutants.py [--quick] [--only WORDS] [--out FILE.json]

The list is fixed (`_planted.py`). A mistake whose place in the code is gone is stale: it counts as unnoticed until it
is written again. At least 95 % should be noticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _planted import MUTANTS, Mutant
from common import write_result

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300


def plant(mutant: Mutant, source: Path) -> bool:
    """Write the mistake into a copy of the package; False where its place is gone."""
    path = source / "capsid" / mutant.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(mutant.old) != 1:
        return False
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return True


def run_tests(source: Path, tests: Sequence[str]) -> int:
    """The exit code of pytest with this copy of the package: 1 is a test that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return 1


def judge(mutant: Mutant, scratch: Path) -> dict[str, Any]:
    """Whether the tests notice one mistake."""
    source, began = scratch / "src", time.monotonic()
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        verdict = "stale"
        if plant(mutant, source):
            code = run_tests(source, mutant.tests)
            # 2 and above: the tests could not even be collected.
            verdict = "unnoticed" if code == 0 else "noticed" if code in (1, 2) else f"pytest ended with {code}"
        return {"name": mutant.name, "verdict": verdict, "seconds": round(time.monotonic() - began, 1)}
    finally:
        shutil.rmtree(source)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="the first two")
    parser.add_argument("--only", default="", help="those whose name has these words")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if options.only in m.name][: 2 if options.quick else None]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for mutant in chosen:
            results.append(judge(mutant, Path(scratch)))
            print(f"{results[-1]['verdict']:<10} {mutant.name} ({results[-1]['seconds']} s)", flush=True)
    noticed = sum(r["verdict"] == "noticed" for r in results)
    print(f"{noticed} of {len(results)} noticed")
    found = {"planted": len(results), "noticed": noticed, "mistakes": results}
    if options.out or not (options.quick or options.only):
        write_result("mutants", options.out, {"only": options.only}, found)
    return found


if __name__ == "__main__":
    outcome = main()
    sys.exit(0 if outcome["noticed"] >= 0.95 * outcome["planted"] else 1)
