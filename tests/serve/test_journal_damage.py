"""What somebody else does to the files of a journal is noticed: at the next start, and before anything is added.

Names of cases follow the recovery tests of LevelDB and of etcd's write-ahead log.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import small_disk

from capsid.base.storage.artifacts import write_bytes
from capsid.serve.errors import refused
from capsid.serve.journal import NAME, DiskFull, Journal, JournalDamaged, Mark

EDITS = [{"version": n, "operation": "retire", "items": [f"item {n}", "é"]} for n in range(2, 6)]
MARK = f"{NAME}.mark"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal of four edits, as a service left it."""
    journal = Journal(tmp_path / "state")
    for edit in EDITS:
        journal.append(edit)
    journal.close()
    return tmp_path / "state"


def started(folder: Path, *, recover: bool = False) -> tuple[list[object], list[str]]:
    """What a start reads, and what it says."""
    journal = Journal(folder)
    try:
        told = journal.repair(recover=recover)
        return list(journal.read()), told
    finally:
        journal.close()


def damaged(folder: Path, text: str = "journal") -> None:
    with pytest.raises(JournalDamaged, match=text) as caught:
        started(folder)
    assert caught.value.hint is not None
    assert "--recover" in caught.value.hint


def recovered(folder: Path, kept: int, lost: int) -> None:
    """`--recover` keeps the edits before the damage, says how many are lost, and the journal can be used again."""
    before = (folder / NAME).read_bytes()
    read, told = started(folder, recover=True)
    assert read == EDITS[:kept]
    assert [f"{lost} edits were lost, {kept} are kept" in line for line in told] == [True]
    assert (folder / f"{NAME}.broken").read_bytes() == before
    appended(folder, EDITS[:kept])


def appended(folder: Path, before: list[dict[str, object]]) -> None:
    """Append after repair, and read all back."""
    journal = Journal(folder)
    assert list(journal.read()) == before
    journal.append({"new": 1})
    journal.close()
    assert started(folder) == ([*before, {"new": 1}], [])


def lines(folder: Path) -> list[bytes]:
    return (folder / NAME).read_bytes().splitlines(keepends=True)


def test_truncated_trailing_record(folder: Path) -> None:
    """A line that was never acknowledged is dropped, after a copy."""
    whole = (folder / NAME).read_bytes()
    with open(folder / NAME, "ab") as file:
        file.write(whole[:25])
    read, told = started(folder)
    assert read == EDITS
    assert ["was not finished, nor acknowledged" in line for line in told] == [True]
    assert (folder / f"{NAME}.broken").read_bytes() == whole + whole[:25]
    appended(folder, EDITS)


def test_every_length_of_cut(folder: Path, tmp_path: Path) -> None:
    """All four edits were acknowledged, so no cut is repaired in silence, at a boundary least of all."""
    whole = (folder / NAME).read_bytes()
    for size in range(len(whole)):
        (folder / NAME).write_bytes(whole[:size])
        damaged(folder)


def test_missing_last(folder: Path) -> None:
    kept = lines(folder)[:2]
    (folder / NAME).write_bytes(b"".join(kept))
    damaged(folder, "misses its last 2 acknowledged edits")
    recovered(folder, kept=2, lost=2)


def test_every_single_bit(folder: Path) -> None:
    """No flipped bit, in the journal or the mark, gives another state: the start is refused."""
    for name in (NAME, MARK):
        whole = (folder / name).read_bytes()
        for place in range(len(whole)):
            for bit in range(8):
                changed = bytearray(whole)
                changed[place] ^= 1 << bit
                (folder / name).write_bytes(changed)
                damaged(folder)
        (folder / name).write_bytes(whole)
    assert started(folder) == (EDITS, [])


def test_checksum_mismatch(folder: Path) -> None:
    own = lines(folder)
    own[1] = own[1].replace(b"item 3", b"item 9")
    (folder / NAME).write_bytes(b"".join(own))
    damaged(folder, "line 2 does not have the checksum it needs")
    recovered(folder, kept=1, lost=3)


def test_bad_length_at_the_end(folder: Path) -> None:
    with open(folder / NAME, "ab") as file:
        file.write(b"\0" * 40 + b"\n")
    damaged(folder, "line 5")
    recovered(folder, kept=4, lost=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: [own[0][:-1] + own[1], *own[2:]],
        lambda own: [own[0], own[0], *own[1:]],
        lambda own: [own[1], own[0], *own[2:]],
        lambda own: [own[0], *own[2:]],
        lambda own: [own[0], b"\n", *own[1:]],
    ],
    ids=["joined records", "repeated", "swapped records", "missing in the middle", "blank line"],
)
def test_records_that_do_not_follow_each_other(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    (folder / NAME).write_bytes(b"".join(change(lines(folder))))
    damaged(folder, "checksum")


def test_another_journal_in_its_place(folder: Path, tmp_path: Path) -> None:
    other = Journal(tmp_path / "other")
    for number in range(9):
        other.append({"version": number})
    other.close()
    shutil.copyfile(tmp_path / "other" / NAME, folder / NAME)
    damaged(folder, "misses acknowledged edits, or others stand in their place")


@pytest.mark.parametrize("name", [NAME, MARK])
def test_deleted(folder: Path, name: str) -> None:
    (folder / name).unlink()
    damaged(folder, "acknowledged")


def test_a_backup_of_both_files_is_a_journal(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "backup")
    appended(folder, EDITS)
    assert started(tmp_path / "backup") == (EDITS, [])


def test_a_journal_with_a_second_name_is_used(folder: Path, tmp_path: Path) -> None:
    os.link(folder / NAME, tmp_path / "linked")
    appended(folder, EDITS)


@pytest.mark.parametrize("after", ["line", "mark"])
def test_killed_between_the_line_and_the_mark(folder: Path, after: str) -> None:
    """The line is on disk, so it may be read; the mark is behind, and follows."""
    before = (folder / MARK).read_bytes()
    journal = Journal(folder)
    assert list(journal.read()) == EDITS
    other = Journal(folder)
    assert list(other.read()) == EDITS
    journal.append({"new": 1})
    if after == "line":
        (folder / MARK).write_bytes(before)
    assert list(other.read()) == [{"new": 1}]
    other.append({"new": 2})
    assert started(folder) == ([*EDITS, {"new": 1}, {"new": 2}], [])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_the_journal_is_replaced(folder: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Exception):
        pass

    def dies(path: Path, data: bytes) -> None:
        if path.suffix == ".mark":
            write_bytes(path, data)
            return
        if moment == "after":
            path.write_bytes(data)
        raise Killed

    journal = Journal(folder)
    assert list(journal.read()) == EDITS
    monkeypatch.setattr("capsid.serve.journal.write_bytes", dies)
    with pytest.raises(Killed):
        journal.replace({"all": 4})
    monkeypatch.undo()
    left = EDITS if moment == "before" else [{"all": 4}]
    assert started(folder) == (left, [])
    appended(folder, left)


def cut(folder: Path) -> None:
    os.truncate(folder / NAME, 0)


def cut_at_a_boundary(folder: Path) -> None:
    os.truncate(folder / NAME, len(b"".join(lines(folder)[:3])))


def removed(folder: Path) -> None:
    (folder / NAME).unlink()


def overwritten(folder: Path) -> None:
    """In place, with as many bytes."""
    with open(folder / NAME, "r+b") as file:
        file.write(b"\0" * (folder / NAME).stat().st_size)


def swapped(folder: Path) -> None:
    """By a shorter file of somebody else, or an old backup."""
    (folder / "old").write_bytes(b"".join(lines(folder)[:2]))
    os.replace(folder / "old", folder / NAME)


def unmarked(folder: Path) -> None:
    (folder / MARK).unlink()


def cut_beside_another_writer(folder: Path) -> None:
    """Another process has acknowledged an edit that this one has not read, and it is cut off."""
    size = (folder / NAME).stat().st_size
    other = Journal(folder)
    list(other.read())
    other.append({"new": 0})
    os.truncate(folder / NAME, size)


def edited(journal: Journal) -> None:
    """What a service does with an edit."""
    with journal.locked():
        list(journal.read())
        journal.append({"new": 1})


@pytest.mark.parametrize(
    "change", [cut, cut_at_a_boundary, removed, overwritten, swapped, unmarked, cut_beside_another_writer]
)
def test_nothing_is_added_to_a_journal_that_was_changed_in_use(folder: Path, change: Callable[[Path], None]) -> None:
    journal = Journal(folder)
    assert list(journal.read()) == EDITS
    change(folder)
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(JournalDamaged) as caught:
        edited(journal)
    answer = refused(caught.value)
    assert (answer.status, answer.code) == (503, "journal")
    assert answer.hint is not None
    assert "stop the service" in answer.hint or "--recover" in answer.hint
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == left, "nothing was written"


def test_a_full_disk_is_told_as_such(folder: Path) -> None:
    journal = Journal(folder)
    list(journal.read())
    size = (folder / NAME).stat().st_size
    with small_disk(size + 10), pytest.raises(DiskFull) as caught:
        journal.append({"text": "x" * 100})
    assert refused(caught.value).status == 507
    journal.append({"new": 1})
    assert started(folder) == ([*EDITS, {"new": 1}], [])


def test_a_journal_of_release_0_1_gets_checksums(tmp_path: Path) -> None:
    text = "".join(f"{json.dumps(edit)}\n" for edit in EDITS)
    (tmp_path / NAME).write_text(text + '{"version": 6, "opera')
    assert started(tmp_path) == (EDITS, [])
    mark = Mark.read(tmp_path / MARK)
    assert mark is not None
    assert mark.at.lines == 4
    appended(tmp_path, EDITS)
    (tmp_path / NAME).write_text(text)
    damaged(tmp_path)


def test_recovery_of_a_sound_journal_changes_nothing(folder: Path) -> None:
    before = (folder / NAME).read_bytes()
    assert started(folder, recover=True) == (EDITS, [])
    assert (folder / NAME).read_bytes() == before
    (folder / MARK).write_text("nonsense")
    damaged(folder, "mark is damaged")
    assert started(folder, recover=True) == (EDITS, [])
    assert started(folder) == (EDITS, [])
