"""From a shop's own CSV files to recommendations, with the commands of README and docs/production.md.

    python benchmarks/shop.py --items 180 --users 300

Every command runs in its own process with an empty cache of vectors. The script reports wall-clock and processor
seconds of each, and the run's metrics beside those of popularity. The shop is synthetic (`_shop.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _shop import write_earlier, write_shop
from common import machine, write_result

QUICK = ("encoder=hashing", "generator.layers=1", "generator.width=16", "schedule.0.training.steps=20")
# Products that the shop adds before the refit.
GROWTH = 1.05


@dataclass(frozen=True)
class Command:
    """One command and what it took."""

    name: str
    command: str
    seconds: float
    cpu_seconds: float


class Shop:
    """Data and runs in one folder, and the commands that were called there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.done: list[Command] = []

    def call(self, name: str, *arguments: str) -> str:
        """Run a command, keep what it took, and return what it printed."""
        found, out = _timed(name, arguments, self.place)
        print(f"{found.seconds:9.1f} s {found.cpu_seconds:9.1f} s  {found.command}", file=sys.stderr, flush=True)
        self.done.append(found)
        return out


def run(items: int, users: int, recipe: str, shop: Shop, settings: tuple[str, ...], *, whole: bool) -> dict[str, Any]:
    """README's commands; if `whole`, those of docs/production.md as well."""
    write_shop(shop.place / "june", items=round(GROWTH * items), users=users)
    interactions = write_earlier(shop.place / "june", shop.place / "shop", items=items)
    more = [part for setting in settings for part in ("--set", setting)]
    shop.call("check", "data", "check", "shop")
    fitted = json.loads(shop.call("fit", "fit", recipe, "--data", "shop", "--out", "run", *more, "--json"))
    shop.call("recommend", "recommend", "run", "--history", "p1,p7")
    seconds = round(sum(c.seconds for c in shop.done), 1), round(sum(c.cpu_seconds for c in shop.done), 1)
    report = json.loads(shop.call("report", "tokenizer", "report", "run", "--json"))
    result = {
        "items": items,
        "users": users,
        "interactions": interactions,
        "to_recommendations": {"seconds": seconds[0], "cpu_seconds": seconds[1]},
        "fit": {name: value for name, value in fitted.items() if name not in ("run", "data")},
        "ids": {name: report[name] for name in ("mean_length", "collision_rate", "utilization", "length_histogram")},
    }
    if whole:
        result |= _production(recipe, shop, settings)
    return {**result, "commands": [asdict(c) for c in shop.done]}


def _production(recipe: str, shop: Shop, settings: tuple[str, ...]) -> dict[str, Any]:
    def evaluated(run: str) -> dict[str, Any]:
        return _quality(json.loads(shop.call(f"evaluate {run}", "evaluate", run, "--filter-history", "--json")))

    steps = [part for s in settings if s.startswith("schedule") for part in ("--set", s)]
    others = [part for s in settings if not s.startswith("schedule") for part in ("--set", s)]
    shop.call("popularity", "fit", "popularity", "--data", "shop", "--out", "popular")
    live = ["fit", recipe, "--data", "shop", "--out", "live", "--holdout", "none", "--steps-from", "run", *others]
    shop.call("fit on all data", *live)
    shop.call("everybody", "recommend", "live", "--all-users", "-k", "10", "--out", "everybody.parquet")
    churn = json.loads(shop.call("refit", "refit", "run", "--data", "june", "--out", "run-june", *steps, "--json"))
    quality = {name: evaluated(name) for name in ("run", "popular", "run-june")}
    return {"test_with_history_filtered": quality, "churn_of_refit": churn["churn"]}


def _quality(evaluation: dict[str, Any]) -> dict[str, Any]:
    metrics = evaluation["metrics"]
    return {"users": evaluation["users"], "recall@10": metrics["recall@10"], "ndcg@10": metrics["ndcg@10"]}


def _timed(name: str, arguments: tuple[str, ...], place: Path) -> tuple[Command, str]:
    environment = {**os.environ, "CAPSID_HOME": str(place / "cache")}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "capsid", *arguments], cwd=place, env=environment, capture_output=True, text=True
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"capsid {' '.join(arguments)} failed:\n{ended.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Command(name, f"capsid {' '.join(arguments)}", round(seconds, 2), round(cpu, 2)), ended.stdout


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=180)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--recipe", default="capsid")
    parser.add_argument("--quick", action="store_true", help="a tiny shop and network; its numbers mean nothing")
    parser.add_argument("--readme-only", action="store_true", help="stop at the first recommendation")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--place", type=Path, default=None, help="a folder for data and runs, which are kept")
    given = parser.parse_args(arguments)
    items, users = (60, 40) if given.quick else (given.items, given.users)
    config = {"items": items, "users": users, "recipe": given.recipe, "quick": given.quick, **machine(1)}
    with tempfile.TemporaryDirectory() as scratch:
        place = (given.place or Path(scratch)).resolve()
        settings = QUICK if given.quick else ()
        found = run(items, users, given.recipe, Shop(place), settings, whole=not given.readme_only)
    name = "shop-quick" if given.quick else f"shop-{items}"
    write_result(name, given.out, config, found)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
