"""Which stored cells a table may hold: on each dataset those of the same data, in each row those of one recipe.

Recipes and data change, and not every cell is run again. A table has the order of ties and the split of its newest
cell, and on each dataset the data of the newest, because rows with other targets cannot be compared; a row has the
recipe of its newest cell. All other cells are superseded: they stay in the store, and the notes of a table name them.
Cells that repeat a row under another seed of the order are in no table with the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from capsid.bench.archive import archive_of
from capsid.bench.cells import DataFacts, make_job, recipe_key, stored_recipe_key
from capsid.bench.plans import is_built_in, read_plan
from capsid.bench.results import Result, Results, load
from capsid.data.ties import order_of
from capsid.errors import CapsidError


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


_FACTS = ("name", "fingerprint", "users", "items", "interactions")


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
