"""Numbers of a table's rows, read from the store: by seed, of ids, compared with another row. Knows no table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsid.base.popularity import TIERS
from capsid.base.storage.artifacts import read_json
from capsid.bench.current import load_rows
from capsid.bench.results import Result, Results
from capsid.bench.table import Entry
from capsid.evaluate.metrics import METRICS
from capsid.evaluate.significance import paired_bootstrap

COSTS = "decode_cost.json"
# A note for tables with intervals (`capsid.evaluate.significance`).
FEW_SEEDS = (
    "Intervals do not cover the variation between trainings for rows with one seed, and too little of it with three."
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
        """The cost of a recommendation by run, if `benchmarks/decode_cost.py` has measured it."""
        path = self.store / "main" / COSTS
        return {line["run"]: float(line["cost"]) for line in read_json(path)["runs"]} if path.exists() else {}


def short_name(metric: str) -> str:
    """`R@10` for recall@10."""
    name, _, k = metric.partition("@")
    return f"{METRICS[name].label[0]}@{k}"


def by_seed(cells: Results, label: str, dataset: str) -> list[Result]:
    """The cells of a row on a dataset."""
    return sorted(cells.select(label=label, dataset=dataset), key=lambda c: c.seed)


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
    first, second = ([cells.values(c, evaluation, metric) for c in side] for side in (ours, other))
    found = paired_bootstrap(first, second)
    shared = sorted({c.seed for c in ours} & {c.seed for c in other})
    t_test: tuple[float, ...] = ()
    if len(shared) > 1:
        from scipy.stats import ttest_rel

        sides = [[c.metric(metric, evaluation) for c in side if c.seed in shared] for side in (ours, other)]
        t_test = (float(ttest_rel(*sides).pvalue),)
    interval = Entry(text=f"{found.low:+.4f} to {found.high:+.4f}")
    return (Entry((found.difference,)), interval, Entry((found.p,)), Entry(t_test))


def welch_p(ours: Sequence[Result], other: Sequence[Result], evaluation: str, metric: str) -> Entry:
    """The p of Welch's t-test over seeds: trainings are the sample, users are not. It needs two seeds of both rows."""
    sides = [[c.metric(metric, evaluation) for c in side] for side in (ours, other)]
    if min(map(len, sides)) < 2 or all(len(set(side)) == 1 for side in sides):
        return Entry()
    from scipy.stats import ttest_ind

    return Entry((float(ttest_ind(*sides, equal_var=False).pvalue),))
