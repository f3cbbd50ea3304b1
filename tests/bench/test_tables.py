"""Tables from a store with known numbers; empty where nothing was run; the paper's numbers as the paper has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from capsid.base.storage.arrays import save_arrays
from capsid.bench.paper_tables import TABLES
from capsid.bench.plan_tables import OWN_TABLES, PlanCells
from capsid.bench.results import LINES, VALUES, Result, arrays_hash
from capsid.bench.rows import Source, by_seed, main_value, paper
from capsid.bench.table import Table, markdown
from capsid.recipes import RECIPES

USERS = 400


def cell(label: str, seed: int, recall: float, dataset: str = "amazon-beauty", plan: str = "main") -> tuple[Any, Any]:
    """A finished cell whose every `1 / recall`-th user is a hit; every fourth target is cold."""
    rng = np.random.default_rng([seed, *label.encode()])
    hits = (rng.random(USERS) < recall).astype(np.float32)
    values = {
        "test/recall@10": hits,
        "test/ndcg@10": hits * np.float32(0.4),
        "test/target_count": np.where(np.arange(USERS) % 4 == 0, 2, 9),
        "test/user": np.arange(USERS),
    }
    found = float(hits.mean())
    metrics = {"recall@5": recall / 2, "recall@10": found, "ndcg@5": recall / 3, "ndcg@10": 0.4 * found}
    evaluation = {
        "metrics": metrics,
        "code_recall@50": 0.4,
        "code_chance@50": 0.2,
        "recall@10_by_tier": {"head": recall * 2, "torso": recall, "tail": recall / 4},
    }
    ids = {
        "collision_rate": 0.01,
        "utilization": 0.75,
        "utilization_by_depth": [1.0, 0.5],
        "gini": 0.3,
        "intra_code_similarity": 0.6,
        "mean_similarity": 0.1,
        "mean_length": 2.5,
        "mean_tokens": 2.0,
    }
    positions = {"top1": [0.2, 0.5], "top5": [0.4, 0.9], "users": [9, 9], "choices": [256.0, 20.0]}
    line = Result(
        plan=plan,
        method=label,
        label=label,
        dataset=dataset,
        seed=seed,
        settings=(),
        fingerprint="f",
        key=f"{label}-{dataset}-{seed}".replace(" ", "-").replace("=", "-"),
        recipe={},
        data={"name": dataset, "users": 10, "items": 20, "interactions": 90},
        code="c",
        codes=("c",),
        ks=(5, 10),
        evaluations={"test": evaluation, "positions": positions},
        ids=ids,
        seconds={"wall": 1.0, "tokenizer": 8.0},
        peak_memory_mb=1.0,
        parameters=1,
        tokens=1,
        sequences=1,
        steps=1,
        best_step=1,
        log=(),
        versions={},
        started="",
        ended="",
        attempts=1,
        tokenizer_shared=False,
        values_hash=arrays_hash(values),
    )
    return line, values


@pytest.fixture
def source(tmp_path: Path) -> Source:
    cells = [cell("tiger", s, 0.2) for s in (0, 1)] + [cell("capsid-bpe", s, 0.5) for s in (0, 1)]
    cells += [cell("sasrec", 0, 0.9), cell("tiger-text", 0, 0.95), cell("capsid-bpe", 0, 0.3, "amazon-toys")]
    cells += [cell("full", 0, 0.5, plan="ablation"), cell("T=1", 0, 0.25, plan="ablation")]
    cells += [cell("T=1", 0, 0.25, plan="sensitivity")]
    for line, values in cells:
        folder = tmp_path / line.plan
        (folder / VALUES).mkdir(parents=True, exist_ok=True)
        save_arrays(folder / VALUES / f"{line.key}.npz", values)
        with (folder / LINES).open("a") as file:
            file.write(json.dumps(line.to_dict()) + "\n")
    costs = {"runs": [{"run": r, "cost": c} for r, c in (("tiger", 2.0), ("capsid-bpe", 1.0), ("cobra", 5.0))]}
    (tmp_path / "main" / "decode_cost.json").write_text(json.dumps(costs))
    return Source(tmp_path)


def entries(table: Table, row: str) -> dict[str, Any]:
    found = next(r for r in table.rows if r.label == row)
    return {c.name: e for c, e in zip(table.columns, found.entries)}


def test_main(source: Source) -> None:
    table = TABLES["main"](source)
    ours, theirs = entries(table, "capsid-bpe"), entries(table, "tiger")
    assert len(ours["beauty R@10"].values) == 2
    assert ours["toys R@5"].values == (0.15,)
    assert ours["beauty R@10"].paper == 0.0839
    assert "sports R@10" not in ours, "a dataset of which nothing was run has no columns"
    assert theirs["toys R@10"].values == ()
    assert entries(table, "letter")["beauty R@10"].values == ()
    text = markdown(table)
    assert "| cobra † |" in text
    assert "| actionpiece ‡§ |" in text
    assert "- ‡ searches several readings" in text


@pytest.mark.parametrize("name", ["main", "tiers", "cold-start"])
def test_context_and_rows_of_other_input_are_not_marked(source: Source, name: str) -> None:
    lines = markdown(TABLES[name](source)).splitlines()
    marked = {
        line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ") and ("**" in line or "<u>" in line)
    }
    assert "capsid-bpe" in marked
    assert not marked & {"sasrec", "tiger-text"}


def test_significance(source: Source) -> None:
    table = TABLES["significance"](source)
    found = entries(table, "beauty: tiger")
    assert found["difference"].mean == pytest.approx(0.3, abs=0.08)
    assert found["bootstrap p"].mean < 0.01
    assert len(found["t-test p"].values) == 1
    assert entries(table, "beauty: sasrec")["t-test p"].values == (), "one seed has no t-test"
    assert [r.label for r in table.rows] == ["beauty: tiger", "beauty: sasrec", "beauty: tiger-text"]


def test_every_row_against_the_one_asked_for(source: Source) -> None:
    """NDCG is 0.4 of Recall in every cell, so it differs by 0.4 as much."""
    table = OWN_TABLES["significance"](PlanCells.read(source.store, "main", against="tiger"))
    found = entries(table, "amazon-beauty: capsid-bpe minus tiger")
    assert found["R@10 difference"].mean == pytest.approx(0.3, abs=0.08)
    assert found["N@10 difference"].mean == pytest.approx(0.4 * found["R@10 difference"].mean)
    assert found["R@10 bootstrap p"].mean < 0.01
    seeds = [[c.metric("recall@10") for c in by_seed(source.plan("main"), row, "amazon-beauty")] for row in _PAIR]
    assert found["R@10 Welch p"].mean == pytest.approx(welch(*seeds))
    assert entries(table, "amazon-beauty: sasrec minus tiger")["R@10 Welch p"].values == (), "it has one seed"
    for metric in ("R@10", "N@10"):
        plain, holm = (
            [entries(table, r.label)[f"{metric} {p} p"].mean for r in table.rows] for p in ("bootstrap", "Holm")
        )
        assert holm == pytest.approx(corrected_by_hand(plain))
        floor = [entries(table, r.label)[f"{metric} Holm p"].below for r in table.rows]
        assert floor == [p < 0.0002 for p in plain]
    assert "< 0.000" in markdown(table), "the floor of the bootstrap is no p-value"
    labels = [row.label for row in table.rows]
    assert labels == [f"amazon-beauty: {row} minus tiger" for row in ("tiger-text", "sasrec", "capsid-bpe")]
    best = OWN_TABLES["significance"](PlanCells.read(source.store, "main"))
    pair = "amazon-beauty: tiger-text minus tiger"
    assert entries(best, pair) == entries(table, pair), "the best row comes first either way"


def corrected_by_hand(p_values: list[float]) -> list[float]:
    """Holm: the n-th smallest of N times N - n + 1, and not below the one before it."""
    out = {}
    for place, p in enumerate(sorted(p_values)):
        out[p] = max([min(1.0, p * (len(p_values) - place)), *(v for q, v in out.items() if q <= p)])
    return [out[p] for p in p_values]


def test_intervals_and_rows_with_one_seed(source: Source) -> None:
    own = PlanCells.read(source.store, "main")
    table = OWN_TABLES["intervals"](own)
    beauty = [row for row in table.rows if row.label.startswith("amazon-beauty: ")]
    marked = {row.label.partition(": ")[2] for row in beauty if "one seed" in row.mark}
    assert "sasrec" in marked
    assert not marked & set(_PAIR)
    everywhere = {row.label for row in OWN_TABLES["main"](own).rows if "one seed" in row.mark}
    assert everywhere & {"sasrec", *_PAIR} == {"sasrec"}
    text = entries(table, "amazon-beauty: sasrec")["R@10 (95 % interval)"].text
    mean, low, high = (float(n) for n in re.findall(r"[\d.]+", text))
    assert low < mean < high
    assert high - low == pytest.approx(4 * (mean * (1 - mean) / USERS) ** 0.5, rel=0.1)


_PAIR = ("capsid-bpe", "tiger")


def welch(first: list[float], second: list[float]) -> float:
    """Welch's t-test from its formula."""
    sizes = [np.var(side, ddof=1) / len(side) for side in (first, second)]
    freedom = sum(sizes) ** 2 / sum(size**2 / (len(side) - 1) for size, side in zip(sizes, (first, second)))
    return float(2 * student.sf(abs(np.mean(first) - np.mean(second)) / np.sqrt(sum(sizes)), freedom))


def rewrite(store: Path, label: str, **changed: Any) -> None:
    """Change fields of the lines of a row in the main plan."""
    path = store / "main" / LINES
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, **changed} if line["label"] == label else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_tier_without_targets_is_empty(source: Source) -> None:
    evaluation = source.plan("main").select(label="tiger").cells[0].evaluations["test"]
    tiers = {"head": 0.4, "torso": 0.2, "tail": None}
    rewrite(source.store, "tiger", evaluations={"test": {**evaluation, "recall@10_by_tier": tiers}})
    own = entries(OWN_TABLES["tiers"](PlanCells.read(source.store, "main")), "amazon-beauty: tiger")
    for found in (own, entries(TABLES["tiers"](source), "tiger")):
        assert [len(found[tier].values) for tier in tiers] == [2, 2, 0]


def test_a_row_with_other_ks_is_empty_where_it_was_not_measured(source: Source) -> None:
    metrics = {"recall@20": 0.5, "ndcg@20": 0.3}
    rewrite(source.store, "sasrec", ks=[20], evaluations={"test": {"metrics": metrics}})
    own = PlanCells.read(source.store, "main", dataset="amazon-beauty")
    table = OWN_TABLES["main"](own)
    assert entries(table, "sasrec")["R@20"].values == (0.5,)
    assert entries(table, "sasrec")["R@10"].values == ()
    assert entries(table, "tiger")["R@20"].values == ()
    assert len(entries(table, "tiger")["R@10"].values) == 2
    for row in OWN_TABLES["significance"](own).rows:
        assert not any(entry.values for entry in row.entries), "no two rows have the same metric at the largest k"


def test_ablation_and_sensitivity(source: Source) -> None:
    ablation = TABLES["ablation"](source)
    found = entries(ablation, "T=1")
    full = entries(ablation, "full")["Recall@10"].mean
    assert found["drop"].mean == pytest.approx(found["Recall@10"].mean / full - 1)
    assert found["drop"].paper == pytest.approx(0.0731 / 0.0839 - 1)
    assert found["bootstrap p"].mean < 0.05
    assert entries(ablation, "full")["bootstrap p"].values == ()
    assert entries(ablation, "no spread")["Recall@10"].values == ()
    sensitivity = TABLES["sensitivity"](source)
    assert entries(sensitivity, "T=1")["codes per item"].paper == 3.3
    assert entries(sensitivity, "tau=0.75")["Recall@10"].paper == 0.0817
    assert entries(sensitivity, "L_max=8")["Recall@10"].paper == 0.0837


def test_quality_tiers_cold_positions_patching(source: Source) -> None:
    quality = entries(TABLES["tokenizer-quality"](source), "tiger")
    assert quality["utilization"].values == (0.75, 0.75)
    assert quality["code recall@50"].values == (0.4, 0.4)
    assert quality["by chance"].values == (0.2, 0.2)
    assert quality["of any two items"].values == (0.1, 0.1)
    assert quality["fit, s"].values == (8.0, 8.0)
    assert entries(TABLES["tokenizer-quality"](source), "frequency")["Gini"].paper == 0.92
    tiers = entries(TABLES["tiers"](source), "capsid-bpe")
    assert tiers["tail"].values == (0.125, 0.125)
    assert tiers["tail"].paper == 0.0221
    cold = entries(TABLES["cold-start"](source), "capsid-bpe")
    assert cold["cold Recall@10"].mean == pytest.approx(0.5, abs=0.1)
    assert cold["kept"].mean == pytest.approx(cold["cold Recall@10"].mean / cold["Recall@10"].mean, rel=0.05)
    places = entries(TABLES["per-position"](source), "tiger")
    assert places["2 top 5"].values == (0.9, 0.9)
    assert places["1 top 1"].paper == 0.312
    assert places["6 top 1"].values == ()
    patching = entries(TABLES["patching"](source), "capsid-bpe")
    assert patching["cost"].values == (0.5,)
    assert patching["cost"].paper == 1.08
    assert entries(TABLES["patching"](source), "cobra")["cost"].values == (2.5,), "a dense row that the paper lacks"
    for name in ("patching", "main"):
        assert "cobra" in TABLES[name](source).not_run, "the cost of a search is no run"
    costs = {row.label: row.entries[-1].values for row in TABLES["main"](source).rows}
    assert costs["tiger"] == (1.0,)
    assert costs["capsid-bpe"] == (0.5,)
    assert costs["sasrec"] == ()


def test_tables_that_need_no_runs(tmp_path: Path) -> None:
    nothing = Source(tmp_path)
    for name, make in TABLES.items():
        table = make(nothing)
        assert table.name == name
        assert table.empty == (name not in ("design-space", "hyperparameters"))
        assert markdown(table)
    assert [r.label for r in TABLES["design-space"](nothing).rows] == list(RECIPES)
    design = TABLES["design-space"](nothing)
    assert entries(design, "capsid-bpe")["subwords"].text == "frequency and meaning"
    assert [r.label for r in design.rows if r.entries[4].text == "no"] == ["tiger-dense", "cobra", "capsid-dense"]
    assert entries(design, "sa2crq")["length"].text == "more for popular prefixes"


def test_the_papers_numbers() -> None:
    assert main_value("capsid-bpe", "amazon-beauty", "recall@10") == 0.0839
    assert main_value("capsid", "amazon-toys", "ndcg@10") == 0.0498
    assert main_value("sasrec", "amazon-beauty", "recall@10") is None
    assert len(paper()["main"]) == 13
