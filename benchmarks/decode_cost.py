"""What a recommendation costs with each of several fitted runs, relative to the first: time and decoding steps.

    python benchmarks/decode_cost.py runs/rq-kmeans runs/capsid runs/capsid-bpe [--users 256] [--repeat 5] [--out FILE]
    python benchmarks/decode_cost.py runs/rq-kmeans runs/capsid --vocabulary
    python benchmarks/decode_cost.py --plan main --data beauty --kept runs/amazon-beauty-0 --short short --out FILE
    python benchmarks/decode_cost.py --quick

Runs must be of one dataset. The same users' test histories are read and searched with each in turn, in one process,
with the recipe's own beam; medians of processor time. A run with two ids per item has a second line, in which only the
first id is searched. `--vocabulary` puts a line before all others, in which tokens of the first run are scored over the
whole vocabulary.

`--plan` measures every row of a plan, the baseline first. Runs that `capsid bench run --keep` saved are in `--kept`. A
row without one is fitted with a few training steps and kept in `--short`: the cost depends mostly on the lengths of ids
and the sizes of the network (a sharper network leaves fewer hypotheses open). Encoders and tokenizers of such runs are
trained for a few hundred steps too, unless they learn how long ids are. Lines say for how many steps a run was trained.
Rows that differ from another one only in training are left out. `--quick` fits tiny runs on synthetic data, only to see
that the script works.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsid.base.config import fingerprint
from capsid.bench.cells import slug
from capsid.bench.plans import Cell, read_plan
from capsid.bench.rows import BASELINE
from capsid.data.dataset import Dataset
from capsid.data.planted import planted_dataset
from capsid.data.sources import load_dataset
from capsid.data.split import Cases
from capsid.decode.beam import BeamSearch
from capsid.decode.mixed import Mixed
from capsid.decode.ranked import RanksLeaves, Retriever
from capsid.progress import Console
from capsid.recipe import Recipe
from capsid.recipes import get_recipe
from capsid.recommender import Recommender

sys.path.insert(0, str(Path(__file__).parent))
from common import machine, side_by_side, write_result

BATCH = 64
# Training steps of runs that are fitted for their cost alone: of the generator, and of encoder and tokenizer.
FEW = 100
FEW_OF_IDS = 500
# Their tokenizers learn how long ids are, so they are trained in full.
LENGTHS_ARE_LEARNT = frozenset({"sa2crq", "ada-sid"})
# Parts of a recipe that a fitted run can do without: texts, how it was trained, how it is searched.
NOT_FITTED = frozenset({"name", "about", "paper", "deviations", "schedule", "decoder"})
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
            steps = (steps or 0) + of.ranker.leaves(of.model, histories, 10).steps * len(rows)
        else:
            of.ranker.rank(of.model, histories, 10)
    return steps


@dataclass(frozen=True, eq=False)
class Searched:
    """A fitted run and one way to search with it."""

    run: Recommender
    retriever: Retriever


def searched(runs: dict[str, Recommender], *, vocabulary: bool = False) -> dict[str, Searched]:
    """The search of every run, and that of the first ids alone where items have two.

    With `vocabulary`, the first run over the whole vocabulary comes before them.
    """
    out = {}
    if vocabulary and runs:
        name, run = next(iter(runs.items()))
        over_all = dataclasses.replace(run.retriever.model, over="vocabulary")
        out[f"{name}, over the vocabulary"] = Searched(run, Retriever(over_all, run.retriever.ranker))
    for name, run in runs.items():
        found = run.retriever
        out[name] = Searched(run, found)
        if isinstance(found.ranker, Mixed):
            first = Retriever(found.model, BeamSearch(width=found.ranker.width))
            out[f"{name}, first id"] = Searched(run, first)
    return out


def rows_of(plan: str, dataset: str) -> list[list[Cell]]:
    """The rows of a plan on a dataset, the baseline first. Rows of one list share a fit and differ in their search.

    Of rows that differ in seed or training alone, there is the first.
    """
    groups: dict[str, dict[str, Cell]] = {}
    for cell in read_plan(plan).cells:
        if cell.dataset == dataset:
            recipe = get_recipe(cell.method).with_settings(cell.settings).to_dict()
            fitted = fingerprint({part: value for part, value in recipe.items() if part not in NOT_FITTED})
            groups.setdefault(fitted, {}).setdefault(fingerprint(recipe["decoder"]), cell)
    lists = [list(group.values()) for group in groups.values()]
    return sorted(lists, key=lambda cells: all(cell.label != BASELINE for cell in cells))


def searched_rows(rows: list[list[Cell]], data: Dataset, kept: Path | None, short: Path | None) -> dict[str, Searched]:
    """The search of every row by label. Rows without a kept run are fitted in a few steps, or reported and left out."""
    out, missing = {}, []
    for group in rows:
        found = _run_of(group, data, kept, short)
        if found is None:
            missing += [cell.label for cell in group]
            continue
        for cell in group:
            ranker = get_recipe(cell.method).with_settings(cell.settings).decoder
            out[cell.label] = Searched(found, Retriever(found.retriever.model, ranker))
    if missing:
        print(f"without a run, so left out (--short fits them): {', '.join(missing)}", file=sys.stderr)
    return out


def _run_of(group: list[Cell], data: Dataset, kept: Path | None, short: Path | None) -> Recommender | None:
    names = [slug(cell.label) for cell in group]
    places = [folder / name for folder in (kept, short) if folder is not None for name in names]
    there = [place for place in places if place.exists()]
    if there:
        return Recommender.from_pretrained(there[0])
    if short is None:
        return None
    recipe = briefly(get_recipe(group[0].method).with_settings(group[0].settings))
    run = Recommender(recipe, seed=group[0].seed)
    run.fit(data, progress=Console()).save_pretrained(short / names[0])
    return run


def briefly(recipe: Recipe) -> Recipe:
    """The recipe with few training steps, except where they decide the lengths of ids."""
    parts = recipe.to_dict()
    if recipe.name not in LENGTHS_ARE_LEARNT:
        parts |= {part: _at_most(parts[part], FEW_OF_IDS) for part in ("encoder", "tokenizer")}
    parts["schedule"] = _at_most(parts["schedule"], FEW)
    return Recipe.from_dict(parts)


def _at_most(settings: Any, steps: int) -> Any:
    """Settings in which no training has more steps than this, however deep it lies."""
    if isinstance(settings, dict):
        return {
            name: min(value, steps) if name == "steps" else _at_most(value, steps) for name, value in settings.items()
        }
    if isinstance(settings, list | tuple):
        return [_at_most(value, steps) for value in settings]
    return settings


def measure(rows: dict[str, Searched], users: int, repeat: int) -> list[dict[str, Any]]:
    """One line per row, costs relative to the first."""
    first = next(iter(rows.values())).run
    if any(row.run.catalogue_.fingerprint != first.catalogue_.fingerprint for row in rows.values()):
        raise SystemExit("the runs are of different data")
    test = first.catalogue_.split.test
    cases = test.take(np.linspace(0, len(test) - 1, min(users, len(test))).astype(np.int64))
    times = side_by_side({name: lambda r=row.retriever: search(r, cases) for name, row in rows.items()}, repeat)
    base = next(iter(times.values()))
    lines = []
    for name, row in rows.items():
        steps, ids = search(row.retriever, cases), row.retriever.model.ids
        lines.append(
            {
                "run": name,
                "recipe": row.run.recipe.name,
                "trained_steps": sum(int(phase.get("steps", 0)) for phase in row.run.fitted.log),
                "cost": times[name].cpu_seconds / base.cpu_seconds,
                "users_per_second": len(cases) / times[name].seconds,
                "steps_a_user": None if steps is None else steps / len(cases),
                "tokens_an_item": float(ids.prefix_free.lengths.mean()),
                "vocabulary": ids.layout.vocabulary,
                **times[name].summary(),
            }
        )
    return lines


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
    made.add_argument("--vocabulary", action="store_true", help="the first run over the whole vocabulary is 1")
    made.add_argument("--plan", help="all rows of this plan")
    made.add_argument("--data", help="dataset name or folder of the plan's rows")
    made.add_argument("--dataset", default="amazon-beauty", help="what the plan calls that dataset")
    made.add_argument("--kept", type=Path, help="folder of kept runs, named by label")
    made.add_argument("--short", type=Path, help="folder for runs of a few steps, fitted where none is kept")
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
        runs = {path.name: Recommender.from_pretrained(path) for path in paths}
        rows = searched(runs, vocabulary=args.vocabulary)
        if args.plan:
            if not args.data:
                made.error("--plan needs --data")
            planned = rows_of(args.plan, args.dataset)
            rows |= searched_rows(planned, load_dataset(args.data), args.kept, args.short)
        if not rows:
            made.error("name at least one run, or a plan")
        lines = measure(rows, args.users, args.repeat)
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
