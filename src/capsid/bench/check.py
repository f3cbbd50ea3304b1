"""Checks stored results: what must hold for any run, and what the paper says that it verified (appendix, and section
on robustness). A check without runs says so; a failed check is a finding, not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from capsid.bench.claims import Claim
from capsid.bench.contradictions import HIGH, LOW, statements
from capsid.bench.paper import METRICS
from capsid.bench.results import Result, Results, plans_in
from capsid.bench.row_values import Source
from capsid.evaluate.metrics import ndcg_recall_slope

BEAUTY = "amazon-beauty"


@dataclass(frozen=True)
class Check:
    """`passed` is None if runs are missing. `of_every_cell`: a cell that fails the check must be wrong."""

    name: str
    passed: bool | None
    detail: str
    of_every_cell: bool = False


def run_checks(source: Source) -> tuple[Check, ...]:
    """All checks, those of single cells first."""
    main, ablation = source.plan("main"), source.plan("ablation")
    plans = dict.fromkeys(("main", "ablation", *plans_in(source.store)))
    found = [check for plan in plans for check in _every_cell(source.plan(plan), source.evaluation)]
    papers = [Check(f"the paper: {s.about}", s.agrees, s.detail) for s in statements()]
    return (*found, *papers, *_mechanisms(ablation, source.evaluation), *_merging(main), *_robustness(source))


def of_claim(claim: Claim) -> Check:
    """A figure of a page must be that of the store."""
    stored = claim.problem or claim.stored
    detail = f"{claim.shown}" if claim.holds else f"written {claim.shown}, stored {stored}"
    return Check(f"{claim.page}:{claim.line}: {claim.selector}", claim.holds, detail, True)


def _every_cell(cells: Results, evaluation: str) -> Iterator[Check]:
    done = [c for c in (*cells, *cells.superseded) if all(c.has(m, evaluation) for m in METRICS)]
    bad = [c.name for c in done if not _possible(c, evaluation)]
    detail = f"{len(done)} cells" + (f"; broken by {', '.join(bad)}" if bad else "")
    yield Check(f"{cells.plan}: NDCG is consistent with recall in every cell", not bad if done else None, detail, True)
    worse = [c.name for c in done if _readings(c, evaluation) is False]
    detail = f"{len(done)} cells" + (f"; broken by {', '.join(worse)}" if worse else "")
    yield Check(
        f"{cells.plan}: optimistic values are not below the headline", not worse if done else None, detail, True
    )


def _possible(cell: Result, evaluation: str) -> bool:
    recall5, recall10, ndcg5, ndcg10 = (cell.metric(m, evaluation) for m in METRICS)
    share = ndcg_recall_slope(recall5, recall10, ndcg5, ndcg10)
    return (share is None or LOW <= share <= HIGH) and ndcg5 <= recall5 + 1e-12


def _readings(cell: Result, evaluation: str) -> bool | None:
    variants = cell.evaluations[evaluation].get("variants", {})
    if "recall@10:optimistic" not in variants:
        return None
    return bool(variants["recall@10:optimistic"] >= cell.metric("recall@10", evaluation) - 1e-9)


def _mechanisms(cells: Results, evaluation: str) -> Iterator[Check]:
    """(i) Removing a mechanism never improves both Recall@10 and the measure that the mechanism targets."""
    full = _one(cells, "full")
    diagnostics = {
        "hard winner": ("reconstruction.hard", "low"),
        "T=1": ("winner_mass", "high"),
        "fixed L=4": ("mean_length", "low"),
        "fixed L=2": ("collision_rate", "low"),
        "no spread": ("gini", "low"),
        "no merges": ("mean_tokens", "low"),
    }
    for label, (name, better) in diagnostics.items():
        other = _one(cells, label)
        if full is None or other is None:
            yield Check(f"without: {label}", None, "not run")
            continue
        recall = [c.metric("recall@10", evaluation) for c in (full, other)]
        values = [_diagnostic(c, name) for c in (full, other)]
        if values[0] is None or values[1] is None:
            yield Check(f"without: {label}", None, f"{name} is not known")
            continue
        improved = values[1] < values[0] if better == "low" else values[1] > values[0]
        detail = f"Recall@10 {recall[0]:.4f} -> {recall[1]:.4f}, {name} {values[0]:.3f} -> {values[1]:.3f}"
        yield Check(f"without: {label} does not improve both", not (recall[1] > recall[0] and improved), detail)


def _merging(cells: Results) -> Iterator[Check]:
    """(iii) Merges shorten ids and do not change collisions."""
    plain, merged = _one(cells, "capsid"), _one(cells, "capsid-bpe")
    if plain is None or merged is None:
        yield Check("merges shorten ids and keep collisions", None, "not run")
        return
    tokens = [float(c.ids["mean_tokens"]) for c in (plain, merged)]
    same = plain.ids["collision_rate"] == merged.ids["collision_rate"]
    detail = f"tokens per item {tokens[0]:.2f} -> {tokens[1]:.2f}, collisions {'the same' if same else 'differ'}"
    yield Check("merges shorten ids and keep collisions", same and tokens[1] < tokens[0], detail)


def _robustness(source: Source) -> Iterator[Check]:
    """What could undermine the paper's claim: a dense channel that still helps much; recall without better geometry;
    gains bought with more codes. And (ii): a dense patch costs more."""
    cells, costs = source.plan("main"), source.costs()
    for plain, dense in (("tiger", "tiger-dense"), ("capsid", "capsid-dense")):
        known = plain in costs and dense in costs
        passed = costs[dense] > costs[plain] if known else None
        yield Check(f"a dense patch on {plain} costs more", passed, "" if known else "not run")
    ours, theirs = _one(cells, "capsid"), _one(cells, "rq-kmeans")
    if ours is None or theirs is None:
        yield Check("capsid has fewer collisions than rq-kmeans", None, "not run")
        return
    rates = [float(c.ids["collision_rate"]) for c in (ours, theirs)]
    detail = f"{100 * rates[0]:.1f} % against {100 * rates[1]:.1f} %"
    yield Check("capsid has fewer collisions than rq-kmeans", rates[0] < rates[1], detail)
    tails = [c.evaluations[source.evaluation]["recall@10_by_tier"]["tail"] for c in (ours, theirs)]
    yield Check("capsid finds more of the tail than rq-kmeans", tails[0] > tails[1], f"{tails[0]:.4f}, {tails[1]:.4f}")


def _one(cells: Results, label: str) -> Result | None:
    found = sorted(cells.select(label=label, dataset=BEAUTY), key=lambda c: c.seed)
    return found[0] if found else None


def _diagnostic(cell: Result, name: str) -> float | None:
    value: Any = cell.ids
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, list | tuple):
        return float(sum(value) / len(value)) if value else None
    return float(value) if isinstance(value, int | float) else None
