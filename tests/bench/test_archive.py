"""Archived results: what an earlier release stored is read as that release wrote it, whatever recipes are today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_current import earlier, present, put, seeds

from capsid.bench.results import LINES, archive_of
from capsid.bench.rows import load_rows, outdated, remarks
from capsid.bench.store import Finished, Place, opened
from capsid.errors import ArtifactError

STORE = Path(__file__).parents[2] / "results" / "bench"


def archive(store: Path, *, superseded: list[str], outdated: list[str]) -> None:
    content = {"release": "0.1", "superseded": superseded, "outdated": outdated}
    (store / "main" / "archive.json").write_text(json.dumps(content))


def keys(store: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (store / "main" / LINES).read_text().splitlines()]


def test_cells_are_kept_as_the_release_said(tmp_path: Path) -> None:
    """Recipes are not compared: these three have two recipes, one of which nobody can read any more."""
    unreadable = {**present("tiger", 0), "generator": {"kind": "of another age"}}
    for seed, recipe in enumerate([unreadable, earlier("tiger", 1), earlier("tiger", 2)]):
        put(tmp_path, "tiger", seed, recipe)
    archive(tmp_path, superseded=[keys(tmp_path)[1]], outdated=[keys(tmp_path)[2]])
    rows = load_rows(tmp_path, "main")
    assert (seeds(rows.cells), seeds(rows.superseded)) == ([0, 2], [1])
    assert seeds(tuple(outdated(rows))) == [2]
    assert len(remarks(rows)) == 2


def test_nothing_is_added_and_nothing_is_taken_over(tmp_path: Path) -> None:
    put(tmp_path, "tiger", 0, present("tiger", 0))
    place = Place(tmp_path, "main")
    assert len(Finished.read(place).cells) == 1
    archive(tmp_path, superseded=[], outdated=[])
    assert Finished.read(place).cells == ()
    with pytest.raises(ArtifactError, match="archived results of release") as error, opened(place, print):
        pass
    assert "--store" in str(error.value)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "tiger", 0, present("tiger", 0))
    (tmp_path / "main" / "archive.json").write_text('{"release": "0.1"}')
    with pytest.raises(ArtifactError):
        load_rows(tmp_path, "main")


@pytest.mark.parametrize("plan", ["main", "ablation", "sensitivity", "stage-two", "strong", "strong-ablation"])
def test_the_cells_of_the_published_order_are_archived(plan: str) -> None:
    found = archive_of(STORE / plan)
    assert found is not None
    assert found.release == "0.1"
    rows = load_rows(STORE, plan)
    assert found.superseded | found.outdated <= {c.key for c in (*rows, *rows.superseded)}
