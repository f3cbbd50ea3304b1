"""Tables of any plan and dataset: accuracy, significance, ids, popularity of targets, sizes of the data.

Unlike `paper_tables` they know neither the paper nor its datasets: rows and columns are those that were run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capsid.base.popularity import TIERS
from capsid.bench.plans import trial_of
from capsid.bench.results import Results, load, plans_in
from capsid.bench.rows import (
    FEW_SEEDS,
    HOLM,
    ONE_SEED,
    by_seed,
    compared,
    corrected,
    id_values,
    interval_of,
    load_rows,
    metric_values,
    remarks,
    short_name,
    tier_values,
    welch_p,
)
from capsid.bench.table import Column, Entry, Row, Table
from capsid.data.ties import SHUFFLE, order_of
from capsid.errors import ConfigError, nearest


@dataclass(frozen=True, eq=False)
class PlanCells:
    """The finished cells of a plan, of one dataset or all. `evaluation` is `test` or `test-filtered`.

    `against` is the row that the others are compared with; without it the best row is compared with every other.
    """

    cells: Results
    evaluation: str
    against: str | None = None

    @classmethod
    def read(
        cls,
        store: Path,
        plan: str,
        *,
        dataset: str | None = None,
        evaluation: str = "test",
        against: str | None = None,
    ) -> PlanCells:
        """The cells that have this evaluation; an error if there are none, or none of the row `against`."""
        every = load_rows(store, plan)
        if not len(every):
            known = plans_in(store)
            hint = f"plans with results: {', '.join(known)}" if known else "run it first: capsid bench run PLAN"
            raise ConfigError(f"the plan {plan!r} has no results in {store}", hint=hint)
        if dataset is not None and dataset not in (names := sorted({c.dataset for c in every})):
            raise ConfigError(f"the plan {plan!r} has no results on {dataset!r}", hint=nearest(dataset, names))
        cells = every if dataset is None else every.select(dataset=dataset)
        kept = dataclasses.replace(cells, cells=tuple(c for c in cells if evaluation in c.evaluations))
        if not len(kept):
            found = sorted({name for c in cells for name in c.evaluations})
            raise ConfigError(f"no cell of the plan {plan!r} has {evaluation!r}", hint=f"it has {', '.join(found)}")
        if against is not None and against not in (rows := sorted({c.label for c in kept})):
            raise ConfigError(f"the plan {plan!r} has no results of the row {against!r}", hint=nearest(against, rows))
        return cls(kept, evaluation, against)

    @property
    def datasets(self) -> list[str]:
        """In the order of the results."""
        return list(dict.fromkeys(c.dataset for c in self.cells))

    def labels(self, dataset: str | None = None) -> list[str]:
        """The rows, best first where there is one dataset."""
        labels = list(dict.fromkeys(c.label for c in self.cells if dataset in (None, c.dataset)))
        metric = self.metrics[0]

        def mean(label: str) -> float:
            found = [metric_values(self.cells, label, d, metric, self.evaluation) for d in self.datasets]
            values = [v for own in found for v in own]
            return sum(values) / len(values) if values else 0.0

        return sorted(labels, key=mean, reverse=True) if len(self.datasets) == 1 else labels

    @property
    def metrics(self) -> list[str]:
        """Recall and NDCG at every k of the plan, the largest k first."""
        ks = sorted({k for c in self.cells for k in c.ks}, reverse=True)
        return [f"{name}@{k}" for k in ks for name in ("recall", "ndcg")]


def main_table(own: PlanCells) -> Table:
    """Recall and NDCG of every row on every dataset."""
    pairs = [(d, m) for d in own.datasets for m in own.metrics]
    several = len(own.datasets) > 1
    columns = tuple(Column(f"{d} {short_name(m)}" if several else short_name(m)) for d, m in pairs)
    rows = [
        _marked(Row(label, tuple(Entry(metric_values(own.cells, label, d, m, own.evaluation)) for d, m in pairs)))
        for label in own.labels()
    ]
    note = f"Evaluation: {own.evaluation}; whole catalogue ranked; mean and standard deviation over several seeds."
    return Table("main", _title(own, "Results"), columns, tuple(rows), notes=(note, *remarks(own.cells, own.datasets)))


def significance_table(own: PlanCells) -> Table:
    """On every dataset, the row with the best mean minus every other row; or every row minus the one asked for."""
    rows, metrics = [], own.metrics[:2]
    for dataset in own.datasets:
        for ours, other in _pairs(own, dataset):
            entries = [entry for metric in metrics for entry in _difference(own, dataset, ours, other, metric)]
            rows.append(Row(f"{dataset}: {ours} minus {other}", tuple(entries)))
    # From the right, so that the places of the columns on the left do not change.
    for place in reversed(range(len(metrics))):
        rows = corrected(rows, 4 * place + 2)
    columns = [
        Column(f"{short_name(metric)} {name}", None, 4)
        for metric in metrics
        for name in ("difference", "95 % interval", "bootstrap p", "Holm p", "Welch p")
    ]
    title = "Is the best row better?" if own.against is None else f"Against {own.against}"
    notes = (
        f"Evaluation: {own.evaluation}; users and the seeds of each row are drawn with replacement.",
        FEW_SEEDS,
        HOLM,
        "Welch's t-test compares the means of the seeds; it needs two seeds of both rows.",
        *remarks(own.cells, own.datasets),
    )
    return Table("significance", _title(own, title), tuple(columns), tuple(rows), "rows", notes)


def intervals_table(own: PlanCells) -> Table:
    """Every row with its intervals, and the part of the targets that are not tied with the item before."""
    rows, metrics = [], own.metrics[:2]
    for dataset in own.datasets:
        for label in own.labels(dataset):
            cells = by_seed(own.cells, label, dataset)
            whole = [
                interval_of(own.cells, done, own.evaluation, m) if done else Entry()
                for m in metrics
                for done in [[c for c in cells if c.has(m, own.evaluation)]]
            ]
            untied = [c.evaluations[own.evaluation].get("untied", {}) for c in cells]
            apart = [Entry(tuple(float(u[m]) for u in untied if m in u)) for m in metrics]
            rows.append(_marked(Row(f"{dataset}: {label}", (*whole, *apart)), len(cells)))
    columns = (
        *(Column(f"{short_name(m)} (95 % interval)", None) for m in metrics),
        *(Column(f"{short_name(m)}, target not tied") for m in metrics),
    )
    notes = (
        f"Evaluation: {own.evaluation}; users and seeds are drawn with replacement.",
        FEW_SEEDS,
        "Not tied: users whose target has a later time than the item before it, so that its place is known.",
        *remarks(own.cells, own.datasets),
    )
    return Table("intervals", _title(own, "Results with intervals"), columns, tuple(rows), "rows", notes)


def trials_table(own: PlanCells) -> Table:
    """How many trials every row had, the setting that was chosen, and the seconds of trials and rows."""
    every = load_rows(own.cells.folder.parent, own.cells.plan)
    rows = []
    for dataset in own.datasets:
        for label in own.labels(dataset):
            tried = [c for c in every if c.dataset == dataset and trial_of(c.label) == label]
            done = by_seed(own.cells, label, dataset)
            chosen = [t.label[len(label) + 2 : -1] for t in tried if any(t.settings == c.settings for c in done)]
            seconds = [sum(float(c.seconds.get("wall", 0)) for c in cells) for cells in (tried, done)]
            counted = (Entry((float(len(tried)),)), Entry(text=", ".join(dict.fromkeys(chosen))))
            rows.append(Row(f"{dataset}: {label}", (*counted, *(Entry((s,)) for s in seconds))))
    columns = (
        Column("trials", None, 0),
        Column("chosen", None),
        Column("seconds of trials", None, 0),
        Column("seconds of the row, all seeds", None, 0),
    )
    notes = (
        "Trials are validated only. A row that is evaluated on the run of another cell counts its seconds as well.",
    )
    return Table("trials", _title(own, "Trials and seconds"), columns, tuple(rows), "rows", notes)


def orders_table(own: PlanCells) -> Table:
    """Rows that were repeated under other seeds of the order of ties: do the numbers depend on it?"""
    every = load(own.cells.folder.parent, own.cells.plan)
    cells = [c for c in every if c.order.startswith(SHUFFLE) and own.evaluation in c.evaluations]
    cells = [c for c in cells if c.dataset in own.datasets]
    repeated = dict.fromkeys((c.dataset, c.label) for c in cells if order_of(c.order)[1])
    seeds, metrics = sorted({order_of(c.order)[1] for c in cells}), own.metrics[:2]

    def entry(dataset: str, label: str, metric: str, seed: int) -> Entry:
        found = [c for c in cells if (c.dataset, c.label, order_of(c.order)[1]) == (dataset, label, seed)]
        return Entry(tuple(c.metric(metric, own.evaluation) for c in found if c.has(metric, own.evaluation)))

    rows = [Row(f"{d}: {row}", tuple(entry(d, row, m, s) for m in metrics for s in seeds)) for d, row in repeated]
    columns = tuple(Column(f"{short_name(m)}, order {s}", None) for m in metrics for s in seeds)
    notes = ("Every order has targets of its own, so its numbers are in no table with those of another.",)
    return Table("orders", _title(own, "Under several orders of ties"), columns, tuple(rows), "rows", notes)


def quality_table(own: PlanCells) -> Table:
    """Ids: collisions, use of codes, length."""
    names = ("collision_rate", "utilization", "gini", "mean_length", "mean_tokens")
    rows = [
        Row(f"{dataset}: {label}", tuple(Entry(id_values(own.cells, label, dataset, name)) for name in names))
        for dataset in own.datasets
        for label in own.labels(dataset)
    ]
    columns = (
        Column("collisions", "low", 1, 100, "%"),
        Column("utilization", "high", 1, 100, "%"),
        Column("Gini", "low", 2),
        Column("codes per item", None, 2),
        Column("tokens per item", None, 2),
    )
    notes = remarks(own.cells, own.datasets)
    return Table("tokenizer-quality", _title(own, "Ids"), columns, tuple(rows), "rows", notes)


def tiers_table(own: PlanCells) -> Table:
    """Recall by the popularity of the target."""
    rows = [
        Row(
            f"{dataset}: {label}",
            tuple(map(Entry, tier_values(own.cells, label, dataset, own.metrics[0], own.evaluation))),
        )
        for dataset in own.datasets
        for label in own.labels(dataset)
    ]
    columns = tuple(Column(t) for t in TIERS)
    title, notes = _title(own, f"{own.metrics[0]} by popularity"), remarks(own.cells, own.datasets)
    return Table("tiers", title, columns, tuple(rows), "rows", notes)


def datasets_table(own: PlanCells) -> Table:
    """Sizes as the runs saw them."""
    rows = []
    for dataset in own.datasets:
        data = next(c.data for c in own.cells if c.dataset == dataset)
        sizes = tuple(Entry((float(data[n]),)) for n in ("users", "items", "interactions"))
        rows.append(Row(dataset, sizes))
    columns = tuple(Column(n, None, 0) for n in ("users", "items", "interactions"))
    return Table("datasets", "Datasets", columns, tuple(rows), "dataset")


OWN_TABLES: dict[str, Callable[[PlanCells], Table]] = {
    "main": main_table,
    "intervals": intervals_table,
    "significance": significance_table,
    "trials": trials_table,
    "orders": orders_table,
    "tokenizer-quality": quality_table,
    "tiers": tiers_table,
    "datasets": datasets_table,
}


def _marked(row: Row, seeds: int | None = None) -> Row:
    """The row, marked if it has one seed everywhere."""
    most = seeds or max((len(entry.values) for entry in row.entries), default=0)
    return dataclasses.replace(row, mark=f"{row.mark}{ONE_SEED}") if most == 1 else row


def _title(own: PlanCells, text: str) -> str:
    return f"{text} ({own.cells.plan}: {', '.join(own.datasets)})"


def _difference(own: PlanCells, dataset: str, ours: str, other: str, metric: str) -> tuple[Entry, ...]:
    """Difference, interval, p of the bootstrap and of Welch's t-test; empty if a row was run without the metric."""
    first, second = (
        [c for c in by_seed(own.cells, label, dataset) if c.has(metric, own.evaluation)] for label in (ours, other)
    )
    if not first or not second:
        return (Entry(),) * 4
    bootstrap = compared(own.cells, first, second, own.evaluation, metric)[:3]
    return (*bootstrap, welch_p(first, second, own.evaluation, metric))


def _pairs(own: PlanCells, dataset: str) -> list[tuple[str, str]]:
    """The rows to compare, best first; none where the row asked for was not run."""
    best, *others = PlanCells(own.cells.select(dataset=dataset), own.evaluation).labels()
    if own.against is None:
        return [(best, label) for label in others]
    labels = [best, *others]
    return [(label, own.against) for label in labels if label != own.against] if own.against in labels else []
