"""Plans: what a file may say, in which order cells come, and what is answered to mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_world import plan_of
from hypothesis import given
from hypothesis import strategies as st

from capsid.bench.cells import training_fingerprint
from capsid.bench.plans import make_plan, plan_names, read_plan
from capsid.bench.prepare import data_sources
from capsid.errors import ConfigError
from capsid.recipes import RECIPES

SEEDED = {"sasrec", "rq-kmeans", "tiger", "capsid", "capsid-bpe", "kmeans-flat", "lc-rec", "actionpiece"}


def test_the_plans_that_come_with_capsid() -> None:
    assert plan_names() == ["ablation", "clean", "clean-time", "file-order", "heart", "main", "sensitivity", "smoke"]
    for name in plan_names():
        plan = read_plan(name)
        assert plan.name == name
        for cell in plan.cells:
            if cell.method in RECIPES:
                RECIPES[cell.method].with_settings(cell.settings)


def test_a_plan_states_the_order_of_ties() -> None:
    (old,) = plan_of({"method": "popularity"}).cells
    assert (old.ties, old.order) == ("file", 0), "as all plans were before there was another order"
    first, again = plan_of({"method": "popularity"}, {"method": "popularity", "order": 1}, ties="shuffle").cells
    assert (first.ties, first.order, again.order) == ("shuffle", 0, 1)
    assert (first.name, again.name) == ("popularity/shop/0", "popularity/shop/0/order-1")
    for wrong in ({"ties": "random"}, {"ties": 1}):
        with pytest.raises(ConfigError):
            plan_of({"method": "popularity"}, **wrong)
    for group in ({"ties": "shuffle"}, {"order": 1}, {"order": True}):
        with pytest.raises(ConfigError):
            plan_of({"method": "popularity", **group})


def test_main_has_three_seeds_where_they_matter() -> None:
    cells = read_plan("main").cells
    rows = {"popularity", "sasrec", "atomic", "bert4rec", "frequency", "kmeans-flat", "tiger-text"} | SEEDED
    rows |= {"capsid-dense", "cobra", "diger", "etegrec", "lc-rec", "tiger-dense"}
    rows |= {"unirec-coa", "unirec-coa, 3 x steps"}
    rows |= {"letter", "letter-text", "resid", "sa2crq", "ada-sid", "ada-sid, 3 x steps"}
    rows |= {"actionpiece", "actionpiece, one reading"}
    rows |= {"rq-kmeans, 3 x steps", "tiger-text, 3 x steps"}
    beauty = [c for c in cells if c.dataset == "amazon-beauty"]
    assert {c.label for c in beauty} == rows
    for row in rows:
        assert {c.seed for c in beauty if c.label == row} == ({0, 1, 2} if row in SEEDED else {0})
    assert {c.seed for c in cells if c.dataset != "amazon-beauty"} == {0}
    assert max(c.priority for c in beauty) < min(c.priority for c in cells if c.dataset != "amazon-beauty")


def test_ablation_takes_one_thing_away_at_a_time() -> None:
    full = RECIPES["capsid-bpe"]
    changed = {c.label: full.with_settings(c.settings) for c in read_plan("ablation").cells}
    assert len(changed) == 8
    assert changed["full"] == full
    assert changed["no merges"].merges is None
    assert changed["frequency-only merges"].merges.frequency_only
    assert len(changed["fixed L=2"].tokenizer.codebooks) == 2
    fixed = changed["fixed L=4"].tokenizer
    assert (fixed.confidence, fixed.residual) == (1.0, 0.0)
    assert len({str(recipe) for recipe in changed.values()}) == 8


def test_rows_with_the_papers_generator_have_that_of_capsid_paper() -> None:
    paper = RECIPES["capsid-paper"]
    rows = [cell for cell in read_plan("heart").cells if cell.label.endswith(", the paper's generator")]
    assert [cell.method for cell in rows] == ["tiger", "rq-kmeans", "capsid"]
    for cell in rows:
        recipe = RECIPES[cell.method].with_settings(cell.settings)
        assert (recipe.generator, recipe.over) == (paper.generator, paper.over)
        assert recipe.schedule[0].training == paper.schedule[0].training


def test_settings_that_rows_share() -> None:
    plan = make_plan(
        {
            "datasets": ["a"],
            "shared": {"small": ["generator.width=8", "over=children"], "long": ["generator.history=9"]},
            "cells": [{"method": "capsid", "with": ["long", "small"], "settings": ["generator.width=16"]}],
        },
        "mine",
    )
    assert plan.cells[0].settings == ("generator.history=9", "generator.width=8", "over=children", "generator.width=16")
    recipe = RECIPES["capsid"].with_settings(plan.cells[0].settings)
    assert (recipe.generator.width, recipe.generator.history, recipe.over) == (16, 9, "children")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=8))
def test_priority_first_then_the_order_of_the_file(groups: list[tuple[int, int]]) -> None:
    plan = plan_of(
        *(
            {"method": "sasrec", "label": f"{n}", "priority": p, "seeds": [*range(s + 1)]}
            for n, (p, s) in enumerate(groups)
        )
    )
    keys = [(c.priority, int(c.label), c.seed) for c in plan.cells]
    assert keys == sorted(keys)
    assert len(keys) == sum(s + 1 for _, s in groups)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('datasets = ["x"\n', "is not valid TOML", "brackets"),
        ('dataset = ["x"]', "no key 'dataset'", "did you mean 'datasets'"),
        ('[[cells]]\nmethod = "sasrec"\nsetings = []', "no key 'setings'", "did you mean 'settings'"),
        ('datasets = ["x"]', "has no cells", "[[cells]]"),
        ('[[cells]]\nlabel = "a"', "has no method", "recipe"),
        ('[[cells]]\nmethod = "sasrec"', "no dataset", "datasets ="),
        ('datasets = "x"\n[[cells]]\nmethod = "sasrec"', "must be a list", 'datasets = ["'),
        ('datasets = ["x"]\nseeds = ["0"]\n[[cells]]\nmethod = "sasrec"', "must be a list", "seeds = [0, 1]"),
        ('datasets = ["x"]\n[[cells]]\nmethod = 3', "must be a string", "method ="),
        ('datasets = ["x"]\n[[cells]]\nmethod = "a"\nevaluations = ["tests"]', "no evaluation 'tests'", "'test'"),
        (
            'datasets = ["x"]\n[[cells]]\nmethod = "a"\npriority = "high"',
            "priority must be a whole number, got 'high'",
            "priority 1",
        ),
        ('datasets = ["x"]\n[[cells]]\nmethod = "a"\n[[cells]]\nmethod = "a"', "two cells called a/x/0", "label"),
        (
            'datasets = ["x"]\n[shared]\nsmall = ["a=1"]\n[[cells]]\nmethod = "a"\nwith = ["smal"]',
            "shares no settings called 'smal'",
            "did you mean 'small'",
        ),
        ('datasets = ["x"]\nshared = 3\n[[cells]]\nmethod = "a"', "shared must be a table", "[shared]"),
        ('datasets = ["x"]\n[shared]\nsmall = "a=1"\n[[cells]]\nmethod = "a"', "shared.small must be a list", "["),
        ('name = "../up"\ndatasets = ["x"]\n[[cells]]\nmethod = "a"', "cannot be called", "folder"),
    ],
)
def test_mistakes_in_a_plan(text: str, message: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_plan(path)
    assert message in error.value.message
    assert hint in (error.value.hint or "")


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'main'"):
        read_plan("mian")
    plan = plan_of({"method": "sasrec", "datasets": ["amazon-beuty"]})
    with pytest.raises(ConfigError, match=r"did you mean 'amazon-beauty'.*--data amazon-beuty=PATH"):
        data_sources(plan, [])
    assert data_sources(plan, [f"amazon-beuty={tmp_path}"]) == {"amazon-beuty": str(tmp_path.resolve())}
    with pytest.raises(ConfigError, match=r"has no dataset 'beauty'.*amazon-beuty"):
        data_sources(plan, ["beauty=x"])
    with pytest.raises(ConfigError, match="--data must be NAME=PATH"):
        data_sources(plan, ["amazon-beuty"])


def test_only_some_cells() -> None:
    plan = make_plan(
        {"datasets": ["a", "b"], "seeds": [0, 1], "cells": [{"method": "capsid"}, {"method": "capsid-bpe"}]}, "mine"
    )
    assert [c.name for c in plan.only("capsid/a/*").cells] == ["capsid/a/0", "capsid/a/1"]
    assert {c.label for c in plan.only("capsid").cells} == {"capsid"}
    assert len(plan.only("*bpe*").cells) == 4
    names = [c.name for c in plan.only("capsid-bpe/b/1", "1").cells]
    assert names == ["capsid-bpe/b/1", "capsid/a/1", "capsid/b/1", "capsid-bpe/a/1"], "each once, in the order given"
    with pytest.raises(ConfigError, match="matches 'tiger'"):
        plan.only("capsid", "tiger")
    with pytest.raises(ConfigError, match="labels: capsid, capsid-bpe"):
        plan.only("tiger")


def test_clean_asks_one_question_with_three_trials_for_every_network() -> None:
    plan = read_plan("clean")
    assert {c.ties for c in plan.cells} == {"shuffle"}
    assert plan.cells[0].label == "popularity", "simple rows come first"
    rows = [c for c in plan.cells if not c.trial]
    assert all(len(c.tried) == 3 for c in rows if c.label not in ("popularity", "memory", "id-order"))
    assert all(set(c.evaluations) == {"valid-filtered"} for c in plan.cells if c.trial), "test is read once"
    beside = {c.label: c for c in rows if c.label.endswith(", memory")}
    alone = {c.label: c for c in rows}
    assert {label.removesuffix(", memory") for label in beside} >= {
        "sasrec",
        "one token",
        "capsid",
        "kmeans-flat",
        "tiger",
    }
    for label, cell in beside.items():
        other = alone[label.removesuffix(", memory")]
        recipes = [RECIPES[c.method].with_settings(c.settings) for c in (cell, other)]
        first, second = (training_fingerprint(recipe, "d", 0) for recipe in recipes)
        assert first == second, "a network is trained once, its memory is fitted after"
        assert cell.tried == other.tried
    repeats = {(c.label, c.order) for c in rows if c.order}
    assert len({label for label, _ in repeats}) == 2
    assert len(repeats) == 4
    time = read_plan("clean-time")
    assert {(c.ties, c.holdout, c.target) for c in time.cells} == {("shuffle", "time", "last")}
