"""What a new user or an adversary might try: thousands of cases in groups, each with the kind of answer it must get.

    python faults/cases.py [--quick] [--group NAME] [--only WORDS] [--out FILE.json]

Good is success where the case should work, and otherwise one sentence with a hint and exit code 1 or 2. A traceback, a
missing hint, control characters, or output that destroys something is bad. Most cases run in this process; those about
standard streams start `capsid` itself.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import _benchmarks
import _cases_api
import _cases_commands
import _cases_data
import _cases_settings
import _cases_streams
import torch
from _cases import Case, World, judge
from common import machine, write_result

GROUPS = (_cases_settings, _cases_data, _cases_commands, _cases_api, _cases_streams)
QUICK = 12


def every_case() -> Iterator[Case]:
    """All cases, group after group."""
    for module in GROUPS:
        yield from module.cases()


def chosen(group: str, only: str, quick: bool) -> list[Case]:
    """The cases to try; in short, some of each group that start no process, spread over it."""
    found = [c for c in every_case() if group in c.group and only in f"{c.group} {c.name}"]
    if not quick:
        return found
    groups: dict[str, list[Case]] = collections.defaultdict(list)
    for case in found:
        if case.group != _cases_streams.GROUP:
            groups[case.group].append(case)
    return [case for cases in groups.values() for case in cases[:: max(1, len(cases) // QUICK)]]


def campaign(cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """The verdict on every case."""
    world = World(folder)
    results = []
    for number, case in enumerate(cases, 1):
        wrong = judge(case, case.act(world))
        results.append({"group": case.group, "name": case.name, "wrong": wrong})
        if number % 500 == 0:
            bad = sum(bool(r["wrong"]) for r in results)
            print(f"{number:,} of {len(cases):,} cases, {bad} bad", file=sys.stderr, flush=True)
    return results


def summary(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Counts by group."""
    groups = {r["group"]: {"cases": 0, "good": 0} for r in results}
    for result in results:
        groups[result["group"]]["cases"] += 1
        groups[result["group"]]["good"] += not result["wrong"]
    return groups


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help=f"about {QUICK} cases of each group")
    parser.add_argument("--group", default="", help="only this group")
    parser.add_argument("--only", default="", help="those whose name has these words")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = chosen(options.group, options.only, options.quick)
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["CAPSID_HOME"] = f"{scratch}/home"
        try:
            results = campaign(cases, Path(scratch))
        finally:
            os.chdir(here)
    bad = [r for r in results if r["wrong"]]
    for result in bad:
        print(f"{result['group']}: {result['name']}: {result['wrong'][:600]}")
    found = {"cases": len(results), "good": len(results) - len(bad), "groups": summary(results)}
    print(json.dumps(found, indent=1))
    if options.out or not (options.quick or options.group or options.only):
        about = {"date": datetime.date.today().isoformat(), "bad": [f"{r['group']}: {r['name']}" for r in bad]}
        write_result(
            "cases",
            options.out or _benchmarks.RESULTS / "cases.json",
            {"quick": options.quick},
            {**found, **about, "machine": machine(1)},
        )
    return {**found, "bad": bad}


if __name__ == "__main__":
    sys.exit(1 if main()["bad"] else 0)
