"""Evaluations kept beside a run: RUN/evaluations/<split>[-filtered].npz has one value per case, .json the summary.

The folder is an artifact of its own, so a changed byte is detected. It names the run and the data that were evaluated:
values that were copied from another run, or made before a refit, are refused. Values for other k and other splits are
kept when an evaluation is added.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.base.storage.artifacts import MANIFEST, new_folder, open_folder, read_json, write_json
from capsid.data.split import Cases
from capsid.errors import ArtifactError, ConfigError, DataError, nearest
from capsid.evaluate.evaluator import Evaluation
from capsid.evaluate.significance import Comparison, paired_bootstrap, per_user

KIND = "evaluations"
FOLDER = "evaluations"
OF = "of"
# What the model card says changes nothing that is evaluated.
_ASIDE = {"README.md"}


@dataclass(frozen=True, eq=False)
class KeptEvaluation:
    """The cases (user and target), and one value per case for every metric."""

    run: Path
    name: str
    users: np.ndarray
    targets: np.ndarray
    values: Mapping[str, np.ndarray]

    def metric(self, name: str) -> np.ndarray:
        """The values of a metric, such as recall@10. Shape: (cases,)."""
        if name not in self.values:
            raise ConfigError(f"{self.run} has no metric {name!r}", hint=nearest(name, self.values))
        return self.values[name]


def evaluation_name(split: str, filter_history: bool) -> str:
    """What an evaluation's files are called."""
    return split + ("-filtered" if filter_history else "")


def keep_evaluation(run: Path, result: Evaluation, cases: Cases) -> Path:
    """Add an evaluation to the kept ones; returns the path of its files without their suffix."""
    folder, name = Path(run) / FOLDER, evaluation_name(result.split, result.filter_history)
    arrays: dict[str, np.ndarray] = {"user": cases.users, "target": cases.targets, **result.values}
    summary = {**result.summary(), OF: identity(run)}
    there = folder.exists()
    with new_folder(folder, kind=KIND) as new:
        if there:
            _open(folder)
            for file in sorted(folder.glob("*.json")):
                if file.name != MANIFEST and read_json(file).get(OF) == summary[OF]:
                    for kept in (file, file.with_suffix(".npz")):
                        shutil.copy(kept, new / kept.name)
        if (new / f"{name}.npz").exists():
            arrays = _joined(load_arrays(new / f"{name}.npz", compressed=True), arrays, result.ks)
            old = read_json(new / f"{name}.json")
            if old.get("users") == summary["users"]:
                both = {part: {**old.get(part, {}), **summary[part]} for part in ("metrics", "variants")}
                summary = {**old, **summary, **both}
        save_arrays(new / f"{name}.npz", arrays)
        write_json(new / f"{name}.json", summary)
    return folder / name


def kept_evaluation(run: Path, split: str = "test", *, filter_history: bool = True) -> KeptEvaluation:
    """Read what `keep_evaluation` wrote; every hash is checked."""
    name = evaluation_name(split, filter_history)
    folder = Path(run) / FOLDER
    if not (folder / f"{name}.npz").exists():
        command = "capsid evaluate RUN" + ("" if filter_history else " --no-filter-history")
        raise ArtifactError(f"{run} has no evaluation {name!r}", hint=f"run `{command}` on it first")
    _open(folder)
    named, own = read_json(folder / f"{name}.json").get(OF), identity(run)
    if named != own:
        which = "of no run" if named is None else "of another run" if named["run"] != own["run"] else "of other data"
        raise ArtifactError(f"the evaluation {name!r} in {folder} is {which}", hint="run `capsid evaluate` again")
    arrays = load_arrays(folder / f"{name}.npz", compressed=True)
    metrics = {key: values for key, values in arrays.items() if "@" in key}
    return KeptEvaluation(Path(run), name, arrays["user"], arrays["target"], metrics)


def identity(run: Path) -> dict[str, str]:
    """What an evaluation belongs to: a digest of the files of the run, and the data with its order and split."""
    about = read_json(Path(run) / "about.json")
    files = {name: digest for name, digest in read_json(Path(run) / MANIFEST)["files"].items() if name not in _ASIDE}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    return {"run": digest, **{part: about.get(part, "") for part in ("dataset_fingerprint", "split_fingerprint")}}


def compare_runs(
    first: Sequence[Path],
    second: Sequence[Path],
    *,
    metric: str = "recall@10",
    split: str = "test",
    filter_history: bool = True,
) -> Comparison:
    """First minus second, user by user: each side has the runs of one method, one per seed."""
    sides = [[kept_evaluation(run, split, filter_history=filter_history) for run in side] for side in (first, second)]
    every = [kept for side in sides for kept in side]
    for other in every[1:]:
        if not all(np.array_equal(getattr(every[0], n), getattr(other, n)) for n in ("users", "targets")):
            raise DataError(
                f"{every[0].run} and {other.run} were evaluated on different cases",
                hint="compare runs of the same data",
            )
    ours, theirs = ([per_user(kept.metric(metric), kept.users) for kept in side] for side in sides)
    return paired_bootstrap(ours, theirs)


def _open(folder: Path) -> None:
    """Check every hash."""
    open_folder(folder, kind=KIND, hint=f"delete {folder} and run `capsid evaluate` again")


def _joined(old: dict[str, np.ndarray], new: dict[str, np.ndarray], ks: tuple[int, ...]) -> dict[str, np.ndarray]:
    same = all(name in old and np.array_equal(old[name], new[name]) for name in ("user", "target"))
    if not same:
        return new
    # Ranks are known up to the longest list; keep those of the longer one.
    known = [int(n[7:]) for n in old if n.startswith("recall@") and n[7:].isdigit()]
    longer = max(known, default=0) > max(ks)
    return {**old, **{n: v for n, v in new.items() if not (longer and n == "rank" and n in old)}}
