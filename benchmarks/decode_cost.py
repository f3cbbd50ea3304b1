"""What a recommendation costs with each of several fitted runs, relative to the first: time and decoding steps.

    python benchmarks/decode_cost.py runs/rq-kmeans runs/capsid runs/capsid-bpe [--users 256] [--repeat 5] [--out FILE]
    python benchmarks/decode_cost.py --quick

Runs must be of one dataset. The same users' test histories are read and searched with each in turn, in one process,
with the recipe's own beam; medians by the processor's clock. A run with two ids per item has a second line, in which
only the first id is searched. `--quick` fits tiny runs on made data: it proves the way only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsid.data.planted import planted_dataset
from capsid.data.split import Cases
from capsid.decode.beam import BeamSearch
from capsid.decode.mixed import Mixed
from capsid.decode.ranked import RanksLeaves
from capsid.decode.retrieve import Retriever
from capsid.recommender import Recommender

sys.path.insert(0, str(Path(__file__).parent))
from common import machine, side_by_side, write_result

BATCH = 64
QUICK = ("capsid", "capsid-bpe", "capsid-two")
TINY = (
    "encoder=hashing",
    "tokenizer.codebooks=4,4,4",
    "tokenizer.training.steps=5",
    "generator.width=16",
    "generator.heads=2",
    "generator.feedforward=16",
    "schedule.0.training.steps=5",
)


def search(of: Retriever, cases: Cases) -> int | None:
    """Rank ten items for every case; the decoding steps it took, where the ranker counts them."""
    steps = None
    for start in range(0, len(cases), BATCH):
        rows = np.arange(start, min(start + BATCH, len(cases)))
        histories = cases.take(rows).histories
        if isinstance(of.ranker, RanksLeaves):
            steps = (steps or 0) + of.ranker.leaves(of.reader, histories, 10).steps * len(rows)
        else:
            of.ranker.rank(of.reader, histories, 10)
    return steps


def retrievers(runs: dict[str, Recommender]) -> dict[str, Retriever]:
    """The search of every run, and that of the first ids alone where items have two."""
    out = {}
    for name, run in runs.items():
        out[name] = found = run.retriever
        if isinstance(found.ranker, Mixed):
            out[f"{name}, first id"] = Retriever(found.reader, BeamSearch(width=found.ranker.width))
    return out


def measure(runs: dict[str, Recommender], users: int, repeat: int) -> list[dict[str, Any]]:
    """A line a run."""
    first = next(iter(runs.values()))
    if any(run.catalogue_.fingerprint != first.catalogue_.fingerprint for run in runs.values()):
        raise SystemExit("the runs are of different data")
    test = first.catalogue_.split.test
    cases = test.take(np.linspace(0, len(test) - 1, min(users, len(test))).astype(np.int64))
    made = retrievers(runs)
    times = side_by_side({name: lambda r=r: search(r, cases) for name, r in made.items()}, repeat)
    base = next(iter(times.values()))
    return [
        {
            "run": name,
            "recipe": runs[name.removesuffix(", first id")].recipe.name,
            "cost": times[name].cpu_seconds / base.cpu_seconds,
            "users_per_second": len(cases) / times[name].seconds,
            "steps_a_user": None if (steps := search(made[name], cases)) is None else steps / len(cases),
            "tokens_an_item": float(made[name].reader.ids.prefix_free.lengths.mean()),
            "vocabulary": made[name].reader.ids.layout.vocabulary,
            **times[name].summary(),
        }
        for name in made
    ]


def quick(folder: Path) -> list[Path]:
    """Tiny runs on made data."""
    out = []
    for name in QUICK:
        settings = [*TINY, *(["merges.min_count=2", "merges.theta=0,-1"] if name != "capsid" else [])]
        run = Recommender.from_recipe(name, settings=settings)
        run.fit(planted_dataset(branching=(4, 3, 2), items_per_leaf=2, users=40, length=6))
        run.save_pretrained(folder / name)
        out.append(folder / name)
    return out


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Parse, measure, print, write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("runs", nargs="*", type=Path)
    made.add_argument("--users", type=int, default=256)
    made.add_argument("--repeat", type=int, default=5)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--quick", action="store_true")
    made.add_argument("--out", type=Path)
    args = made.parse_args(arguments)
    torch.set_num_threads(args.threads)
    facts = machine(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        paths = quick(Path(folder)) if args.quick else args.runs
        if not paths:
            made.error("name at least one run")
        runs = {path.name: Recommender.from_pretrained(path) for path in paths}
        lines = measure(runs, args.users, args.repeat)
    for line in lines:
        print(
            f"{line['run']:<20} cost {line['cost']:.2f}  {line['users_per_second']:,.0f} users/s  "
            f"{line['steps_a_user'] or float('nan'):.2f} steps per user  {line['tokens_an_item']:.2f} tokens per item"
        )
    result = {"machine": facts, "runs": lines}
    if args.out or not args.quick:
        config = {"users": args.users, "repeat": args.repeat, "batch": BATCH, "k": 10}
        write_result("decode_cost", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
