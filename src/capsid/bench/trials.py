"""Trials of a row: cells that differ in one setting and are only validated. The row itself has the setting of the best.

A group of a plan lists its trials; they run with its first seed on its first dataset, and every cell of the row waits
for them. Test is read once per cell: trials have no test values. Knows finished cells and recipes, runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from capsid.bench.plans import TRIED, Cell
from capsid.bench.results import Result

# Trials are compared by this number. Equal ones: the first of the plan.
METRIC = "ndcg@10"


def trial_of(label: str) -> str | None:
    """The row of a trial; None if the label is not that of a trial. Plans write `ROW [SETTING]`."""
    row, bracket, setting = label.rpartition(" [")
    return row if bracket and setting.endswith("]") else None


def settled(cell: Cell, trials: Mapping[str, Cell], result: Callable[[Cell], Result | None]) -> Cell | None:
    """The cell with the setting of its best trial; None while a trial is not finished."""
    if not cell.tried:
        return cell
    found = [(trials[name], result(trials[name])) for name in cell.tried]
    values = [done.metric(METRIC, TRIED) for _, done in found if done is not None]
    if len(values) < len(found):
        return None
    best, _ = found[values.index(max(values))]
    # Settings that come later win: those of the row itself come after its group's, and the trial's after both.
    return replace(cell, settings=(*cell.settings, *best.trial))
