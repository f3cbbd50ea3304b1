"""Checks stored results: what must hold for any run, and what the paper says that it verified (appendix, and section
on robustness). A check without runs says so; a failed check is a finding, not an error.

Also what these checks read beside the store: places where the CapsID paper (arXiv 2605.05096) contradicts itself,
computed from its own numbers in `paper.toml`, which are reasons not to fit our numbers to them; and figures in pages
that say which stored cells they come from, so that they can be drawn again and checked.

    <!-- claim strong; capsid-two; amazon-beauty; test-filtered -->0.1071 ± 0.0017 / 0.0646 ± 0.0013<!-- /claim -->

A selector has the plan, the row, the dataset and the evaluation; then, if wanted, the metrics (`recall@10, ndcg@10`),
and `above ROW`, which makes it the relative difference to that row in percent. Pages show the figure alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsid.bench.results import Result, Results, plans_in
from capsid.bench.rows import BEAUTY, DATASETS, PAPER_METRICS, Source, first_seed, metric_values, paper
from capsid.bench.table import Entry
from capsid.errors import ConfigError, DataError, nearest
from capsid.evaluate.metrics import ndcg_recall_slope

MARK = re.compile(r"<!-- claim (?P<selector>[^>]*?) -->(?P<shown>.*?)<!-- /claim -->", re.S)
CLAIMED = ("recall@10", "ndcg@10")
ABOVE = "above "
HINT = "write PLAN; ROW; DATASET; EVALUATION, then METRIC, METRIC and `above ROW` if wanted"
# One target per user: a hit at rank 6 to 10 adds 1 / log2(rank + 1) to NDCG and 1 to recall.
LOW, HIGH = 0.2890, 0.3563
# Four printed digits: the share is known to about one part in thirty.
PRINTED = 0.012


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
    done = [c for c in (*cells, *cells.superseded) if all(c.has(m, evaluation) for m in PAPER_METRICS)]
    bad = [c.name for c in done if not _possible(c, evaluation)]
    detail = f"{len(done)} cells" + (f"; broken by {', '.join(bad)}" if bad else "")
    yield Check(f"{cells.plan}: NDCG is consistent with recall in every cell", not bad if done else None, detail, True)
    worse = [c.name for c in done if _readings(c, evaluation) is False]
    detail = f"{len(done)} cells" + (f"; broken by {', '.join(worse)}" if worse else "")
    yield Check(
        f"{cells.plan}: optimistic values are not below the headline", not worse if done else None, detail, True
    )


def _possible(cell: Result, evaluation: str) -> bool:
    recall5, recall10, ndcg5, ndcg10 = (cell.metric(m, evaluation) for m in PAPER_METRICS)
    share = ndcg_recall_slope(recall5, recall10, ndcg5, ndcg10)
    return (share is None or LOW <= share <= HIGH) and ndcg5 <= recall5 + 1e-12


def _readings(cell: Result, evaluation: str) -> bool | None:
    variants = cell.evaluations[evaluation].get("variants", {})
    if "recall@10:optimistic" not in variants:
        return None
    return bool(variants["recall@10:optimistic"] >= cell.metric("recall@10", evaluation) - 1e-9)


def _mechanisms(cells: Results, evaluation: str) -> Iterator[Check]:
    """(i) Removing a mechanism never improves both Recall@10 and the measure that the mechanism targets."""
    full = first_seed(cells, "full", BEAUTY)
    diagnostics = {
        "hard winner": ("reconstruction.hard", "low"),
        "T=1": ("winner_mass", "high"),
        "fixed L=4": ("mean_length", "low"),
        "fixed L=2": ("collision_rate", "low"),
        "no spread": ("gini", "low"),
        "no merges": ("mean_tokens", "low"),
    }
    for label, (name, better) in diagnostics.items():
        other = first_seed(cells, label, BEAUTY)
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
    plain, merged = first_seed(cells, "capsid", BEAUTY), first_seed(cells, "capsid-bpe", BEAUTY)
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
    ours, theirs = first_seed(cells, "capsid", BEAUTY), first_seed(cells, "rq-kmeans", BEAUTY)
    if ours is None or theirs is None:
        yield Check("capsid has fewer collisions than rq-kmeans", None, "not run")
        return
    rates = [float(c.ids["collision_rate"]) for c in (ours, theirs)]
    detail = f"{100 * rates[0]:.1f} % against {100 * rates[1]:.1f} %"
    yield Check("capsid has fewer collisions than rq-kmeans", rates[0] < rates[1], detail)
    tails = [c.evaluations[source.evaluation]["recall@10_by_tier"]["tail"] for c in (ours, theirs)]
    yield Check("capsid finds more of the tail than rq-kmeans", tails[0] > tails[1], f"{tails[0]:.4f}, {tails[1]:.4f}")


def _diagnostic(cell: Result, name: str) -> float | None:
    value: Any = cell.ids
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, list | tuple):
        return float(sum(value) / len(value)) if value else None
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Selector:
    """Which cells a figure comes from. With `above`, it is compared with that row."""

    plan: str
    row: str
    dataset: str
    evaluation: str
    metrics: tuple[str, ...] = CLAIMED
    above: str | None = None

    @classmethod
    def read(cls, text: str) -> Selector:
        """From the text of a mark."""
        parts = [part.strip() for part in text.split(";")]
        if not 4 <= len(parts) <= 6 or not all(parts):
            raise ConfigError(f"a claim must name four to six things, got {text!r}", hint=HINT)
        plan, row, dataset, evaluation, *more = parts
        metrics: tuple[str, ...] = CLAIMED
        above = None
        for part in more:
            if part.startswith(ABOVE):
                above = part.removeprefix(ABOVE)
            else:
                metrics = tuple(m.strip() for m in part.split(","))
        return cls(plan, row, dataset, evaluation, metrics, above)


@dataclass(frozen=True)
class Claim:
    """A figure of a page as it is written and as the store has it; `problem` if the store has none."""

    page: str
    line: int
    selector: str
    shown: str
    stored: str = ""
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Whether the page says what the store says."""
        return not self.problem and self.shown == self.stored


@dataclass
class Claims:
    """Reads figures from a store; `plan` gives the cells of a plan that may be compared."""

    plan: Callable[[str], Results]
    _plans: dict[str, Results] = field(default_factory=dict)

    def figure(self, wanted: Selector) -> str:
        """The figure as a page shows it; an error if the store does not have it."""
        entries = [self._entry(wanted, wanted.row, metric) for metric in wanted.metrics]
        if wanted.above is None:
            stored = ((f"{e.mean:.4f}", "" if e.deviation is None else f" ± {e.deviation:.4f}") for e in entries)
            return " / ".join(map("".join, stored))
        others = [self._entry(wanted, wanted.above, metric) for metric in wanted.metrics]
        return " / ".join(f"{100 * (a.mean / b.mean - 1):+.0f} %" for a, b in zip(entries, others) if a.mean and b.mean)

    def of_page(self, page: Path, name: str) -> Iterator[Claim]:
        text = page.read_text(encoding="utf-8")
        for mark in MARK.finditer(text):
            line = text.count("\n", 0, mark.start()) + 1
            stored, problem = "", ""
            try:
                stored = self.figure(Selector.read(mark["selector"]))
            except (ConfigError, DataError) as error:
                problem = str(error)
            yield Claim(name, line, mark["selector"], mark["shown"], stored, problem)

    def drawn(self, text: str) -> str:
        """The text of a page with all figures as the store has them."""
        return MARK.sub(
            lambda m: f"<!-- claim {m['selector']} -->{self.figure(Selector.read(m['selector']))}<!-- /claim -->", text
        )

    def _entry(self, wanted: Selector, row: str, metric: str) -> Entry:
        cells = self._plans.setdefault(wanted.plan, self.plan(wanted.plan))
        entry = Entry(metric_values(cells, row, wanted.dataset, metric, wanted.evaluation))
        if entry.mean is None:
            rows = sorted({c.label for c in cells.select(dataset=wanted.dataset)})
            what = f"{metric} of {row!r} on {wanted.dataset} ({wanted.evaluation})"
            raise ConfigError(f"the plan {wanted.plan!r} has stored no {what}", hint=nearest(row, rows))
        return entry


def pages_in(folder: Path) -> list[Path]:
    """README and the guides of a repository."""
    return [page for page in (folder / "README.md", *sorted((folder / "docs").glob("*.md"))) if page.is_file()]


@dataclass(frozen=True)
class Statement:
    """Two statements of the paper side by side; `agrees` is whether both can be true."""

    about: str
    agrees: bool
    detail: str


def statements() -> Iterator[Statement]:
    """What the paper says twice, or what its numbers must obey."""
    numbers = paper()
    yield _ndcg(numbers)
    yield _winner_mass(numbers)
    top5, top50 = numbers["per-position"]["capsid"][0][1], numbers["tokenizer-quality"]["capsid"][4]
    detail = f"{top50} are among the best 50, {top5} among the best 5"
    yield Statement("the first token is found no less often among 50 than among 5", top50 >= top5, detail)
    cold, tail = numbers["cold-start"]["capsid-bpe"][1], numbers["tail"]["capsid-bpe"]
    yield Statement("cold items are not easier than the tail", cold <= tail, f"cold {cold}, tail {tail}")
    plain, merged = (numbers["industrial"][row][3] for row in ("capsid", "capsid-bpe"))
    yield Statement("merges do not change collisions (check iii)", plain == merged, f"{plain} and {merged}, industrial")
    default, beauty = numbers["sensitivity"]["T=3"][1], numbers["lengths"]["beauty"]
    yield Statement("ids of Beauty have one mean length", default == beauty, f"{beauty} and {default}")
    gains = {data: _gain(numbers, data) for data in DATASETS.values()}
    smallest = min(gains, key=lambda data: gains[data])
    detail = ", ".join(f"{data} {100 * gain:.1f} %" for data, gain in gains.items())
    yield Statement("the smallest gain over ReSID is that on Beauty", smallest == "beauty", detail)
    yield Statement("centres are as wide as the embeddings they start", False, "64 (d_c) and 128 (generator)")
    yield Statement("merges add tokens to the vocabulary", False, "|V| is the sum of all K and one end token")
    yield Statement("the trie holds the items that are recommended", False, "built from training items; cold ones too")


def _ndcg(numbers: dict[str, Any]) -> Statement:
    broken = []
    for method, row in numbers["main"].items():
        for data in DATASETS.values():
            share = ndcg_recall_slope(*row[data])
            if share is not None and not LOW - PRINTED <= share <= HIGH + PRINTED:
                broken.append(f"{method} on {data} ({share:.2f})")
    return Statement("main table: NDCG is consistent with recall", not broken, "; ".join(broken) or "all rows")


def _winner_mass(numbers: dict[str, Any]) -> Statement:
    """With unit votes an agreement is at most 1 and at least -1, so T rounds leave a gap of at most 2 (T - 1)."""
    capsules, rounds, mass = (numbers["capsules"][name] for name in ("per-depth", "rounds", "winner-mass"))
    most = 1 / (1 + (capsules - 1) * math.exp(-2 * (rounds - 1)))
    detail = f"{mass} is said, {most:.2f} is possible with K={capsules} and T={rounds}"
    return Statement("the winner's weight is possible with normalised votes (appendix A.1)", mass <= most, detail)


def _gain(numbers: dict[str, Any], data: str) -> float:
    place = PAPER_METRICS.index("recall@10")
    ours, theirs = (numbers["main"][row][data][place] for row in ("capsid-bpe", "resid"))
    return float(ours / theirs - 1)
