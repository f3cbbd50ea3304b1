"""The store of results: one line per finished cell, per-user values beside it, working folders of unfinished cells.

<store>/<plan>/cells.jsonl   values/<key>.npz   work/<key>/   work/tokenizers/   work/trained/

Values are written before their line, and a line is one write followed by fsync. A line that a kill cut off is found and
repaired when the store is next opened. One runner at a time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.storage.artifacts import write_bytes
from capsid.base.storage.locks import held
from capsid.bench.cells import Job, stored_recipe_key, values_key
from capsid.bench.results import LINES, VALUES, Result, archive_of, load, plans_in, read_lines
from capsid.errors import ArtifactError


@dataclass(frozen=True)
class Place:
    """The paths of a plan's files."""

    store: Path
    plan: str

    @property
    def folder(self) -> Path:
        return self.store / self.plan

    @property
    def lines(self) -> Path:
        """The results."""
        return self.folder / LINES

    @property
    def works(self) -> Path:
        """Unfinished cells, and ids that cells share."""
        return self.folder / "work"

    @property
    def tokenizers(self) -> Path:
        """Ids that cells share."""
        return self.works / "tokenizers"

    @property
    def trained(self) -> Path:
        return self.works / "trained"

    def work(self, key: str) -> Path:
        return self.works / key

    def values(self, key: str) -> Path:
        return self.folder / VALUES / f"{key}.npz"


@contextlib.contextmanager
def opened(place: Place, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the plan's store as its only writer; leftovers of a kill are repaired or removed first."""
    if (archive := archive_of(place.folder)) is not None:
        raise ArtifactError(
            f"{place.folder} holds the archived results of release {archive.release}, which nothing is added to",
            hint="choose another --store",
        )
    try:
        place.works.mkdir(parents=True, exist_ok=True)
        # Working folders hold gigabytes that do not belong in a repository.
        write_bytes(place.works / ".gitignore", b"*\n")
    except OSError as error:
        raise ArtifactError(
            f"{place.folder} cannot be written: {error.strerror}", hint="choose another --store"
        ) from None
    with held(place.works / "runner.lock", wait=False) as got:
        if not got:
            raise ArtifactError(
                f"another run of the plan {place.plan!r} is using {place.store}",
                hint="wait for it, or choose another --store",
            )
        repair(place.lines, tell)
        for leftover in (place.folder / VALUES).glob(".*"):
            leftover.unlink(missing_ok=True)
        yield


def repair(lines: Path, tell: Callable[[str], None]) -> None:
    """Rewrite the file without a last line that was cut off."""
    kept, notes = read_lines(lines)
    if notes:
        write_bytes(lines, b"".join(_line(line) for line in kept))
        tell(f"{notes[0]}; the file was repaired and the cell will run again")


def append(place: Place, result: Result) -> None:
    """Add a finished cell; its values must already be written."""
    if not place.values(result.key).exists():
        raise ArtifactError(f"the values of {result.name} are missing, so its line was not written")
    handle = os.open(place.lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        data = _line(result.to_dict())
        written = os.write(handle, data)
        os.fsync(handle)
    except OSError as error:
        raise ArtifactError(f"could not write {place.lines}: {error.strerror}", hint="is the disk full?") from error
    finally:
        os.close(handle)
    if written != len(data):
        raise ArtifactError(
            f"{place.lines} received only part of a line", hint="is the disk full? run again to repair it"
        )


def write_values(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays, compressed; the file is written whole or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(arrays))
    write_bytes(path, buffer.getvalue())


def forget_work(place: Place, key: str) -> None:
    """Remove the working folder of a cell that is stored."""
    shutil.rmtree(place.work(key), ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Finished:
    """Finished cells of all plans of a store. With `code`, only those that this code finished count."""

    cells: tuple[Result, ...]
    code: str | None = None

    @classmethod
    def read(cls, place: Place, code: str | None = None) -> Finished:
        """Read the current store, without what an earlier release has archived there."""
        plans = [plan for plan in plans_in(place.store) if archive_of(place.store / plan) is None]
        return cls(tuple(c for plan in plans for c in load(place.store, plan, history=True)), code)

    def and_also(self, result: Result) -> Finished:
        return replace(self, cells=(*self.cells, result))

    def of(self, job: Job) -> Result | None:
        """The job's own result, if it has one. Only the latest line of a name counts, because tables show that one."""
        own = [c for c in self.cells if c.plan == job.cell.plan and c.name == job.cell.name]
        return own[-1] if own and self._did(own[-1], job) else None

    def twin(self, job: Job) -> Result | None:
        """A result of the same work under another name, in another plan, or before the plan was changed and back."""
        same = [c for c in self.cells if self._did(c, job)]
        return same[-1] if same else None

    def _did(self, cell: Result, job: Job) -> bool:
        return self.code in (None, cell.code) and covers(cell, job)


def covers(cell: Result, job: Job) -> bool:
    """Whether a finished cell did the job's work: the same recipe, data, seed and ks, and at least its evaluations."""
    if cell.fingerprint == job.fingerprint:
        return True
    return _work(cell) == job.work and set(job.cell.evaluations) <= set(cell.evaluations)


@functools.cache
def _work(cell: Result) -> tuple[object, ...]:
    return stored_recipe_key(cell.recipe), cell.data_key, cell.seed, cell.ks


def adopt(place: Place, job: Job, twin: Result) -> Result:
    """Copy the result of the same work, with its values; `taken_from` names its source.

    Only the job's own evaluations are listed, although the values may hold more.
    """
    source = Place(place.store, twin.plan).values(twin.key)
    if not source.exists():
        raise ArtifactError(f"{source} is missing")
    key, cell = values_key(job, twin.code), job.cell
    write_bytes(place.values(key), source.read_bytes())
    new = replace(
        twin,
        plan=cell.plan,
        method=cell.method,
        label=cell.label,
        dataset=cell.dataset,
        settings=cell.settings,
        recipe=job.recipe.to_dict(),
        data={**twin.data, "order": job.data.order, "split": job.data.split},
        fingerprint=job.fingerprint,
        key=key,
        evaluations={name: twin.evaluations[name] for name in cell.evaluations},
        taken_from=f"{twin.plan}:{twin.name}",
    )
    append(place, new)
    return new


def plain(value: Any) -> Any:
    """JSON values: NumPy numbers become Python numbers, and numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _line(value: Any) -> bytes:
    return (json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n").encode()
