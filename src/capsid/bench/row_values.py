"""Numbers of a table's rows, read from the store: by seed, of ids, compared with another row. Knows no table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capsid.base.popularity import TIERS
from capsid.base.storage.artifacts import read_json
from capsid.bench.current import load_rows
from capsid.bench.results import Result, Results
from capsid.bench.table import Entry, Row
from capsid.evaluate.metrics import METRICS
from capsid.evaluate.significance import holm, paired_bootstrap, per_user

COSTS = "decode_cost.json"
# A note for tables with intervals (`capsid.evaluate.significance`).
FEW_SEEDS = (
    "Intervals do not cover the variation between trainings for rows with one seed, and too little of it with three."
)
HOLM = "Holm: the p of the bootstrap, corrected for all rows of the table. No p can be below that of 10,000 draws."
ONE_SEED = " (one seed)"


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
