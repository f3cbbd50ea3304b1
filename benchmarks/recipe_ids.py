"""The ids of every recipe on one dataset: what they cost to fit and how good they are, before any generator.

    python benchmarks/recipe_ids.py DATA [DATA ...] --out results/tokenizers
    python benchmarks/recipe_ids.py DATA --out results/tokenizers --kept runs/amazon-beauty-0

Writes one JSON file per dataset with a row for each recipe that has ids: its encoder, tokenizer, collision policy and
merges, the seconds that fitting took (item vectors apart, which are cached), the numbers of `capsid tokenizer report`,
and the mean number of tokens by popularity tier. Rows with the same settings are kept, so a stopped run resumes.
With `--kept`, nothing is fitted: the ids are those of runs that `capsid bench run --keep` saved under their recipes'
names, after joint training if there was any. Seconds are those of an earlier fit with the same settings, if there was
one; `capsid bench table tokenizer-quality` has those of the cells. `--table` prints the stored rows. No generator is
trained here.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

from common import machine

from capsid.base.config import to_dict
from capsid.base.popularity import TIERS, popularity_tiers
from capsid.base.storage.artifacts import read_json, write_json
from capsid.data.item_table import ItemTable
from capsid.data.sources import load_dataset
from capsid.data.split import leave_one_out
from capsid.encode.cache import encode_blocks
from capsid.evaluate.tokenizer_quality import quality_of
from capsid.progress import Console, Progress
from capsid.recipe import Recipe
from capsid.recipes import RECIPES, get_recipe
from capsid.recommender import Recommender
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.lookup import Atomic

WITH_IDS = [name for name, recipe in RECIPES.items() if not isinstance(recipe.tokenizer, Atomic)]
SECONDS = ("fit_cpu_seconds", "fit_wall_seconds")
COLUMNS = ("collision_rate", "collision_rate_final", "utilization", "gini", "intra_code_similarity", "mean_length")


def measure(data: str, names: list[str], seed: int, out: Path, progress: Progress, kept: Path | None = None) -> None:
    """All recipes on one dataset, each row written when it is known."""
    dataset = load_dataset(data)
    table = ItemTable.from_training(dataset, leave_one_out(dataset).train)
    path = _file(out, dataset.name)
    about = {"dataset": dataset.name, "fingerprint": dataset.fingerprint, "items": len(table), "seed": seed}
    stored = read_json(path) if path.exists() else {}
    rows = stored["rows"] if all(stored.get(key) == value for key, value in about.items()) else {}
    for name in names:
        run = None if kept is None else _kept(kept / name, dataset.fingerprint)
        if kept is not None and run is None:
            progress.line(f"{name}: no run of this data in {kept}")
            continue
        recipe = get_recipe(name) if run is None else run.recipe
        settings, before = _settings(recipe), rows.get(name, {})
        known = before.get("settings") == settings
        if run is not None or not known:
            if run is None:
                made, *seconds = _fitted(recipe, table, seed, progress)
            else:
                made, *seconds = run.fitted.tokenizer, *(before.get(key) if known else None for key in SECONDS)
            rows[name] = {"settings": settings, **dict(zip(SECONDS, seconds)), **_row(made, table)}
            out.mkdir(parents=True, exist_ok=True)
            ordered = {known: rows[known] for known in WITH_IDS if known in rows}
            write_json(path, {**about, "rows": ordered, "machine": machine(1)})
        progress.line(_line(name, rows[name]))


def _kept(folder: Path, fingerprint: str) -> Recommender | None:
    if not folder.exists():
        return None
    run = Recommender.from_pretrained(folder)
    return run if run.catalogue_.fingerprint == fingerprint else None


def _settings(recipe: Recipe) -> dict[str, Any]:
    names = ("encoder", "tokenizer", "collisions", "merges", *(("other_ids",) if recipe.other_ids else ()))
    plain: dict[str, Any] = json.loads(json.dumps({name: to_dict(getattr(recipe, name)) for name in names}))
    return plain


def _fitted(recipe: Recipe, table: ItemTable, seed: int, progress: Progress) -> tuple[ItemTokenizer, float, float]:
    """Fitted ids, and the seconds that it took: of the processor and by the clock."""
    if recipe.encoder is not None:
        # The vectors are in the cache then, so what follows is the tokenizer alone.
        encode_blocks(recipe.encoder, table, seed=seed, progress=progress)
    began, processor = time.monotonic(), time.process_time()
    fitted = recipe.item_tokenizer().fit(table, seed=seed, progress=progress)
    return fitted, round(time.process_time() - processor, 1), round(time.monotonic() - began, 1)


def _row(fitted: ItemTokenizer, table: ItemTable) -> dict[str, Any]:
    tokens_N, tier_N = fitted.ids.tokens.lengths, popularity_tiers(table.counts)
    row = {
        "tokens_by_tier": {name: float(tokens_N[tier_N == tier].mean()) for tier, name in enumerate(TIERS)},
        "longest": int(tokens_N.max()),
        "report": quality_of(fitted).to_dict(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(row))
    return plain


def _line(name: str, row: dict[str, Any]) -> str:
    report, tiers = row["report"], row["tokens_by_tier"]
    numbers = [f"{key} {_shown(report[key])}" for key in COLUMNS]
    by_tier = "/".join(f"{tiers[tier]:.2f}" for tier in TIERS)
    return f"{name}: {_seconds(row)} s, {', '.join(numbers)}, tokens by tier {by_tier}"


def _seconds(row: dict[str, Any]) -> str:
    return "-" if row["fit_cpu_seconds"] is None else f"{row['fit_cpu_seconds']:.0f}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def show(out: Path, dataset: str) -> None:
    """The stored rows as a table in Markdown."""
    stored = read_json(_file(out, load_dataset(dataset).name))
    print("| recipe | fit, s | " + " | ".join(COLUMNS) + " | tokens | head | torso | tail |")
    print("|---" * (len(COLUMNS) + 6) + "|")
    for name, row in stored["rows"].items():
        cells = [_seconds(row), *(_shown(row["report"][key]) for key in COLUMNS)]
        cells += [f"{row['report']['mean_tokens']:.2f}", *(f"{row['tokens_by_tier'][tier]:.2f}" for tier in TIERS)]
        print(f"| `{name}` | " + " | ".join(cells) + " |")


def _file(out: Path, dataset: str) -> Path:
    return out / f"recipes-{dataset}.json"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="dataset names or folders")
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per dataset")
    parser.add_argument("--recipe", action="append", choices=WITH_IDS, help="only these (default: all with ids)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, help="folder of kept runs named by recipe: read their ids, fit nothing")
    parser.add_argument("--table", action="store_true", help="print what is stored, fit nothing")
    options = parser.parse_args()
    # A collapse is a result here: the report shows it.
    warnings.simplefilter("ignore")
    for data in options.data:
        if options.table:
            show(options.out, data)
        else:
            measure(data, options.recipe or WITH_IDS, options.seed, options.out, Console(), options.kept)


if __name__ == "__main__":
    main()
