"""Reads the store: finished cells as frozen values, and per-user values on request.

Tables and figures start here. Writes nothing; a truncated last line is skipped and reported in `notes`. Results
that an earlier release has stored can be read and recomputed, but not rerun or added to: their recipes were written by
code that is gone, so nothing compares them with the recipes of today (`archive.json` in the folder of a plan).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_arrays
from capsid.base.storage.artifacts import read_json
from capsid.data.dataset import FILE_ORDER
from capsid.data.split import Holdout
from capsid.data.ties import order_of
from capsid.errors import ArtifactError, ConfigError, nearest

LINES = "cells.jsonl"
VALUES = "values"
# The split of all cells that name none.
LEAVE_ONE_OUT = str(Holdout())
ARCHIVE = "archive.json"


def data_key(fingerprint: str, split: str) -> str:
    """What the cases of a cell depend on."""
    return fingerprint if split == LEAVE_ONE_OUT else f"{fingerprint}, {split}"


@dataclass(frozen=True, eq=False)
class Result:
    """A finished cell. `evaluations` has what `capsid evaluate --json` prints, by name; `ids` the tokenizer's report.

    `seconds` by stage: vectors, tokenizer, training (validation not counted), evaluation, wall (all of it). `code` is
    the fingerprint of the code that finished it, `codes` those of all code that ran it. `log` has one entry per phase.
    `taken_from` names a cell that did the same work; `trained_by` one whose trained run was evaluated here.
    """

    plan: str
    method: str
    label: str
    dataset: str
    seed: int
    settings: tuple[str, ...]
    fingerprint: str
    key: str
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]
    code: str
    codes: tuple[str, ...]
    ks: tuple[int, ...]
    evaluations: Mapping[str, Mapping[str, Any]]
    ids: Mapping[str, Any]
    seconds: Mapping[str, float]
    peak_memory_mb: float
    parameters: int
    tokens: int
    sequences: int
    steps: int
    best_step: int | None
    log: tuple[Mapping[str, Any], ...]
    versions: Mapping[str, str]
    started: str
    ended: str
    attempts: int
    tokenizer_shared: bool
    values_hash: str
    taken_from: str | None = None
    trained_by: str | None = None

    @property
    def name(self) -> str:
        seed = order_of(self.order)[1]
        return f"{self.label}/{self.dataset}/{self.seed}" + (f"/order-{seed}" if seed else "")

    @property
    def order(self) -> str:
        """How interactions with equal times are ordered; that of the file in cells that do not say."""
        return str(self.data.get("order", FILE_ORDER))

    @property
    def split(self) -> str:
        return str(self.data.get("split", LEAVE_ONE_OUT))

    @property
    def data_key(self) -> str:
        """Changes with the data, the order of ties and the split."""
        return data_key(str(self.data.get("fingerprint")), self.split)

    def metric(self, name: str, evaluation: str = "test") -> float:
        """`recall@10` and the like, `recall@10:expected` as well."""
        if evaluation not in self.evaluations:
            raise ConfigError(
                f"{self.name} has no evaluation {evaluation!r}", hint=nearest(evaluation, self.evaluations)
            )
        found = self.evaluations[evaluation]
        metrics = {**found["metrics"], **found.get("variants", {})}
        if name not in metrics:
            raise ConfigError(f"{self.name} has no metric {name!r}", hint=nearest(name, metrics))
        return float(metrics[name])

    def has(self, name: str, evaluation: str = "test") -> bool:
        """Whether the cell has this metric: plans have evaluations and ks of their own, and these may change."""
        found = self.evaluations.get(evaluation, {})
        return name in found.get("metrics", {}) or name in found.get("variants", {})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, one line of the store."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Result:
        """Parse a line; keys of newer versions are ignored."""
        names = {f.name for f in dataclasses.fields(cls)}
        tuples = ("settings", "codes", "ks", "log")
        known: dict[str, Any] = {k: tuple(v) if k in tuples else v for k, v in line.items() if k in names}
        return cls(**known)


@dataclass(frozen=True, eq=False)
class Results:
    """Finished cells of a plan, the latest of each name, in the order in which they ended.

    `superseded` are cells that a table must leave out (`capsid.bench.rows`).
    """

    plan: str
    folder: Path
    cells: tuple[Result, ...]
    notes: tuple[str, ...] = field(default=())
    superseded: tuple[Result, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.cells)

    def select(self, **wanted: Any) -> Results:
        """The cells whose fields have these values; a list, tuple or set matches any of its members."""
        names = [f.name for f in dataclasses.fields(Result)]
        for name in wanted:
            if name not in names:
                raise ConfigError(f"a result has no field {name!r}", hint=nearest(name, names))
        allowed = {n: v if isinstance(v, list | tuple | set | frozenset) else (v,) for n, v in wanted.items()}
        kept = (c for c in self.cells if all(getattr(c, n) in values for n, values in allowed.items()))
        return dataclasses.replace(self, cells=tuple(kept))

    def values(self, cell: Result, evaluation: str, metric: str) -> np.ndarray:
        """One number per case. Shape: (cases,)."""
        arrays = load_arrays(self.folder / VALUES / f"{cell.key}.npz", compressed=True)
        if arrays_hash(arrays) != cell.values_hash:
            raise ArtifactError(
                f"the values of {cell.name} were changed after they were stored",
                hint="remove its line from the store and run it again",
            )
        prefix = f"{evaluation}/"
        found = {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}
        if metric not in found:
            what = f"no evaluation {evaluation!r}" if not found else f"no values {metric!r}"
            hint = nearest(metric, found) if found else nearest(evaluation, cell.evaluations)
            raise ConfigError(f"{cell.name} has {what}", hint=hint)
        return found[metric]

    def cases(self, cell: Result, evaluation: str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the users and of their targets, in the order of `values`."""
        return self.values(cell, evaluation, "user"), self.values(cell, evaluation, "target")


def load(store: str | Path, plan: str, *, history: bool = False) -> Results:
    """The finished cells of a plan in a store. `history`: also those that later ones of the same name replaced."""
    folder = Path(store) / plan
    lines, notes = read_lines(folder / LINES)
    cells = []
    for number, line in enumerate(lines, start=1):
        try:
            cells.append(Result.from_dict(line))
        except (TypeError, AttributeError) as error:
            where = f"line {number} of {folder / LINES}"
            raise ArtifactError(f"{where} is not a finished cell: {error}", hint="remove it") from None
    if not history:
        latest = {cell.name: cell for cell in cells}
        cells = [cell for cell in cells if latest[cell.name] is cell]
    return Results(plan, folder, tuple(cells), tuple(notes))


def plans_in(store: str | Path) -> list[str]:
    """The plans that have results in the store."""
    return sorted(path.parent.name for path in Path(store).glob(f"*/{LINES}"))


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The whole lines, and a note if the last one was cut off. A broken line before it is an error."""
    if not path.exists():
        return [], []
    parts = path.read_bytes().split(b"\n")
    lines = []
    for number, part in enumerate(parts, start=1):
        if not part:
            continue
        try:
            # A last line without a line end may be cut off even if it parses.
            if number == len(parts):
                raise ValueError("no line end")
            lines.append(json.loads(part))
        except ValueError as error:
            if number >= len(parts) - 1:
                return lines, [f"the last line of {path} was cut off ({len(part):,} bytes) and is ignored"]
            raise ArtifactError(f"line {number} of {path} is broken: {error}", hint="remove that line") from None
    return lines, []


def arrays_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, types and contents; it does not depend on the file format."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode() + array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Archive:
    """The release that stored the cells, and the keys of those that tables leave out or whose recipe had changed."""

    release: str
    superseded: frozenset[str]
    outdated: frozenset[str]


def archive_of(folder: Path) -> Archive | None:
    """What is known of an archived plan; None for a plan that today's code has run."""
    path = folder / ARCHIVE
    if not path.is_file():
        return None
    with untrusted.interpreting(path, "archive of results"):
        content = untrusted.mapping(read_json(path), ARCHIVE)
        left_out, old = (frozenset(untrusted.texts(content[n], f"{ARCHIVE}: {n}")) for n in ("superseded", "outdated"))
        return Archive(untrusted.text(content["release"], f"{ARCHIVE}: release"), left_out, old)
