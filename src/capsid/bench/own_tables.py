"""Tables of any plan and dataset: accuracy, significance, ids, popularity of targets, sizes of the data.

Unlike `capsid.bench.tables` they know neither the paper nor its datasets: rows and columns are those that were run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capsid.bench.current import load_rows, remarks
from capsid.bench.results import Results, plans_in
from capsid.bench.stored_rows import by_seed, compared, id_values, metric_values, short_name
from capsid.bench.table import Column, Entry, Row, Table
from capsid.errors import ConfigError, nearest
from capsid.popularity import TIERS


@dataclass(frozen=True, eq=False)
class PlanCells:
    """The finished cells of a plan, of one dataset or all. `evaluation` is `test` or `test-filtered`."""

    cells: Results
    evaluation: str

    @classmethod
    def read(cls, store: Path, plan: str, *, dataset: str | None = None, evaluation: str = "test") -> PlanCells:
        """The cells that have this evaluation; an error if there are none."""
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
        return cls(kept, evaluation)

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
        Row(label, tuple(Entry(metric_values(own.cells, label, d, m, own.evaluation)) for d, m in pairs))
        for label in own.labels()
    ]
    note = f"Evaluation: {own.evaluation}; whole catalogue ranked; mean and standard deviation over several seeds."
    return Table("main", _title(own, "Results"), columns, tuple(rows), notes=(note, *remarks(own.cells, own.datasets)))


def significance_table(own: PlanCells) -> Table:
    """On every dataset, the row with the best mean against every other row."""
    rows = []
    metric = own.metrics[0]
    for dataset in own.datasets:
        best, *others = PlanCells(own.cells.select(dataset=dataset), own.evaluation).labels()
        ours = by_seed(own.cells, best, dataset)
        for label in others:
            other = by_seed(own.cells, label, dataset)
            entries = compared(own.cells, ours, other, own.evaluation, metric)[:3]
            rows.append(Row(f"{dataset}: {best} minus {label}", entries))
    columns = (Column("difference", None, 4), Column("95 % interval", None), Column("bootstrap p", None, 4))
    note = f"{metric}; users and the seeds of each row are drawn with replacement."
    notes = (note, *remarks(own.cells, own.datasets))
    return Table("significance", _title(own, "Is the best row better?"), columns, tuple(rows), "rows", notes)


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
    key = f"{own.metrics[0]}_by_tier"
    rows = []
    for dataset in own.datasets:
        for label in own.labels(dataset):
            found = [c.evaluations[own.evaluation] for c in by_seed(own.cells, label, dataset)]
            entries = tuple(Entry(tuple(float(e[key][t]) for e in found if key in e)) for t in TIERS)
            rows.append(Row(f"{dataset}: {label}", entries))
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
    "significance": significance_table,
    "tokenizer-quality": quality_table,
    "tiers": tiers_table,
    "datasets": datasets_table,
}


def _title(own: PlanCells, text: str) -> str:
    return f"{text} ({own.cells.plan}: {', '.join(own.datasets)})"
