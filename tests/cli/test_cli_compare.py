"""`capsid compare` on runs of the small shop."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_world import capsid

from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.base.storage.artifacts import new_folder


@pytest.fixture(scope="module")
def runs(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and a copy of it whose stored values say that it hits nothing."""
    first, second = (tmp_path_factory.mktemp("compare") / name for name in ("first", "second"))
    shutil.copytree(fitted, first)
    assert capsid("evaluate", first).code == 0
    shutil.copytree(first, second)
    rewrite(second, lambda arrays: {n: np.zeros_like(a) if "@" in n else a for n, a in arrays.items()})
    return first, second


def rewrite(run: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    """Evaluations of a method that did otherwise."""
    kept = run / "evaluations"
    arrays = load_arrays(kept / "test-filtered.npz")
    with new_folder(kept, kind="evaluations") as folder:
        save_arrays(folder / "test-filtered.npz", change(arrays))
        shutil.copy(kept / "test-filtered.json", folder / "test-filtered.json")


def test_two_methods(runs: tuple[Path, Path]) -> None:
    first, second = runs
    found = capsid("compare", first, second, "--json").json
    recall = load_arrays(first / "evaluations" / "test-filtered.npz")["recall@10"]
    assert found["first"] == pytest.approx(recall.mean())
    assert found["second"] == 0
    assert found["significant"]
    assert found["p"] < 0.01
    story = capsid("compare", first, second).out
    assert f"first   recall@10 {recall.mean():.4f}" in story
    assert "the interval excludes zero" in story


def test_the_difference_is_relative_to_the_second(runs: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = runs
    half = tmp_path / "half"
    shutil.copytree(first, half)
    rewrite(half, lambda arrays: {n: 0.5 * a if "@" in n else a for n, a in arrays.items()})
    assert "(+100.0 %)" in capsid("compare", first, half).out
    assert "(-50.0 %)" in capsid("compare", half, first).out


def test_seeds_are_averaged(runs: tuple[Path, Path]) -> None:
    first, second = runs
    found = capsid("compare", f"{first},{second}", f"{second},{first}", "--metric", "ndcg@5", "--json").json
    assert found["difference"] == 0
    assert not found["significant"]
    assert len(found["first_by_seed"]) == 2
    assert "the difference is not significant" in capsid("compare", first, first).out


def test_what_cannot_be_compared(runs: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = runs
    answer = capsid("compare", first, second, "--no-filter-history")
    assert answer.code == 1
    assert "hint: run `capsid evaluate RUN --no-filter-history`" in answer.err
    answer = capsid("compare", first, second, "--metric", "recal@10")
    assert answer.code == 2
    assert "did you mean 'recall@10'" in answer.err
    other = tmp_path / "other"
    shutil.copytree(first, other)
    rewrite(other, lambda arrays: {**arrays, "target": arrays["target"][::-1]})
    answer = capsid("compare", first, other)
    assert answer.code == 1
    assert "different cases" in answer.err
