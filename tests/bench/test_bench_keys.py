"""A cell's fingerprint changes with everything that changes its numbers, and its journal adds up all attempts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from capsid.bench import store as journal
from capsid.bench.cells import cell_fingerprint
from capsid.recipes import get_recipe

GIVEN = ("data", 0, ("test",), (5, 10))


@pytest.mark.parametrize("other", [("more", *GIVEN[1:]), ("data", 1, *GIVEN[2:]), (*GIVEN[:2], ("valid",), (5, 10)),
                                   (*GIVEN[:3], (5,))])  # fmt: skip
def test_other_data_seeds_and_evaluations_are_other_cells(other: tuple) -> None:  # type: ignore[type-arg]
    recipe = get_recipe("tiger")
    assert cell_fingerprint(recipe, *other) != cell_fingerprint(recipe, *GIVEN)  # type: ignore[arg-type]


def test_settings_count_and_texts_do_not() -> None:
    recipe = get_recipe("tiger")
    changed = recipe.with_settings(["generator.width=64"])
    assert cell_fingerprint(changed, *GIVEN) != cell_fingerprint(recipe, *GIVEN)  # type: ignore[arg-type]
    renamed = dataclasses.replace(recipe, about="other words")
    assert cell_fingerprint(renamed, *GIVEN) == cell_fingerprint(recipe, *GIVEN)  # type: ignore[arg-type]


def test_the_journal_keeps_the_most_memory_of_all_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt, memory in enumerate((90.0, 40.0), 1):
        monkeypatch.setattr(journal, "peak_memory_mb", lambda m=memory: m)
        journal.Journal(tmp_path, f"code {attempt}")
    found = journal.read_journal(tmp_path)
    assert (found["attempts"], found["peak_memory_mb"], found["codes"]) == (2, 90.0, ["code 1", "code 2"])
