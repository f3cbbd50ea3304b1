"""The mapped folder: what it holds is that of memory, also where it is split; killed, full and changed folders."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import write
from typer.testing import CliRunner

from capsid import ragged
from capsid.base.storage import mapped_arrays
from capsid.base.storage.artifacts import MANIFEST, seal_folder
from capsid.base.storage.locks import held
from capsid.base.storage.mapped_arrays import ArrayWriter, in_file
from capsid.cli.data import app
from capsid.data.augment import training_pieces
from capsid.data.check import check_path
from capsid.data.mapped import KIND, write_mapped
from capsid.data.planted import planted_dataset
from capsid.data.sources import load_dataset
from capsid.data.split import HOLDOUTS, Holdout
from capsid.data.streaming import import_dataset, import_tables
from capsid.errors import ArtifactError, DataError

runner = CliRunner()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    rows = [f"u{u},i{(u * t) % 7},{t // 2}" for u in range(9) for t in range(6)]
    return write(tmp_path / "tables" / "interactions.csv", ["user,item,timestamp", *rows]).parent


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_command(tables: Path, tmp_path: Path) -> None:
    arguments = ["import", str(tables), "--out", str(tmp_path / "out"), "--k-core", "2", "--mapped"]
    assert runner.invoke(app, arguments).exit_code == 0
    before = contents(tmp_path / "out")
    facts = runner.invoke(app, ["describe", str(tmp_path / "out")]).stdout
    assert "mapped folder" in facts
    assert check_path(tmp_path / "out").ok
    assert "already holds" in str(runner.invoke(app, arguments).exception)
    assert runner.invoke(app, [*arguments, "--force"]).exit_code == 0
    assert contents(tmp_path / "out") == before
    with pytest.raises(DataError, match="has no ratings"):
        load_dataset(tmp_path / "out", min_rating=1)


def test_any_source_can_be_mapped(tmp_path: Path) -> None:
    done = import_dataset("planted", tmp_path / "out", k=2, mapped=True)
    found = load_dataset(tmp_path / "out")
    assert (done.users, done.interactions) == (len(found.users), found.interactions)
    assert in_file(found.sequences.values)


@pytest.mark.parametrize("kind", HOLDOUTS)
def test_splits_and_pieces_of_mapped_histories_are_mapped_and_equal(
    kind: str, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = load_dataset(tables)
    expected = Holdout(kind, 0.3).split(memory)
    fingerprints = memory.fingerprint, expected.fingerprint
    for module in (mapped_arrays, ragged):
        monkeypatch.setattr(module, "BLOCK", 4)
    mapped = load_dataset(write_mapped(memory, tmp_path / "out"))
    found = Holdout(kind, 0.3).split(mapped)
    assert (mapped.fingerprint, found.fingerprint) == fingerprints
    assert found.train == expected.train
    for name in ("valid", "test"):
        assert found.cases(name).histories == expected.cases(name).histories
    pieces = training_pieces(found.train, 3)
    assert pieces == training_pieces(expected.train, 3)
    if kind != "cold":
        assert in_file(found.train.values)
        assert in_file(pieces.values)
    assert not list((mapped_arrays.cache_home() / "scratch").iterdir())


def test_attributes_are_hashed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = planted_dataset(branching=(2, 3), users=10).fingerprint
    monkeypatch.setattr("capsid.data.dataset.BLOCK", 2)
    monkeypatch.setattr(mapped_arrays, "BLOCK", 2)
    assert planted_dataset(branching=(2, 3), users=10).fingerprint == whole


KILLED = """
import os, signal, sys
from capsid.data import streaming
from capsid.cli.main import run
streaming.copy_texts = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run(sys.argv[1:])
"""


def test_what_a_killed_import_left_is_removed(tables: Path, tmp_path: Path) -> None:
    arguments = ["data", "import", str(tables), "--out", str(tmp_path / "out"), "--mapped"]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".out.*.partial/scratch/users.texts.npy"))) == 1
    assert not (tmp_path / "out").exists()
    assert runner.invoke(app, arguments[1:]).exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "tables"]
    write_mapped(load_dataset(tables, ties="file"), tmp_path / "memory")
    assert contents(tmp_path / "out") == contents(tmp_path / "memory")


def test_a_full_disk_is_an_error_and_leaves_nothing(tables: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may have more than 200 bytes: a write fails as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(ArtifactError, match=r"could not write .*out") as caught:
            import_tables(tables, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free disk space" in str(caught.value.hint)
    assert [p.name for p in tmp_path.iterdir()] == ["tables"]


def test_two_imports_with_the_same_output(tables: Path, tmp_path: Path) -> None:
    with held(tmp_path / ".out.lock"):
        result = runner.invoke(app, ["import", str(tables), "--out", str(tmp_path / "out"), "--mapped"])
    assert "another capsid process is writing" in str(result.exception)


def test_changed_folders_are_refused(tables: Path, tmp_path: Path) -> None:
    out = write_mapped(load_dataset(tables), tmp_path / "out")
    wrong = np.load(out / "sequences.npy")
    wrong[3] = 7
    with ArrayWriter(out / "sequences.npy", "<i4") as writer:
        writer.add(wrong)
    with pytest.raises(ArtifactError, match=r"sequences\.npy was changed after it was written"):
        load_dataset(out)
    os.remove(out / MANIFEST)
    seal_folder(out, kind=KIND)
    with pytest.raises(ArtifactError, match="names an item that is not among the 7 items"):
        load_dataset(out)
    with ArrayWriter(out / "items.offsets.npy", "<i8") as writer:
        writer.add(np.array([0, 10**9, 2, 3, 4, 5, 6, 14]))
    os.remove(out / MANIFEST)
    seal_folder(out, kind=KIND)
    with pytest.raises(ArtifactError, match=r"is not a usable mapped dataset: .*offset"):
        load_dataset(out)
    (out / "offsets.npy").write_bytes((out / "offsets.npy").read_bytes()[:-8])
    report = check_path(out)
    assert not report.ok
    assert any("was changed" in finding.message for finding in report.findings)
