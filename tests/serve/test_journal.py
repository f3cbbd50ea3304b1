"""Lines are whole and in order, whoever writes them and whatever a crash leaves behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import small_disk

from capsid.errors import ArtifactError
from capsid.serve.journal import NAME, Journal, Position, seal


@given(
    lines=st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)), max_size=8),
    cut=st.integers(0, 40),
)
def test_what_was_acknowledged_is_read_again(tmp_path_factory: pytest.TempPathFactory, lines: list, cut: int) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    for line in lines:
        journal.append(line)
    journal.close()
    # A crash in the middle of one more line.
    with open(folder / NAME, "ab") as file:
        file.write(b'{"version": 99, "operation": "add", "rows": [{"item_id": "x"}]}'[:cut])
    again = Journal(folder)
    again.repair()
    assert list(again.read()) == lines
    assert not again.behind
    again.append({"after": 1})
    again.close()
    last = Journal(folder)
    assert list(last.read()) == [*lines, {"after": 1}]
    last.close()


def test_two_writers_see_each_other(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    one.append({"n": 1})
    assert other.behind
    with other.locked():
        assert list(other.read()) == [{"n": 1}]
        other.append({"n": 2})
    assert not other.behind
    assert one.behind
    assert list(one.read()) == [{"n": 2}]
    assert list(one.read()) == []


def test_a_shorter_file_is_noticed_by_those_who_read_the_old_one(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    for n in range(9):
        one.append({"n": n})
    assert len(list(other.read())) == 9
    with one.locked():
        one.replace({"n": "all"})
    assert list(one.read()) == []
    assert one.size == (tmp_path / NAME).stat().st_size
    assert other.behind, "although the file is shorter than what was read"
    with other.locked():
        assert list(other.read()) == [{"n": "all"}]
        other.append({"n": 10})
    with one.locked():
        assert list(one.read()) == [{"n": 10}]
    assert list(Journal(tmp_path).read()) == [{"n": "all"}, {"n": 10}]
    (tmp_path / NAME).unlink()
    assert not one.behind
    with pytest.raises(ArtifactError, match="is gone"), one.locked():
        pass


def test_writers_do_not_lose_lines_while_the_file_is_replaced(tmp_path: Path) -> None:
    def write(name: str) -> None:
        journal = Journal(tmp_path)
        for number in range(40):
            with journal.locked():
                seen = [tuple(line) for line in journal.read()]
                known.setdefault(name, set()).update(seen)
                journal.append((name, number))  # type: ignore[arg-type]
                known[name].add((name, number))
                if number % 7 == 0:
                    journal.replace(*sorted(known[name]))  # type: ignore[arg-type]

    known: dict[str, set[tuple[str, int]]] = {}
    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [tuple(line) for line in Journal(tmp_path).read()]
    assert sorted(lines) == [(name, number) for name in "abc" for number in range(40)]


def test_half_a_line_of_a_killed_writer_is_overwritten(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append({"n": 1})
    with open(tmp_path / NAME, "ab") as file:
        file.write(b'{"n": 2, "long": "' + b"x" * 100)
    assert list(journal.read()) == []
    journal.append({"n": 3})
    assert list(Journal(tmp_path).read()) == [{"n": 1}, {"n": 3}]


def test_a_full_disk_leaves_nothing_of_the_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append({"n": 1})
    size = (tmp_path / NAME).stat().st_size
    with small_disk(size + 10), pytest.raises(ArtifactError, match="cannot be written"):
        journal.append({"text": "x" * 100})
    assert (tmp_path / NAME).stat().st_size == size
    journal.append({"n": 2})
    assert list(Journal(tmp_path).read()) == [{"n": 1}, {"n": 2}]


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ArtifactError, match="edits cannot be kept"):
        Journal(file)


def test_a_line_that_another_process_is_writing_is_not_repaired(tmp_path: Path) -> None:
    writer, starting = Journal(tmp_path), Journal(tmp_path)
    repair = threading.Thread(target=starting.repair)
    with writer.locked():
        line = seal([{"n": 1}], Position())[0]
        (tmp_path / NAME).write_bytes(line[:9])
        repair.start()
        repair.join(0.3)
        assert repair.is_alive(), "it waits for the writer"
        (tmp_path / NAME).write_bytes(line)
    repair.join(20)
    assert list(Journal(tmp_path).read()) == [{"n": 1}]


def test_a_journal_that_is_gone_is_not_left_locked(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    for path in (tmp_path / NAME, one.mark_path):
        path.rename(tmp_path / f"moved-{path.name}")
    with pytest.raises(ArtifactError, match="is gone"), one.locked():
        pass
    Journal(tmp_path).append({"n": 1})
    read: list[dict[str, int]] = []

    def follow() -> None:
        with other.locked():
            read.extend(other.read())

    waiting = threading.Thread(target=follow, daemon=True)
    waiting.start()
    waiting.join(20)
    assert read == [{"n": 1}]


def test_a_line_at_which_the_reader_fails_is_read_again(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    one.append({"n": 1}, {"n": 2}, {"n": 3})
    for line in other.read():
        if line["n"] == 2:
            break
    assert other.behind
    first = len(seal([{"n": 1}], Position())[0])
    with pytest.raises(ArtifactError, match=f"must be read before others are written, from byte {first}"):
        other.append({"n": 9})
    assert list(other.read()) == [{"n": 2}, {"n": 3}]
    assert not other.behind
