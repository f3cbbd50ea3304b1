"""A plan is a short TOML file: which methods, on which datasets, with which seeds and settings, in which order.

Reads and checks plans; knows neither recipes nor data, so that a plan may name a method that does not exist yet.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capsid.bench.results import Result
from capsid.data.dataset import FILE_ORDER
from capsid.data.split import Holdout
from capsid.data.ties import check_ties
from capsid.errors import ConfigError, nearest

# What a trial is measured by.
TRIED = "valid-filtered"
# Accuracy of the codes at each position, on test cases: slow, so it runs only where a plan asks for it.
POSITIONS = "positions"
BUILT_IN = Path(__file__).parent / "plans"
EVALUATIONS = ("test", "test-filtered", "valid", "valid-filtered", POSITIONS)
PLAN_KEYS = ("name", "about", "datasets", "seeds", "evaluations", "ks", "ties", "holdout", "target", "cells", "shared")
GROUP_KEYS = (
    *("method", "label", "with", "settings", "datasets", "seeds", "priority", "evaluations", "order"),
    *("trials", "tried_by"),
)
# Trials are compared by this number. Equal ones: the first of the plan.
METRIC = "ndcg@10"


@dataclass(frozen=True)
class Cell:
    """One thing to run. `label` tells rows of a table apart; cells of priority 1 come first.

    An evaluation is a split's name, with `-filtered` if items of the user's history are excluded. `ties` and `order`
    (its seed) say how interactions with equal times are ordered, `holdout` and `target` what is held out. All cells of
    a plan ask the same question; plans and stored cells that state none keep file order and leave one out. `tried`: the
    trials whose best settings the cell takes over (`capsid.bench.plans`); `trial`: the settings that a trial tries.
    """

    plan: str
    method: str
    label: str
    dataset: str
    seed: int
    settings: tuple[str, ...] = ()
    priority: int = 1
    evaluations: tuple[str, ...] = ("test", "test-filtered")
    ks: tuple[int, ...] = (5, 10)
    ties: str = FILE_ORDER
    order: int = 0
    holdout: str = "last"
    target: str = "last"
    tried: tuple[str, ...] = ()
    trial: tuple[str, ...] = ()

    @property
    def held(self) -> Holdout:
        return Holdout(self.holdout, target=self.target)

    @property
    def name(self) -> str:
        """The display name, unique within a plan."""
        return f"{self.label}/{self.dataset}/{self.seed}" + (f"/order-{self.order}" if self.order else "")


@dataclass(frozen=True)
class Plan:
    """Cells in the order in which they run."""

    name: str
    about: str
    cells: tuple[Cell, ...]

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.dataset for cell in self.cells))

    def only(self, *patterns: str) -> Plan:
        """The cells whose name, label, dataset or seed matches a shell pattern, those of the first pattern first.

        Trials that they wait for come before them.
        """
        chosen = dict.fromkeys(c for p in patterns for c in self._matching(p))
        needed = {name for cell in chosen for name in cell.tried}
        trials = dict.fromkeys(cell for cell in self.cells if cell.name in needed)
        return Plan(self.name, self.about, tuple(trials | chosen))

    def _matching(self, pattern: str) -> list[Cell]:
        found = [
            cell
            for cell in self.cells
            if any(fnmatch.fnmatchcase(t, pattern) for t in (cell.name, cell.label, cell.dataset, str(cell.seed)))
        ]
        if not found:
            labels = sorted({c.label for c in self.cells})
            raise ConfigError(
                f"no cell of the plan {self.name!r} matches {pattern!r}",
                hint=f"a cell is called label/dataset/seed, such as {self.cells[0].name}; labels: {', '.join(labels)}",
            )
        return found


def plan_names() -> list[str]:
    """The plans that come with capsid."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def is_built_in(name: str) -> bool:
    """Whether a plan of that name comes with capsid."""
    return name in plan_names()


def read_plan(name_or_path: str | Path, *, name: str | None = None) -> Plan:
    """A built-in plan by name, or a TOML file by path. `name` is used if the file gives none, else the file's."""
    path = Path(name_or_path)
    if is_built_in(str(name_or_path)):
        path = BUILT_IN / f"{name_or_path}.toml"
    if not path.is_file():
        raise ConfigError(
            f"there is no plan and no file called {str(name_or_path)!r}", hint=nearest(str(name_or_path), plan_names())
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}", hint="put strings in quotation marks and lists in brackets"
        ) from None
    return make_plan(content, name or path.stem)


def make_plan(content: Mapping[str, Any], stem: str) -> Plan:
    """Build a plan from a file's content; `stem` is its name unless the content has one."""
    _known(content, PLAN_KEYS, "a plan")
    name = _text(content.get("name", stem), "name")
    if not name or name.startswith(".") or "/" in name:
        raise ConfigError(f"a plan cannot be called {name!r}", hint="its name becomes a folder of the store")
    groups = content.get("cells")
    if not isinstance(groups, list) or not groups:
        raise ConfigError(f"the plan {name!r} has no cells", hint='write [[cells]] and below it method = "..."')
    cells = [cell for group in groups for cell in _cells(group, content, name)]
    cells = _with_trials_of_others(cells, groups, name)
    seen: set[str] = set()
    for cell in cells:
        if cell.name in seen:
            raise ConfigError(
                f"the plan {name!r} has two cells called {cell.name}", hint="give one of them a label of its own"
            )
        seen.add(cell.name)
    # A stable sort: cells of one priority stay in the plan's order.
    ordered = sorted(cells, key=lambda c: c.priority)
    return Plan(name, _text(content.get("about", ""), "about"), tuple(ordered))


def _with_trials_of_others(cells: list[Cell], groups: Sequence[Mapping[str, Any]], name: str) -> list[Cell]:
    """Cells of groups that take over the trials of another row, `tried_by`."""
    of_row = {cell.label: cell.tried for cell in cells if cell.tried}
    takes = {str(g.get("label", g.get("method"))): str(g["tried_by"]) for g in groups if "tried_by" in g}
    for row in takes.values():
        if row not in of_row:
            raise ConfigError(f"the plan {name!r} has no trials of the row {row!r}", hint=nearest(row, sorted(of_row)))
    return [replace(c, tried=of_row[takes[c.label]]) if c.label in takes and not c.tried else c for c in cells]


def _cells(group: Any, plan: Mapping[str, Any], name: str) -> list[Cell]:
    if not isinstance(group, Mapping):
        raise ConfigError("cells must be tables", hint='write [[cells]] and below it method = "..."')
    _known(group, GROUP_KEYS, "a group of cells")
    if "method" not in group:
        raise ConfigError(f"a group of cells of the plan {name!r} has no method", hint="name a recipe")
    method = _text(group["method"], "method")
    both = {**plan, **group}
    datasets, seeds = _list(both.get("datasets", []), str, "datasets"), _list(both.get("seeds", [0]), int, "seeds")
    if not datasets or not seeds:
        raise ConfigError(f"{method} of the plan {name!r} has no dataset or no seed", hint='datasets = ["planted"]')
    evaluations = _list(both.get("evaluations", ["test", "test-filtered"]), str, "evaluations")
    for evaluation in evaluations:
        if evaluation not in EVALUATIONS:
            raise ConfigError(f"there is no evaluation {evaluation!r}", hint=nearest(evaluation, EVALUATIONS))
    ks = _list(both.get("ks", [5, 10]), int, "ks")
    if not evaluations or not ks or min(ks) < 1:
        raise ConfigError(
            f"{method} of the plan {name!r} evaluates nothing", hint='evaluations = ["test"], ks = [5, 10]'
        )
    lists = _lists(plan)
    settings = (*_shared(group, lists), *_list(group.get("settings", []), str, "settings"))
    label, ties = _text(group.get("label", method), "label"), _text(both.get("ties", FILE_ORDER), "ties")
    check_ties(ties)
    priority = _whole(group.get("priority", 1), "priority", "cells of priority 1 come first")
    order = _whole(group.get("order", 0), "order", "the seed of the order of ties")
    if order and ties == FILE_ORDER:
        raise ConfigError(f"order = {order} of {method} draws ties that are not shuffled", hint='ties = "shuffle"')
    held = Holdout(_text(plan.get("holdout", "last"), "holdout"), target=_text(plan.get("target", "last"), "target"))
    shown = tuple(evaluations), tuple(sorted(set(ks)))
    trials = _list(group.get("trials", []), str, "trials")
    first = Cell(
        name, method, label, datasets[0], seeds[0], settings, priority, *shown, ties, order, held.kind, held.target
    )
    tried = [
        replace(first, label=f"{label} [{trial}]", settings=(*settings, *more), trial=more, evaluations=(TRIED,))
        for trial, more in ((trial, lists.get(trial, (trial,))) for trial in trials)
    ]
    names = tuple(cell.name for cell in tried)
    cells = [replace(first, dataset=data, seed=seed, tried=names) for data in datasets for seed in seeds]
    return [*tried, *cells]


def _lists(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The lists of settings that a plan shares, by name."""
    known = plan.get("shared", {})
    if not isinstance(known, Mapping):
        raise ConfigError(
            f"shared must be a table of lists of settings, got {known!r}", hint='[shared] small = ["..."]'
        )
    return {name: tuple(_list(settings, str, f"shared.{name}")) for name, settings in known.items()}


def _shared(group: Mapping[str, Any], lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The settings that a group takes over from the plan; its own come after them and win."""
    names = _list(group.get("with", []), str, "with")
    for name in names:
        if name not in lists:
            raise ConfigError(f"the plan shares no settings called {name!r}", hint=nearest(name, sorted(lists)))
    return tuple(setting for name in names for setting in lists[name])


def _known(table: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
    for key in table:
        if key not in allowed:
            raise ConfigError(f"{what} has no key {key!r}", hint=nearest(key, allowed))


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be a string, got {value!r}", hint=f'{key} = "..."')
    return value


def _whole(value: Any, key: str, hint: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{key} must be a whole number, got {value!r}", hint=hint)
    return value


def _list(value: Any, kind: type, key: str) -> list[Any]:
    if not isinstance(value, list) or any(not isinstance(v, kind) or isinstance(v, bool) for v in value):
        example = '["...", "..."]' if kind is str else "[0, 1]"
        raise ConfigError(f"{key} must be a list, got {value!r}", hint=f"{key} = {example}")
    return value


def trial_of(label: str) -> str | None:
    """The row of a trial; None if the label is not that of a trial. Plans write `ROW [SETTING]`."""
    row, bracket, setting = label.rpartition(" [")
    return row if bracket and setting.endswith("]") else None


def settled(cell: Cell, trials: Mapping[str, Cell], result: Callable[[Cell], Result | None]) -> Cell | None:
    """The cell with the setting of its best trial; None while a trial is not finished.

    Trials differ in one setting and are only validated: test is read once per cell. They run with the first seed of
    their group on its first dataset.
    """
    if not cell.tried:
        return cell
    found = [(trials[name], result(trials[name])) for name in cell.tried]
    values = [done.metric(METRIC, TRIED) for _, done in found if done is not None]
    if len(values) < len(found):
        return None
    best, _ = found[values.index(max(values))]
    # Settings that come later win: those of the row itself come after its group's, and the trial's after both.
    return replace(cell, settings=(*cell.settings, *best.trial))
