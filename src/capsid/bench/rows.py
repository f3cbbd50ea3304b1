"""Rows of tables: which are shown, in which order, which may be compared, and their numbers from the store.

Read from the recipes, the plan and the tables of the paper, so that a new recipe needs no entry here. The numbers of
the paper are in `paper.toml`: they are shown beside ours, always marked, and never computed with.

On each dataset a table holds cells of the same data, in each row those of one recipe. Recipes and data change, and not
every cell is run again. A table has the order of ties and the split of its newest cell, and on each dataset the data of
the newest, because rows with other targets cannot be compared; a row has the recipe of its newest cell. All other cells
are superseded: they stay in the store, and the notes of a table name them. Cells that repeat a row under another seed
of the order are in no table with the others.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from capsid.base.config import fingerprint
from capsid.base.popularity import TIERS
from capsid.base.storage.artifacts import read_json
from capsid.bench.cells import DataFacts, make_job, recipe_key, stored_recipe_key
from capsid.bench.plans import is_built_in, read_plan
from capsid.bench.results import Result, Results, archive_of, load
from capsid.bench.table import Entry, Row
from capsid.data.ties import order_of
from capsid.decode.mixed import Ensemble
from capsid.encode.joined import Views
from capsid.encode.kinds import default_encoder
from capsid.errors import CapsidError
from capsid.evaluate.metrics import METRICS
from capsid.evaluate.significance import holm, paired_bootstrap, per_user
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.recipes.ours import CAPSID_BPE
from capsid.tokenize.rivals.actionpiece import Pieces
from capsid.tokenize.rivals.lookup import Atomic

PAPER = Path(__file__).parent / "paper.toml"
BEAUTY = "amazon-beauty"
DATASETS = {BEAUTY: "beauty", "amazon-sports": "sports", "amazon-toys": "toys"}
PAPER_METRICS = ("recall@5", "recall@10", "ndcg@5", "ndcg@10")
# The full system, which the tables compare with everything else; and the method that costs are relative to.
FULL = CAPSID_BPE.name
BASELINE = "tiger"
# What the marks of `mark_of` say.
MARKS = {
    "†": "dense vectors or attributes beside ids",
    "‡": "searches several readings of a history, so a recommendation costs several times as much",
    "§": "fewer tokens than published (8,192 instead of 40,000), and one target per sequence and step",
}
_FACTS = ("name", "fingerprint", "users", "items", "interactions")
COSTS = "decode_cost.json"
# A note for tables with intervals (`capsid.evaluate.significance`).
FEW_SEEDS = (
    "Intervals do not cover the variation between trainings for rows with one seed, and too little of it with three."
)
HOLM = "Holm: the p of the bootstrap, corrected for all rows of the table. No p can be below that of 10,000 draws."
ONE_SEED = " (one seed)"


@cache
def paper() -> dict[str, Any]:
    """All of it, by table."""
    return tomllib.loads(PAPER.read_text(encoding="utf-8"))


def main_value(method: str, dataset: str, metric: str) -> float | None:
    """A number of the paper's main table; None where it has none."""
    row = paper()["main"].get(method, {}).get(DATASETS.get(dataset, ""))
    return row[PAPER_METRICS.index(metric)] if row is not None and metric in PAPER_METRICS else None


def number(table: str, row: str, place: int | None = None) -> float | None:
    """A number of another table: the row itself, or one of its places."""
    found = paper()[table].get(row)
    if found is None or place is None:
        return found if isinstance(found, float) else None
    return float(found[place]) if place < len(found) else None


@cache
def planned() -> dict[str, tuple[str, Recipe]]:
    """The method and the recipe behind every label of the plan `main`; methods that are not recipes are left out."""
    cells = [c for c in read_plan("main").cells if c.method in RECIPES]
    return {c.label: (c.method, RECIPES[c.method].with_settings(c.settings)) for c in cells}


def recipe_of(label: str) -> Recipe | None:
    """The recipe behind a label; None for a method of the paper that is not a recipe."""
    return planned()[label][1] if label in planned() else RECIPES.get(label)


def has_ids(label: str) -> bool:
    """Whether the ids are semantic, unlike one token per item."""
    recipe = recipe_of(label)
    return recipe is None or not isinstance(recipe.tokenizer, Atomic)


def with_own_ids() -> list[str]:
    """The planned rows with ids that no row before them has: one for each way to make ids."""
    first: dict[str, str] = {}
    for label, (_, recipe) in planned().items():
        if has_ids(label):
            parts = (recipe.encoder, recipe.tokenizer, recipe.collisions, recipe.merges, *recipe.other_ids)
            first.setdefault(fingerprint(*(part for part in parts if part is not None)), label)
    return list(first.values())


def comparable(label: str) -> bool:
    """Whether a row may be marked best of its column: it has ids, and the same input and budget as the other rows."""
    recipe = recipe_of(label)
    if recipe is None:
        return label in paper()["main"]
    method = planned()[label][0] if label in planned() else label
    # Other views are a method's own; the vectors that ids are made from must be those of all rows.
    encoder = recipe.encoder.item if isinstance(recipe.encoder, Views) else recipe.encoder
    shared_input = encoder is None or encoder == default_encoder()
    return has_ids(label) and shared_input and recipe.schedule == RECIPES[method].schedule


def mark_of(label: str) -> str:
    """Signs for what sets a row apart from the others; `MARKS` explains them."""
    recipe, beside = recipe_of(label), label in paper()["beside-ids"]["methods"]
    if recipe is None:
        return "†" if beside else ""
    several = isinstance(recipe.decoder, Ensemble) and recipe.decoder.times > 1
    signs = (("†", beside or recipe.dense is not None), ("‡", several), ("§", isinstance(recipe.merges, Pieces)))
    return "".join(sign for sign, holds in signs if holds)


def in_order(labels: Iterable[str]) -> list[str]:
    """The labels without repeats, in the order of all tables; labels in neither plan nor paper come last."""
    known = {label: place for place, label in enumerate(_order())}
    return sorted(dict.fromkeys(labels), key=lambda label: known.get(label, len(known)))


def main_rows() -> list[str]:
    """The rows of the main table whether they were run or not: methods without ids, those of the paper (also on input
    of their own), and all that may be compared."""
    theirs = paper()["main"]
    labels = {**planned(), **theirs}
    return in_order(label for label in labels if comparable(label) or not has_ids(label) or label in theirs)


@cache
def _order() -> tuple[str, ...]:
    """Recipes in their own order, each followed by the plan's variants of it; the paper's other methods stand before
    the recipe that its table has next."""
    out: dict[str, None] = {}
    theirs = list(paper()["main"])
    for name in RECIPES:
        if name in theirs:
            out |= dict.fromkeys(label for label in theirs[: theirs.index(name)] if label not in RECIPES)
        out[name] = None
        out |= dict.fromkeys(label for label, (method, _) in planned().items() if method == name)
    return (*out, *(label for label in theirs if label not in out))


def load_rows(store: str | Path, plan: str) -> Results:
    """The finished cells of a plan that may be averaged over seeds; the others are in `superseded`."""
    return of_one_recipe(load(store, plan))


def of_one_recipe(cells: Results) -> Results:
    """On each dataset the cells with the data of the newest, and of each row those with the recipe of its newest."""
    archive = archive_of(cells.folder)
    if archive is not None:
        kept = tuple(c for c in cells if c.key not in archive.superseded)
        return dataclasses.replace(cells, cells=kept, superseded=tuple(c for c in cells if c not in kept))
    cells = dataclasses.replace(cells, cells=tuple(c for c in cells if not order_of(c.order)[1]))
    data = _newest_data(cells)
    same = [c for c in cells if c.data_key == data[c.dataset] and _question(c) == _question(cells.cells[-1])]
    newest = {(c.label, c.dataset): stored_recipe_key(c.recipe) for c in same}
    kept = tuple(c for c in same if stored_recipe_key(c.recipe) == newest[c.label, c.dataset])
    return dataclasses.replace(cells, cells=kept, superseded=tuple(c for c in cells if c not in kept))


def remarks(
    cells: Results, datasets: Collection[str] | None = None, labels: Collection[str] | None = None
) -> tuple[str, ...]:
    """Notes on recipes for a table of these datasets and rows (None: all)."""

    def shown(cell: Result) -> bool:
        return (datasets is None or cell.dataset in datasets) and (labels is None or cell.label in labels)

    left_out, old = list(filter(shown, cells.superseded)), list(filter(shown, outdated(cells)))
    data = _newest_data(cells)
    other_question = [c for c in left_out if any(_question(c) != _question(kept) for kept in cells)]
    other_data = [c for c in left_out if c not in other_question and c.data_key != data.get(c.dataset, c.data_key)]
    other_recipe = [c for c in left_out if c not in other_question and c not in other_data]
    notes = []
    if other_question:
        note = "Left out, because the newest cell has another order of ties or another split"
        notes.append(f"{note}: {_named(other_question)}.")
    if other_data:
        notes.append(f"Left out, because the newest cell on their dataset has other data: {_named(other_data)}.")
    if other_recipe:
        notes.append(f"Left out, because the newest cell of their row has another recipe: {_named(other_recipe)}.")
    if old:
        notes.append(f"Run with an earlier recipe and not again since it changed: {_named(old)}.")
    return tuple(notes)


def outdated(cells: Results) -> list[Result]:
    """The cells of a built-in plan whose recipe is no longer that of the plan."""
    archive = archive_of(cells.folder)
    if archive is not None:
        return [c for c in cells if c.key in archive.outdated]
    if not is_built_in(cells.plan):
        return []
    every = read_plan(cells.plan).cells
    planned = {c.name: c for c in every}
    old = []
    for cell in cells:
        wanted = planned.get(cell.name)
        if wanted is None or not cell.recipe:
            continue
        facts = DataFacts(source="", **{name: cell.data[name] for name in _FACTS})
        # A row has the settings of one of its trials.
        tried = [replace(wanted, settings=(*wanted.settings, *c.trial)) for c in every if c.name in wanted.tried]
        try:
            now = {recipe_key(make_job(one, facts).recipe) for one in tried or [wanted]}
        except CapsidError:
            continue
        if stored_recipe_key(cell.recipe) not in now:
            old.append(cell)
    return old


def _newest_data(cells: Results) -> dict[str, str]:
    return {c.dataset: c.data_key for c in cells}


def _question(cell: Result) -> tuple[str, str]:
    """What must be the same in all cells of a table, whatever their data."""
    return cell.order, cell.split


def _named(cells: Iterable[Result]) -> str:
    """Rows with their seeds: `capsid on amazon-beauty (seeds 1, 2)`."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for cell in cells:
        seeds.setdefault((cell.label, cell.dataset), []).append(cell.seed)
    return "; ".join(
        f"{label} on {dataset} ({'seed' if len(own) == 1 else 'seeds'} {', '.join(map(str, sorted(own)))})"
        for (label, dataset), own in seeds.items()
    )


@dataclass(frozen=True)
class Source:
    """Where tables read. `evaluation` is `test` or `test-filtered`."""

    store: Path
    evaluation: str = "test"

    def plan(self, name: str) -> Results:
        """Finished cells of a plan, one recipe per row; none where it was never run."""
        return load_rows(self.store, name)

    def costs(self) -> dict[str, float]:
        """The cost of a recommendation by run, as a multiple of the baseline's; none before `benchmarks/decode_cost.py`
        has measured it."""
        path = self.store / "main" / COSTS
        costs = {line["run"]: float(line["cost"]) for line in read_json(path)["runs"]} if path.exists() else {}
        return {run: cost / costs[BASELINE] for run, cost in costs.items()} if BASELINE in costs else {}


def short_name(metric: str) -> str:
    """`R@10` for recall@10."""
    name, _, k = metric.partition("@")
    return f"{METRICS[name].label[0]}@{k}"


def by_seed(cells: Results, label: str, dataset: str) -> list[Result]:
    """The cells of a row on a dataset."""
    return sorted(cells.select(label=label, dataset=dataset), key=lambda c: c.seed)


def first_seed(cells: Results, label: str, dataset: str) -> Result | None:
    """The cell of the lowest seed, if there is one."""
    return next(iter(by_seed(cells, label, dataset)), None)


def metric_values(cells: Results, label: str, dataset: str, metric: str, evaluation: str) -> tuple[float, ...]:
    """A metric of a row on a dataset, by seed."""
    return tuple(c.metric(metric, evaluation) for c in by_seed(cells, label, dataset) if c.has(metric, evaluation))


def tier_values(cells: Results, label: str, dataset: str, metric: str, evaluation: str) -> list[tuple[float, ...]]:
    """A metric of a row by popularity of the target, by seed; nothing for a tier that has no target."""
    found = [c.evaluations.get(evaluation, {}).get(f"{metric}_by_tier", {}) for c in by_seed(cells, label, dataset)]
    return [tuple(float(own[t]) for own in found if own.get(t) is not None) for t in TIERS]


def id_values(cells: Results, label: str, dataset: str, name: str) -> tuple[float, ...]:
    """A number of the tokenizer's report of a row on a dataset, by seed."""
    return tuple(float(c.ids[name]) for c in by_seed(cells, label, dataset) if c.ids.get(name) is not None)


def compared(
    cells: Results, ours: Sequence[Result], other: Sequence[Result], evaluation: str, metric: str = "recall@10"
) -> tuple[Entry, ...]:
    """Difference, interval and p of a bootstrap over users and seeds, and the p of the paper's t-test over seeds."""
    users = cells.values(ours[0], evaluation, "user")
    first, second = ([per_user(cells.values(c, evaluation, metric), users) for c in side] for side in (ours, other))
    found = paired_bootstrap(first, second)
    shared = sorted({c.seed for c in ours} & {c.seed for c in other})
    t_test: tuple[float, ...] = ()
    if len(shared) > 1:
        from scipy.stats import ttest_rel

        sides = [[c.metric(metric, evaluation) for c in side if c.seed in shared] for side in (ours, other)]
        t_test = (float(ttest_rel(*sides).pvalue),)
    interval = Entry(text=f"{found.low:+.4f} to {found.high:+.4f}")
    return (Entry((found.difference,)), interval, Entry((found.p,), below=found.at_floor), Entry(t_test))


def corrected(rows: Sequence[Row], place: int) -> list[Row]:
    """Rows whose p-values in the column `place` are followed by those of Holm's correction for the whole table."""
    tested = [row for row in rows if row.entries[place].values]
    found = dict(zip(map(id, tested), holm([row.entries[place].values[0] for row in tested])))
    out = []
    for row in rows:
        entry = Entry((found[id(row)],), below=row.entries[place].below) if id(row) in found else Entry()
        out.append(replace(row, entries=(*row.entries[: place + 1], entry, *row.entries[place + 1 :])))
    return out


def interval_of(cells: Results, own: Sequence[Result], evaluation: str, metric: str) -> Entry:
    """The mean of a row with its 95 % interval, over users and seeds."""
    users = cells.values(own[0], evaluation, "user")
    values = [per_user(cells.values(c, evaluation, metric), users) for c in own]
    found = paired_bootstrap(values, [values[0] * 0])
    return Entry(text=f"{found.first:.4f} ({found.low:.4f} to {found.high:.4f})")


def welch_p(ours: Sequence[Result], other: Sequence[Result], evaluation: str, metric: str) -> Entry:
    """The p of Welch's t-test over seeds: trainings are the sample, users are not. It needs two seeds of both rows."""
    sides = [[c.metric(metric, evaluation) for c in side] for side in (ours, other)]
    if min(map(len, sides)) < 2 or all(len(set(side)) == 1 for side in sides):
        return Entry()
    from scipy.stats import ttest_ind

    return Entry((float(ttest_ind(*sides, equal_var=False).pvalue),))
