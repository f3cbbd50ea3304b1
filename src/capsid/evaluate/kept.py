"""Evaluations kept beside a run: RUN/evaluations/<split>[-filtered].npz has one value per case, .json the summary.

The folder is an artifact of its own, so a changed byte is noticed. Values for other k, and of other splits, stay when
an evaluation is added.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from capsid.arrays import load_arrays, save_arrays
from capsid.artifacts import MANIFEST, new_folder, open_folder, read_json, write_json
from capsid.data.split import Cases
from capsid.errors import ArtifactError, ConfigError, nearest
from capsid.evaluate.evaluator import Evaluation

KIND = "evaluations"
FOLDER = "evaluations"


def evaluation_name(split: str, filter_history: bool) -> str:
    """What an evaluation's files are called."""
    return split + ("-filtered" if filter_history else "")


def keep_evaluation(run: Path, result: Evaluation, cases: Cases) -> Path:
    """Add an evaluation to those that are kept; returns its files' path without the ending."""
    folder, name = Path(run) / FOLDER, evaluation_name(result.split, result.filter_history)
    arrays: dict[str, np.ndarray] = {"user": cases.users, "target": cases.targets, **result.values}
    summary = result.summary()
    there = (folder / MANIFEST).exists()
    with new_folder(folder, kind=KIND) as new:
        if there:
            _open(folder)
            for file in folder.iterdir():
                if file.name != MANIFEST:
                    shutil.copy(file, new / file.name)
        if (new / f"{name}.npz").exists():
            arrays = _joined(load_arrays(new / f"{name}.npz"), arrays, result.ks)
            summary = _joined_summaries(read_json(new / f"{name}.json"), summary)
        save_arrays(new / f"{name}.npz", arrays)
        write_json(new / f"{name}.json", summary)
    return folder / name


def kept_values(run: Path, name: str, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """User, target and the metric's value of every case."""
    folder = Path(run) / FOLDER
    if not (folder / f"{name}.npz").exists():
        asked = "capsid evaluate RUN" + (" --filter-history" if name.endswith("-filtered") else "")
        raise ArtifactError(f"{run} has no evaluation {name!r}", hint=f"run `{asked}` on it first")
    _open(folder)
    arrays = load_arrays(folder / f"{name}.npz")
    metrics = [key for key in arrays if "@" in key]
    if metric not in metrics:
        raise ConfigError(f"{run} has no metric {metric!r}", hint=nearest(metric, metrics))
    return arrays["user"], arrays["target"], arrays[metric]


def _open(folder: Path) -> None:
    open_folder(folder, kind=KIND, hint=f"delete {folder} and run `capsid evaluate` again")


def _joined(old: dict[str, np.ndarray], new: dict[str, np.ndarray], ks: tuple[int, ...]) -> dict[str, np.ndarray]:
    same = all(name in old and np.array_equal(old[name], new[name]) for name in ("user", "target"))
    if not same:
        return new
    # Ranks end at the longest list that was asked for: those of a longer one say more.
    longer = max(_ks(old), default=0) > max(ks)
    return {**old, **{n: v for n, v in new.items() if not (longer and n == "rank" and n in old)}}


def _joined_summaries(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if old.get("users") != new["users"]:
        return new
    both = {name: {**old.get(name, {}), **new[name]} for name in ("metrics", "variants")}
    return {**old, **new, **both}


def _ks(names: dict[str, Any]) -> list[int]:
    return [int(n.removeprefix("recall@")) for n in names if n.startswith("recall@") and n[7:].isdigit()]
