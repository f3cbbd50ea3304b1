from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from worlds import small_disk

from capsid import artifacts
from capsid.artifacts import (
    cache_home,
    folder_kind,
    load_arrays,
    new_folder,
    open_folder,
    read_json,
    save_arrays,
    write_bytes,
    write_json,
)
from capsid.errors import ArtifactError


def make(path: Path, text: str = "first") -> Path:
    with new_folder(path, kind="thing") as folder:
        (folder / "a.txt").write_text(text)
        (folder / "below").mkdir()
        save_arrays(folder / "below" / "b.npz", {"x": np.arange(1000)})
    return path


def is_first(path: Path) -> bool:
    """The folder is whole, holds what `make` wrote, and nothing lies beside it."""
    open_folder(path, kind="thing")
    return (path / "a.txt").read_text() == "first" and os.listdir(path.parent) == [path.name]


def test_a_whole_folder_opens(tmp_path: Path) -> None:
    path = make(tmp_path / "deep" / "out")
    assert open_folder(path, kind="thing") == path
    assert folder_kind(path) == "thing"
    assert sorted(read_json(path / "manifest.json")["files"]) == ["a.txt", "below/b.npz"]
    assert os.stat(path).st_mode & 0o777 == 0o755
    assert os.listdir(path.parent) == ["out"]


def test_a_new_folder_takes_the_old_ones_place(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    make(path, "second")
    assert (open_folder(path, kind="thing") / "a.txt").read_text() == "second"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_middle_leaves_the_old_folder(tmp_path: Path, error: type[BaseException]) -> None:
    path = make(tmp_path / "out")

    def stop() -> None:
        with new_folder(path, kind="thing") as folder:
            (folder / "a.txt").write_text("second")
            raise error

    with pytest.raises(error):
        stop()
    assert is_first(path)


def test_an_exception_leaves_nothing_where_nothing_was(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_folder(tmp_path / "out", kind="thing"):
        raise RuntimeError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_disk_that_fails_at_any_call_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    path = make(tmp_path / "out")
    real, calls = getattr(os, name), []

    def broken(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(artifacts.os, name, broken)
    with pytest.raises(ArtifactError, match=r"No space left.*is the disk full"):
        make(path, "second")
    assert len(calls) >= call
    assert is_first(path)


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    with small_disk(100), pytest.raises(ArtifactError, match="could not write"):
        make(path, "second")
    assert is_first(path)
    with small_disk(100), pytest.raises(ArtifactError, match="could not write"):
        write_json(tmp_path / "out" / "a.txt", list(range(1000)))
    assert is_first(path)


@pytest.mark.parametrize("file", ["a.txt", "below/b.npz"])
def test_a_changed_byte_is_noticed(tmp_path: Path, file: str) -> None:
    path = make(tmp_path / "out")
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    (path / file).write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="was changed after it was written"):
        open_folder(path, kind="thing")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no folder"):
        open_folder(tmp_path / "nowhere", kind="thing")
    path = make(tmp_path / "out")
    (path / "a.txt").unlink()
    with pytest.raises(ArtifactError, match=r"a\.txt is missing"):
        open_folder(path, kind="thing")
    (path / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="not a finished capsid folder"):
        open_folder(path, kind="thing")
    assert folder_kind(path) is None


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ('{"format": 1, "kind": "thi', "not valid JSON"),
        ('{"format": 99, "kind": "thing", "files": {}}', "has format 99"),
        ('{"format": 1, "kind": "run", "files": {}}', "holds a run, not a thing"),
        ("[1]", "not a manifest"),
        ('{"format": 1, "kind": "thing"}', "not a manifest"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, manifest: str, message: str) -> None:
    path = make(tmp_path / "out")
    (path / "manifest.json").write_text(manifest)
    with pytest.raises(ArtifactError, match=message):
        open_folder(path, kind="thing")


def test_a_foreign_folder_or_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="capsid did not write"):
        make(tmp_path / "own")
    with pytest.raises(ArtifactError, match="is not a folder"):
        make(tmp_path / "own" / "thesis.txt")
    assert (tmp_path / "own" / "thesis.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="could not write"):
        make(tmp_path / "file" / "out")
    with pytest.raises(ArtifactError, match="could not write"):
        write_bytes(tmp_path / "file" / "out.json", b"x")


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yy"]), "c": np.zeros(0, np.float32)}
    save_arrays(tmp_path / "a.npz", arrays)
    back = load_arrays(tmp_path / "a.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype


def test_objects_are_neither_stored_nor_read(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    with pytest.raises(ArtifactError, match="'x' holds Python objects"):
        save_arrays(tmp_path / "a.npz", {"x": objects})
    np.savez(tmp_path / "b.npz", x=objects)
    with pytest.raises(ArtifactError, match="could not be read"):
        load_arrays(tmp_path / "b.npz")


def test_broken_files_are_said(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", {"x": np.arange(1000)})
    (tmp_path / "half.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:500])
    for name in ("half.npz", "none.npz"):
        with pytest.raises(ArtifactError, match="could not be read"):
            load_arrays(tmp_path / name)
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ArtifactError, match="is missing"):
        read_json(tmp_path / "none.json")


def test_json_keeps_its_letters(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"title": "Amélie 東"})
    assert "Amélie 東" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == read_json(tmp_path / "a.json")


def test_cache_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path))
    assert cache_home() == tmp_path
    monkeypatch.delenv("CAPSID_HOME")
    assert cache_home().parts[-2:] == (".cache", "capsid")
