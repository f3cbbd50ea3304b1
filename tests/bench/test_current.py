"""A row never averages two recipes: the newest counts, the others are left out and named, in every table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from test_tables import cell, entries

from capsid.base.storage.arrays import save_arrays
from capsid.bench.cells import DataFacts, make_job
from capsid.bench.check import run_checks
from capsid.bench.paper_tables import TABLES
from capsid.bench.plan_tables import OWN_TABLES, PlanCells
from capsid.bench.plans import read_plan
from capsid.bench.results import LINES, VALUES, Result
from capsid.bench.rows import Source, load_rows, outdated, paper, remarks
from capsid.bench.table import markdown
from capsid.recipes import RECIPES

FACTS = DataFacts("amazon-beauty", "", "d", 22_363, 12_101, 198_502)
PLANNED = {c.name: c for c in read_plan("main").cells}


def present(label: str, seed: int) -> dict[str, Any]:
    """The recipe that the plan has today."""
    return make_job(PLANNED[f"{label}/amazon-beauty/{seed}"], FACTS).recipe.to_dict()


def earlier(label: str, seed: int) -> dict[str, Any]:
    recipe = present(label, seed)
    return {**recipe, "generator": {**recipe["generator"], "width": 33}}


def put(
    store: Path, label: str, seed: int, recipe: dict[str, Any], recall: float = 0.4, data: str = "d", order: str = ""
) -> None:
    line, values = cell(label, seed, recall)
    facts = {name: value for name, value in dataclasses.asdict(FACTS).items() if name != "source"}
    # Cells that were stored before there were orders name none.
    told = {"order": order} if order else {}
    line = dataclasses.replace(line, recipe=recipe, data={**{**facts, "fingerprint": data, **told}})
    folder = store / "main"
    (folder / VALUES).mkdir(parents=True, exist_ok=True)
    save_arrays(folder / VALUES / f"{line.key}.npz", values)
    with (folder / LINES).open("a") as file:
        file.write(json.dumps(line.to_dict()) + "\n")


def seeds(found: tuple[Result, ...]) -> list[int]:
    return [c.seed for c in found]


def test_the_newest_cell_decides_which_seeds_count(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        put(tmp_path, "tiger", seed, earlier("tiger", seed))
    assert seeds(load_rows(tmp_path, "main").cells) == [0, 1, 2], "one recipe, though an earlier one"
    put(tmp_path, "tiger", 0, present("tiger", 0), recall=0.8)
    rows = load_rows(tmp_path, "main")
    assert seeds(rows.cells) == [0]
    assert seeds(rows.superseded) == [1, 2]
    assert rows.cells[0].metric("recall@10") > 0.7
    put(tmp_path, "tiger", 2, present("tiger", 2))
    rows = load_rows(tmp_path, "main")
    assert (seeds(rows.cells), seeds(rows.superseded)) == ([0, 2], [1])
    # The other way round: what comes last counts, whichever recipe is better.
    put(tmp_path, "tiger", 1, earlier("tiger", 1))
    assert seeds(load_rows(tmp_path, "main").cells) == [1]


def test_other_data_is_left_out_and_other_words_are_not(tmp_path: Path) -> None:
    put(tmp_path, "tiger", 0, present("tiger", 0))
    put(tmp_path, "tiger", 1, present("tiger", 1), data="other")
    put(tmp_path, "tiger", 2, {**present("tiger", 2), "about": "told otherwise", "deviations": ["one"]})
    rows = load_rows(tmp_path, "main")
    assert (seeds(rows.cells), seeds(rows.superseded)) == ([0, 2], [1])


def test_no_table_mixes_orders(tmp_path: Path) -> None:
    put(tmp_path, "sasrec", 0, present("sasrec", 0))
    assert [c.order for c in load_rows(tmp_path, "main")] == ["file"]
    put(tmp_path, "tiger", 0, present("tiger", 0), order="shuffle 0")
    put(tmp_path, "tiger", 1, present("tiger", 1), order="shuffle 0")
    put(tmp_path, "tiger", 1, present("tiger", 1), order="shuffle 1")
    own = PlanCells.read(tmp_path, "main")
    assert [c.name for c in own.cells] == ["tiger/amazon-beauty/0", "tiger/amazon-beauty/1"]
    assert [row.label for row in OWN_TABLES["main"](own).rows] == ["tiger"]
    assert (
        "another order of ties or another split: sasrec on amazon-beauty (seed 0)." in OWN_TABLES["main"](own).notes[-1]
    )
    (row,) = OWN_TABLES["orders"](own).rows
    assert row.label == "amazon-beauty: tiger"
    assert [len(e.values) for e in row.entries] == [2, 1, 2, 1], "two seeds under order 0, one under order 1"
    for name, table in TABLES.items():
        shown = table(Source(tmp_path))
        assert not any(row.label == "sasrec" and any(e.values for e in row.entries) for row in shown.rows), name


def test_rows_with_other_data_are_not_compared(tmp_path: Path) -> None:
    for label in ("sasrec", "tiger"):
        put(tmp_path, label, 0, present(label, 0), recall=0.9)
    put(tmp_path, "capsid-bpe", 0, present("capsid-bpe", 0), data="other")
    left_out = (
        "Left out, because the newest cell on their dataset has other data: "
        "sasrec on amazon-beauty (seed 0); tiger on amazon-beauty (seed 0)."
    )
    own = PlanCells.read(tmp_path, "main")
    assert [row.label for row in OWN_TABLES["main"](own).rows] == ["capsid-bpe"]
    assert OWN_TABLES["significance"](own).rows == ()
    for table in (OWN_TABLES["main"](own), OWN_TABLES["significance"](own), TABLES["published"](Source(tmp_path))):
        assert left_out in table.notes
    # Run again on the new data, a row is back.
    put(tmp_path, "tiger", 0, present("tiger", 0), data="other")
    assert len(OWN_TABLES["significance"](PlanCells.read(tmp_path, "main")).rows) == 1


@pytest.fixture
def mixed(tmp_path: Path) -> Source:
    """Of tiger, seed 0 is new and seeds 1 and 2 are old; capsid-bpe is new, sasrec was not run again."""
    for seed in (1, 2):
        put(tmp_path, "tiger", seed, earlier("tiger", seed), recall=0.9)
    put(tmp_path, "tiger", 0, present("tiger", 0), recall=0.2)
    put(tmp_path, "capsid-bpe", 0, present("capsid-bpe", 0))
    put(tmp_path, "sasrec", 0, earlier("sasrec", 0))
    return Source(tmp_path)


LEFT_OUT = "Left out, because the newest cell of their row has another recipe: tiger on amazon-beauty (seeds 1, 2)."
EARLIER = "Run with an earlier recipe and not again since it changed: sasrec on amazon-beauty (seed 0)."


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [
        ("main", "tiger", "beauty R@10"),
        ("cold-start", "tiger", "Recall@10"),
        ("patching", "tiger", "Recall@10"),
        ("tiers", "tiger", "head"),
        ("tokenizer-quality", "tiger", "Gini"),
        ("per-position", "tiger", "1 top 1"),
    ],
)
def test_no_table_averages_two_recipes(mixed: Source, name: str, row: str, column: str) -> None:
    table = TABLES[name](mixed)
    assert len(entries(table, row)[column].values) == 1
    assert LEFT_OUT in table.notes
    assert (EARLIER in table.notes) == any(r.label == "sasrec" for r in table.rows), "notes on what is shown"


def test_differences_are_between_recipes_of_one_kind_too(mixed: Source) -> None:
    found = entries(TABLES["significance"](mixed), "beauty: tiger")
    assert found["difference"].mean == pytest.approx(0.2, abs=0.08), "seeds 1 and 2 would make it negative"
    assert {LEFT_OUT, EARLIER} <= set(TABLES["significance"](mixed).notes)
    assert {LEFT_OUT, EARLIER} <= set(TABLES["published"](mixed).notes)


def test_tables_of_ones_own_plan(mixed: Source) -> None:
    own = PlanCells.read(mixed.store, "main")
    for name in ("main", "significance", "tokenizer-quality", "tiers"):
        assert LEFT_OUT in OWN_TABLES[name](own).notes
    found = next(r for r in OWN_TABLES["main"](own).rows if r.label == "tiger")
    assert [len(e.values) for e in found.entries] == [1, 1, 1, 1]


def test_outdated_rows_are_those_whose_recipe_the_plan_no_longer_has(mixed: Source) -> None:
    rows = mixed.plan("main")
    assert [c.label for c in outdated(rows)] == ["sasrec"]
    assert remarks(rows, ["amazon-toys"]) == ()
    assert outdated(dataclasses.replace(rows, plan="mine")) == [], "a plan of one's own has no present recipe"


def test_what_was_not_run_is_named(mixed: Source) -> None:
    text = markdown(TABLES["main"](mixed))
    (note,) = [line for line in text.splitlines() if line.startswith("- Not run: ")]
    rivals = [name for name in RECIPES if name in paper()["main"] and name not in ("tiger", "capsid-bpe")]
    assert len(rivals) > 8
    assert all(f"{name};" in note or note.endswith(f"{name}.") for name in rivals)
    for name in ("tiers", "significance", "cold-start"):
        assert set(rivals) <= set(TABLES[name](mixed).not_run)
    assert "- Nothing of this table has been run." in markdown(TABLES["sensitivity"](mixed))
    assert "ada-sid" in TABLES["per-position"](mixed).not_run
    costs = [note for note in TABLES["patching"](mixed).notes if note.startswith("Cost not measured")]
    assert costs == ["Cost not measured: tiger; capsid-bpe."]


def test_impossible_cells_are_found_among_those_left_out_too(mixed: Source) -> None:
    found = next(c for c in run_checks(mixed) if c.of_every_cell)
    assert found.detail.startswith("5 cells")


def test_a_row_with_the_settings_of_a_trial_is_of_today(tmp_path: Path) -> None:
    planned = {c.name: c for c in read_plan("clean").cells}
    row, trial = planned["ease/amazon-beauty/0"], planned["ease [generator.regularisation=50]/amazon-beauty/0"]
    chosen = make_job(dataclasses.replace(row, settings=(*row.settings, *trial.trial)), FACTS).recipe.to_dict()
    line, _ = cell("ease", 0, 0.4, plan="clean")
    folder = tmp_path / "clean"
    folder.mkdir()
    for recipe, old in (
        (chosen, []),
        (make_job(row, FACTS).recipe.with_settings(["generator.decay=0.1"]).to_dict(), ["ease"]),
    ):
        told = dataclasses.replace(line, plan="clean", recipe=recipe, data=dataclasses.asdict(FACTS))
        (folder / LINES).write_text(json.dumps(told.to_dict()) + "\n")
        assert [c.label for c in outdated(load_rows(tmp_path, "clean"))] == old
