"""Rows of the tables follow from recipes, plan and paper."""

from __future__ import annotations

import dataclasses

import pytest

from capsid.bench import rows
from capsid.bench.rows import MARKS, comparable, has_ids, in_order, main_rows, mark_of, paper, with_own_ids
from capsid.recipes import RECIPES


def test_every_planned_recipe_and_every_method_of_the_paper_has_its_row() -> None:
    found = main_rows()
    assert len(found) == len(set(found))
    assert set(paper()["main"]) <= set(found)
    assert {"popularity", "sasrec", "atomic", "bert4rec", "rq-kmeans"} <= set(found)
    assert not {"tiger-text", "rq-kmeans, 3 x steps"} & set(found)


def test_every_way_to_make_ids_has_one_row() -> None:
    found = with_own_ids()
    assert {"tiger", "tiger-text", "letter", "letter-text", "resid", "ada-sid", "etegrec", "cobra"} <= set(found)
    assert not {"sasrec", "atomic", "capsid-dense", "rq-kmeans, 3 x steps", "actionpiece, one reading"} & set(found)


def test_methods_without_ids_come_first_and_the_paper_fills_in_what_is_no_recipe() -> None:
    found = main_rows()
    without = [label for label in found if not has_ids(label)]
    assert found[: len(without)] == without
    assert found[found.index("sasrec") + 1] == "atomic", "a variant follows its method"
    assert [label for label in found if label in paper()["main"]] == list(paper()["main"])


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("tiger", True),
        ("frequency", True),
        ("letter", True),
        ("sasrec", False),
        ("atomic", False),
        ("tiger-text", False),
        ("resid", False),
        ("ada-sid", False),
        ("etegrec", False),
        ("rq-kmeans, 3 x steps", False),
        ("never heard of", False),
    ],
)
def test_only_rows_with_ids_on_the_shared_input_and_budget_compare(label: str, expected: bool) -> None:
    assert comparable(label) is expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("tiger", ""),
        ("cobra", "†"),
        ("tiger-dense", "†"),
        ("capsid-dense", "†"),
        ("unirec-coa", "†"),
        ("actionpiece", "‡§"),
        ("actionpiece, one reading", "§"),
        ("never heard of", ""),
    ],
)
def test_rows_that_cost_or_use_more_are_marked(label: str, expected: str) -> None:
    assert mark_of(label) == expected
    assert set(expected) <= set(MARKS)
    tokens = RECIPES["actionpiece"].merges.size + 4 * 256 + 256
    assert f"{tokens:,} instead of 40,000" in MARKS["§"]


def test_a_new_recipe_finds_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that so far only the paper has: nothing but the table of recipes changes."""
    theirs = list(paper()["main"])
    missing = [name for name in theirs if name not in RECIPES]
    if not missing:
        pytest.skip("every method of the paper is a recipe")
    name = missing[0]
    new = dataclasses.replace(RECIPES["tiger"], name=name)
    before, names = main_rows(), list(RECIPES)
    behind = names.index(next(n for n in theirs[theirs.index(name) :] if n in RECIPES))
    order = [*names[:behind], name, *names[behind:]]
    monkeypatch.setattr(rows, "RECIPES", {n: new if n == name else RECIPES[n] for n in order})
    rows._order.cache_clear()
    try:
        assert main_rows() == before
        assert comparable(name)
        assert in_order(["capsid", "x", name, "tiger"]) == ["tiger", name, "capsid", "x"]
    finally:
        rows._order.cache_clear()
