from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from worlds import small_disk

from capsid.base.storage import artifacts
from capsid.base.storage.arrays import save_arrays
from capsid.base.storage.artifacts import (
    cache_home,
    folder_kind,
    new_folder,
    open_folder,
    read_json,
    reserved,
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
    with pytest.raises(ArtifactError, match=r"No space left.*check free disk space"):
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
    with pytest.raises(ArtifactError, match=r"'a\.txt' is listed in the manifest but missing"):
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


def test_broken_json_is_said(tmp_path: Path) -> None:
    for number, data in enumerate((b"\xff\xfe", b"[" * 100_000, b"1" * 5_000, b"")):
        (tmp_path / f"{number}.json").write_bytes(data)
        with pytest.raises(ArtifactError, match="not valid JSON"):
            read_json(tmp_path / f"{number}.json")
    with pytest.raises(ArtifactError, match="is missing"):
        read_json(tmp_path / "none.json")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_json(tmp_path)


def test_json_keeps_its_letters(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"title": "Amélie 東"})
    assert "Amélie 東" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == read_json(tmp_path / "a.json")


def test_cache_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path))
    assert cache_home() == tmp_path
    monkeypatch.delenv("CAPSID_HOME")
    assert cache_home().parts[-2:] == (".cache", "capsid")


# Nothing is overwritten


def test_another_kind_is_never_replaced(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    for replace in (False, True):
        with (
            pytest.raises(ArtifactError, match="holds a thing, not a run"),
            reserved(path, kind="run", replace=replace),
        ):
            pass
    with pytest.raises(ArtifactError, match="holds a thing, not a run"), new_folder(path, kind="run"):
        pass
    assert is_first(path)


def test_the_same_kind_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    with pytest.raises(ArtifactError, match=r"holds a finished thing.*--force"), reserved(path, kind="thing"):
        pass
    assert is_first(path)
    with reserved(path, kind="thing", replace=True):
        make(path, "second")
    assert (path / "a.txt").read_text() == "second"


def test_a_manifest_of_somebody_else_does_not_make_a_folder_ours(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    for text in ('{"name": "My page", "icons": []}', "{", "[]", '{"kind": 3}'):
        (page / "manifest.json").write_text(text)
        with pytest.raises(ArtifactError, match="capsid did not write"):
            make(page)
        assert (page / "manifest.json").read_text() == text


def test_nothing_is_written_into_a_finished_artifact(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    with (
        pytest.raises(ArtifactError, match="which is finished"),
        reserved(path / "below" / "more", kind="thing"),
    ):
        pass
    assert is_first(path)


def test_symlinks_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere" / "out")
    for text in ("first", "second"):
        with reserved(link, kind="thing", replace=True) as place:
            make(place, text)
        assert link.is_symlink()
        assert (tmp_path / "elsewhere" / "out" / "a.txt").read_text() == text
    file = tmp_path / "file.json"
    file.symlink_to(tmp_path / "elsewhere" / "target.json")
    write_json(file, 1)
    assert (file.is_symlink(), read_json(tmp_path / "elsewhere" / "target.json")) == (True, 1)
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["out", "target.json"]


def test_only_regular_files_are_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="not a regular file"):
        write_bytes(tmp_path / "pipe", b"x")
    with pytest.raises(ArtifactError, match="not a regular file"):
        write_bytes(Path("/dev/null"), b"x")
    with pytest.raises(ArtifactError, match="is a folder"):
        write_bytes(tmp_path, b"x")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


# Two writers, and what the dead leave


def test_a_place_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "out"
    said: list[str] = []

    def second() -> None:
        try:
            with reserved(path, kind="thing"):
                said.append("both")
        except ArtifactError as error:
            said.append(str(error))

    with reserved(path, kind="thing"):
        other = threading.Thread(target=second)
        other.start()
        other.join()
        make(path)
    (message,) = said
    assert f"another capsid process is writing to {path} (process {os.getpid()}, for 0 s)" in message
    assert "choose another --out" in message
    assert is_first(path)


def test_a_dotted_path_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with reserved(tmp_path / "a" / ".." / "out", kind="thing"):
        make(tmp_path / "out")
    assert (tmp_path / "out" / "a.txt").read_text() == "first"


KILLED = """
import os, signal, sys
from pathlib import Path
from capsid.base.storage import artifacts
real, calls, stop = os.replace, [], int(sys.argv[2])
def replace(a, b):
    calls.append(a)
    if len(calls) == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    real(a, b)
artifacts.os.replace = replace
with artifacts.new_folder(Path(sys.argv[1]), kind="thing") as folder:
    (folder / "a.txt").write_text("second")
"""


@pytest.mark.parametrize("moment", [1, 2, 3])
@pytest.mark.parametrize("then", ["open", "reserve", "write"])
def test_killed_between_any_two_renames(tmp_path: Path, moment: int, then: str) -> None:
    """Rename 1 completes the manifest, 2 moves the old folder away, 3 puts the new one in its place."""
    path = make(tmp_path / "out")
    process = subprocess.run([sys.executable, "-c", KILLED, path, str(moment)])
    assert process.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) > 1, "the killed process left something"
    assert path.exists() == (moment < 3)
    if then == "open":
        assert (open_folder(path, kind="thing") / "a.txt").read_text() == "first"
    if then == "reserve":
        with reserved(path, kind="thing", replace=True):
            assert sorted(os.listdir(tmp_path)) == [".out.lock", "out"]
        assert is_first(path)
    if then == "write":
        make(path)
        assert is_first(path)


def test_what_others_are_writing_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with new_folder(path, kind="thing") as folder:
        (folder / "a.txt").write_text("slow")
        make(path)
        assert folder.exists()
    assert (open_folder(path, kind="thing") / "a.txt").read_text() == "slow"
    # Leftovers of a neighbour whose name begins alike are the neighbour's.
    (tmp_path / ".out.2.abcdefgh.partial").mkdir()
    (tmp_path / ".out.2.abcdefgh.old").mkdir()
    make(path)
    assert sorted(os.listdir(tmp_path)) == [".out.2.abcdefgh.old", ".out.2.abcdefgh.partial", "out"]


def test_what_a_killed_write_left_is_used_again(tmp_path: Path) -> None:
    (tmp_path / ".a.json.partial").write_text("half of something longer than what comes now")
    write_json(tmp_path / "a.json", 1)
    assert (read_json(tmp_path / "a.json"), os.listdir(tmp_path)) == (1, ["a.json"])


def test_a_file_is_on_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    sync, rename = os.fsync, os.replace
    size = lambda handle: os.fstat(handle).st_size  # noqa: E731
    monkeypatch.setattr(artifacts.os, "fsync", lambda h: (done.append(("fsync", size(h))), sync(h)))
    monkeypatch.setattr(artifacts.os, "replace", lambda a, b: (done.append(("rename", 0)), rename(a, b)))
    write_bytes(tmp_path / "a", b"12345")
    assert done[:2] == [("fsync", 5), ("rename", 0)]


# Nothing is trusted


@pytest.mark.parametrize(
    "name", ["../out2/a.txt", "/etc/passwd", "", ".", "a.txt/", "./a.txt", "a//b", "manifest.json"]
)
def test_a_manifest_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "out")
    manifest = read_json(path / "manifest.json")
    manifest["files"][name] = "0" * 64
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="which is not a file in it"):
        open_folder(path, kind="thing")


@pytest.mark.parametrize("expected", [None, 3, "", "0" * 63, ["0" * 64], "A" * 64])
def test_a_manifest_has_a_hash_for_every_file(tmp_path: Path, expected: object) -> None:
    path = make(tmp_path / "out")
    manifest = read_json(path / "manifest.json")
    manifest["files"]["a.txt"] = expected
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"no SHA-256 for 'a\.txt'"):
        open_folder(path, kind="thing")


def test_a_file_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    (path / "below" / "more.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"below/more\.json is not listed in the manifest"):
        open_folder(path, kind="thing")


@pytest.mark.parametrize("make_special", [os.mkfifo, lambda p: os.symlink("/etc/hostname", p)])
@pytest.mark.parametrize("name", ["extra", "a.txt", "below/b.npz"])
def test_special_files_are_refused(tmp_path: Path, make_special: Callable[[Path], None], name: str) -> None:
    path = make(tmp_path / "out")
    (path / name).unlink(missing_ok=True)
    make_special(path / name)
    with pytest.raises(ArtifactError, match="is not a regular file"):
        open_folder(path, kind="thing")


def test_an_artifact_inside_an_artifact_stands_for_itself(tmp_path: Path) -> None:
    path = make(tmp_path / "out")
    inner = make(path / "inner")
    open_folder(path, kind="thing")
    (inner / "a.txt").write_text("changed")
    open_folder(path, kind="thing")
    with pytest.raises(ArtifactError, match="was changed"):
        open_folder(inner, kind="thing")
