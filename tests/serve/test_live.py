"""Edits make versions; a version never changes; a restart or another process arrives at the same one."""

from __future__ import annotations

import dataclasses
import os
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_recipes import small, world

from capsid.answering import Query
from capsid.errors import ArtifactError, DataError
from capsid.recommender import Recommender
from capsid.serve.errors import Refused
from capsid.serve.journal import NAME, Journal, JournalDamaged
from capsid.serve.live import KEPT, LARGE, LiveCatalogue
from capsid.serve.reports import Reports
from capsid.serve.snapshot import Edit, Snapshot, item_frame

ITEMS = list(world().items)
ASKED = [Query(tuple(ITEMS[:3]), 20), Query((), 20), Query((ITEMS[40],), 72, filter_history=False)]


@cache
def fitted() -> Recommender:
    return Recommender(small("rq-kmeans")).fit(world())


def loaded() -> Recommender:
    other = Recommender(fitted().recipe)
    other.fitted_, other.catalogue_ = fitted().fitted, fitted().catalogue_
    return other


def live_in(folder: Path, *, large: int = LARGE) -> LiveCatalogue:
    return LiveCatalogue(loaded, Journal(folder), large=large)


def row(name: str, like: int = 5) -> dict[str, Any]:
    old = world().attributes
    return {"item_id": name, "title": old["title"][like], "categories": old["categories"][like].to_list()}


def add(*names: str) -> Edit:
    return Edit("add", rows=tuple(row(name, 7 * int(name[1:])) for name in names))


def answers(snapshot: Snapshot) -> list[Any]:
    return snapshot.answerer.answer(ASKED)


def test_an_edit_is_there_at_once_and_old_versions_stay(tmp_path: Path) -> None:
    live = live_in(tmp_path)
    first = live.current
    before = answers(first)
    second = live.edit(add("n0", "n1"))
    assert live.current is second
    assert (first.version, second.version) == (1, 2)
    found = second.answerer.answer([Query(tuple(ITEMS[:3]), 2, allow=("n0", "n1"))])[0]
    assert set(found.items) == {"n0", "n1"}
    third = live.edit(Edit("retire", items=("n0", ITEMS[3])))
    assert not {"n0", ITEMS[3]} & {i for a in answers(third) for i in a.items}
    assert answers(first) == before, "a search that began before ends with what it saw"
    assert "n0" not in first.recommender.catalogue_.items
    fourth = live.edit(Edit("restore", items=("n0",)))
    assert "n0" in {i for a in fourth.answerer.answer([Query((), 74)]) for i in a.items}


EDITS = st.lists(
    st.one_of(
        st.lists(st.sampled_from([f"n{i}" for i in range(9)]), min_size=1, max_size=3, unique=True).map(
            lambda names: add(*names)
        ),
        st.sets(st.sampled_from([*ITEMS[:6], "n0", "n1"]), min_size=1, max_size=3).map(
            lambda s: Edit("retire", items=tuple(sorted(s)))
        ),
        st.sets(st.sampled_from([*ITEMS[:6], "n0"]), min_size=1).map(lambda s: Edit("restore", items=tuple(sorted(s)))),
        st.integers(1, 9).map(lambda v: Edit("rollback", to=v)),
        st.just(Edit("reload")),
    ),
    max_size=9,
)


@settings(max_examples=30)
@given(edits=EDITS, late=st.integers(0, 9), large=st.sampled_from([1, 200, LARGE]))
def test_a_restart_and_a_follower_arrive_at_the_same(
    tmp_path_factory: pytest.TempPathFactory, edits: list[Edit], late: int, large: int
) -> None:
    """Also where the journal is shortened after a few edits."""
    folder = tmp_path_factory.mktemp("live")
    live, follower = live_in(folder, large=large), live_in(folder, large=large)
    made = 0
    for number, edit in enumerate(edits):
        before = live.current
        try:
            live.edit(edit)
            made += 1
        except Refused:
            assert live.current is before
        if number == late:
            follower.catch_up()
    assert live.current.version == 1 + made
    wanted = answers(live.current)
    for other in (live_in(folder, large=large), follower):
        now = other.catch_up()
        assert (now.version, other.versions) == (live.current.version, live.versions)
        assert now.state == live.current.state
        assert answers(now) == wanted


@settings(max_examples=20)
@given(edits=EDITS)
# The trial search of the group misses the added item, so they are made one by one.
@example(edits=[add("n0"), Edit("retire", items=("n0",)), Edit("retire", items=(ITEMS[0],))])
def test_edits_made_together_are_as_one_by_one(tmp_path_factory: pytest.TempPathFactory, edits: list[Edit]) -> None:
    alone, together = live_in(tmp_path_factory.mktemp("alone")), live_in(tmp_path_factory.mktemp("together"))
    wanted: list[Any] = []
    for edit in edits:
        try:
            wanted.append(alone.edit(edit).version)
        except Refused as refusal:
            wanted.append(refusal.message)
    results = together.edit_all([lambda _, edit=edit: edit for edit in edits])
    assert [r.message if isinstance(r, Refused) else r[1].version for r in results] == wanted
    assert (together.current.version, together.versions) == (alone.current.version, alone.versions)
    assert together.current.state == alone.current.state
    assert answers(together.current) == answers(alone.current)


def test_a_group_is_tried_and_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, tried, written = live_in(tmp_path), [], []
    check, append = Snapshot.check, Journal.append
    monkeypatch.setattr(Snapshot, "check", lambda self, added: (tried.append(self.version), check(self, added)))
    monkeypatch.setattr(Journal, "append", lambda self, *lines: (written.append(len(lines)), append(self, *lines)))
    retired = [Edit("retire", items=(item,)) for item in ITEMS[:4]]
    live.edit_all([lambda _, edit=edit: edit for edit in retired])
    assert (tried, written) == ([5], [4])
    titles = live.current.recommender.catalogue_.titles
    assert live.edit(retired[0]).recommender.catalogue_.titles is titles, "not made again for every version"


def test_what_depends_on_items_alone_is_not_made_again_for_every_version(tmp_path: Path) -> None:
    live = live_in(tmp_path)
    first, reports = live.current, Reports(SimpleNamespace())  # type: ignore[arg-type]
    report, lowered, prefixes = reports.quality(first), first.lowered, first.prefixes
    retired = live.edit(Edit("retire", items=(ITEMS[0],)))
    assert retired.lowered is lowered
    assert retired.prefixes is prefixes
    assert reports.quality(retired) is report
    grown = live.edit(add("n0"))
    assert reports.quality(grown)["items"] == report["items"] + 1
    assert len(grown.lowered) == len(grown.tokenizer.titles) == len(grown.prefixes.trie) == len(ITEMS) + 1


def test_both_may_write(tmp_path: Path) -> None:
    one, other = live_in(tmp_path), live_in(tmp_path)
    one.edit(add("n0"))
    assert other.edit(Edit("retire", items=("n0",))).version == 3, "it saw the item that the other added"
    assert one.edit(add("n1")).version == 4
    assert one.current.is_retired("n0")
    with pytest.raises(Refused, match="in the catalogue already"):
        other.edit(add("n1"))
    assert other.current.version == 4


def test_going_back(tmp_path: Path) -> None:
    live = live_in(tmp_path)
    for name in ("n0", "n1", "n2", "n3", "n4"):
        live.edit(add(name))
    assert live.versions == [3, 4, 5][-KEPT:]
    back = live.edit(Edit("rollback", to=4))
    assert back.version == 7
    items = back.recommender.catalogue_.items
    assert "n2" in items
    assert "n3" not in items
    with pytest.raises(Refused, match="version 2 is not stored") as refusal:
        live.edit(Edit("rollback", to=2))
    assert refusal.value.hint == "stored versions: 4, 5, 6"
    live.edit(add("n3"))
    again = live_in(tmp_path)
    assert answers(again.current) == answers(live.current)
    assert again.versions == live.versions
    assert answers(again.edit(Edit("rollback", to=7))) == answers(back)


def test_a_broken_version_is_never_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = live_in(tmp_path)
    before = live.current
    broken = Recommender.add_items

    def lose(self: Recommender, frame: Any) -> list[str]:
        trie = self.fitted.model.trie
        names = broken(self, frame)
        object.__setattr__(self.fitted, "tries", (trie,))  # ids that the trie does not have
        self.fitted.__dict__.pop("model", None)
        return names

    monkeypatch.setattr(Recommender, "add_items", lose)
    with pytest.raises(Refused, match="trial search"):
        live.edit(add("n0"))
    assert live.current is before
    assert live_in(tmp_path).current.version == 1, "nothing was written"


def test_what_cannot_be_edited(tmp_path: Path) -> None:
    live = live_in(tmp_path)
    with pytest.raises(Refused, match="there is no item 'nobody'"):
        live.edit(Edit("retire", items=(ITEMS[0], "nobody")))
    assert not live.current.is_retired(ITEMS[0])
    with pytest.raises(DataError, match="no attribute 'titel'"):
        live.edit(Edit("add", rows=({"item_id": "n0", "titel": "x"},)))
    with pytest.raises(DataError, match="attribute 'title' must be of type String"):
        live.edit(Edit("add", rows=({"item_id": "n0", "title": 7},)))
    assert live.current.version == 1
    assert item_frame([{"item_id": "a"}], world().attributes).row(0) == ("a", None, None)


WRONG = [
    {"operation": "add", "rows": [{"item_id": "n"}]},
    {"version": 2},
    {"version": "x", "operation": "retire", "items": ["i"]},
    {"version": True, "operation": "retire", "items": ["i"]},
    {"version": 2, "operation": "forget", "items": ["i"]},
    {"version": 2, "operation": "retire", "items": "318"},
    {"version": 2, "operation": "retire", "items": [318]},
    {"version": 2, "operation": "retire"},
    {"version": 2, "operation": "retire", "items": ["i"], "rows": []},
    {"version": 2, "operation": "retire", "items": ["i"], "note": "more"},
    {"version": 2, "operation": "add", "rows": {"item_id": "n"}},
    {"version": 2, "operation": "add", "rows": [{"title": "n"}]},
    {"version": 2, "operation": "rollback", "to": "1"},
    {"version": 2, "operation": "reload", "mark": 7},
    {"version": 2, "operation": "state", "rows": []},
    {"version": 2, "operation": "state", "kept": 3, "rows": [], "retired": [], "restored": [], "reloaded": 0},
    {"version": 2, "operation": "state", "kept": 0, "rows": [], "retired": "318", "restored": [], "reloaded": 0},
    ["version", 2],
]


@pytest.mark.parametrize("line", WRONG, ids=str)
def test_lines_that_are_no_edits_are_refused(line: Any, tmp_path: Path) -> None:
    """Their checksums are right: some other program wrote them."""
    journal = Journal(tmp_path)
    journal.append(line)
    journal.close()
    with pytest.raises(ArtifactError, match="the journal holds a line"):
        live_in(tmp_path)


def test_a_journal_that_goes_back_too_far(tmp_path: Path) -> None:
    Journal(tmp_path).append({"version": 2, "operation": "rollback", "to": 7})
    with pytest.raises(ArtifactError, match="goes back to version 7, which it does not hold"):
        live_in(tmp_path)


def test_an_edit_is_refused_where_the_journal_was_cut_and_searches_go_on(tmp_path: Path) -> None:
    live = live_in(tmp_path)
    live.edit(add("n0"))
    os.truncate(tmp_path / NAME, 0)
    with pytest.raises(JournalDamaged, match="was cut to 0 bytes while it was in use"):
        live.edit(add("n1"))
    assert live.catch_up().version == 2
    assert (tmp_path / NAME).stat().st_size == 0, "nothing was written into it"


def test_a_journal_does_not_grow_without_bound(tmp_path: Path) -> None:
    live, follower = live_in(tmp_path, large=2_000), live_in(tmp_path, large=2_000)
    live.edit(add("n0"))
    sizes = []
    for number in range(200):
        live.edit(Edit(("retire", "restore")[number % 2], items=(ITEMS[0],)))
        sizes.append((tmp_path / NAME).stat().st_size)
    assert max(sizes) < 3_000
    assert sum(after < before for before, after in pairwise(sizes)) >= 3, "it was shortened again and again"
    again = live_in(tmp_path)
    assert again.current.state == follower.catch_up().state == live.current.state
    assert again.versions == follower.versions == live.versions == [199, 200, 201]
    assert "n0" in again.edit(Edit("rollback", to=200)).recommender.catalogue_.items
    assert follower.edit(Edit("retire", items=("n0",))).version == 204


def test_a_reload_hidden_in_a_shortened_journal_is_made_up_for(tmp_path: Path) -> None:
    loads = []

    def load() -> Recommender:
        loads.append(1)
        return loaded()

    live, follower = live_in(tmp_path, large=1), LiveCatalogue(load, Journal(tmp_path))
    live.edit(Edit("reload"))
    live.edit(add("n0"))
    follower.catch_up()
    assert len(loads) == 2
    live.edit(add("n1"))
    follower.catch_up()
    assert len(loads) == 2, "not for every version"


def test_a_full_disk_leaves_the_long_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = live_in(tmp_path, large=400)
    (tmp_path / f".{NAME}.partial").mkdir()  # where the short one is written first
    for item in ITEMS[:9]:
        live.edit(Edit("retire", items=(item,)))
    assert "the journal stays long" in caplog.text
    assert live_in(tmp_path).current.state == live.current.state


def test_an_item_that_the_run_retired_can_be_restored_for_good(tmp_path: Path) -> None:
    def load() -> Recommender:
        one = loaded()
        one.retire(ITEMS[:2])
        return one

    live = LiveCatalogue(load, Journal(tmp_path))
    assert live.current.is_retired(ITEMS[0])
    live.edit(Edit("restore", items=(ITEMS[0],)))
    for again in (live, LiveCatalogue(load, Journal(tmp_path))):
        assert not again.current.is_retired(ITEMS[0])
        assert again.current.is_retired(ITEMS[1])
        assert not again.edit(Edit("reload")).is_retired(ITEMS[0])


class Folder:
    """A run's folder that may be unreadable, hold other items, or take long to load."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.added: tuple[str, ...] = ()
        self.retired: tuple[str, ...] = ()
        self.loading = threading.Event()
        self.readable = threading.Event()
        self.readable.set()

    def load(self) -> Recommender:
        self.loading.set()
        assert self.readable.wait(20)
        if self.problem is not None:
            raise self.problem
        one = loaded()
        if self.added:
            one.add_items(item_frame([row(name) for name in self.added], world().attributes))
        one.retire(self.retired)
        return one

    def live_in(self, state: Path, **wishes: Any) -> LiveCatalogue:
        return LiveCatalogue(self.load, Journal(state), retry=0.0, **wishes)


def retire(*items: str) -> Edit:
    return Edit("retire", items=items)


@pytest.mark.parametrize("large", [1, LARGE], ids=["shortened", "long"])
def test_an_edit_that_a_follower_cannot_make_yet_is_not_lost(tmp_path: Path, large: int) -> None:
    folder = Folder()
    live, follower = live_in(tmp_path, large=large), folder.live_in(tmp_path)
    for edit in (add("n0"), Edit("reload"), retire("n0", ITEMS[0])):
        live.edit(edit)
    folder.problem = OSError("the folder is being replaced")
    for _ in range(2):
        with pytest.raises(Refused, match="cannot be made here: the folder is being replaced") as refusal:
            follower.catch_up()
        assert (refusal.value.status, refusal.value.code, follower.stuck) == (503, "behind", True)
        with pytest.raises(Refused, match="cannot be made here"):
            follower.edit(retire(ITEMS[1]))
    folder.problem = None
    assert follower.catch_up().state == live.current.state
    assert not follower.stuck
    assert follower.edit(retire(ITEMS[1])).version == 5
    assert live.catch_up().state == live_in(tmp_path).current.state == follower.current.state
    assert live.versions == follower.versions


def test_a_failed_edit_of_another_is_not_tried_again_at_once(tmp_path: Path) -> None:
    folder = Folder()
    live, follower = live_in(tmp_path), LiveCatalogue(folder.load, Journal(tmp_path), retry=60.0)
    live.edit(Edit("reload"))
    folder.problem = OSError("gone")
    for wanted in (True, False):
        folder.loading.clear()
        with pytest.raises(Refused, match="version 2, which another process has made, cannot be made here: gone"):
            follower.catch_up()
        assert folder.loading.is_set() is wanted


def test_processes_that_read_different_runs_arrive_at_the_same_state(tmp_path: Path) -> None:
    """The folder was replaced, and one process was started again since."""
    folder = Folder()
    folder.added = ("n0",)
    old, new = live_in(tmp_path), folder.live_in(tmp_path)
    new.edit(retire("n0"))
    assert old.catch_up().version == 2, "it does not know the item"
    old.edit(add("n0", "n1"))
    old.edit(retire(ITEMS[0]))
    for other in (new, folder.live_in(tmp_path), live_in(tmp_path)):
        now = other.catch_up()
        assert (now.version, now.state) == (4, old.current.state)
        assert {"n0", "n1"} <= set(now.recommender.catalogue_.items)
        assert now.is_retired(ITEMS[0])
        assert not now.is_retired("n0")


def refitted() -> Recommender:
    """A run on newer data, whose items have a year and a numbered title."""
    one = loaded()
    catalogue = one.catalogue_
    columns = [pl.lit(None, pl.Int64).alias("year"), pl.lit(1, pl.Int64).alias("title")]
    one.catalogue_ = dataclasses.replace(catalogue, attributes=catalogue.attributes.with_columns(columns))
    return one


@pytest.mark.parametrize("large", [1, LARGE], ids=["shortened", "long"])
def test_attributes_that_only_a_newer_run_has_do_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, large: int
) -> None:
    """The folder was replaced, and one process was started again since."""
    latest = loaded
    old = LiveCatalogue(lambda: latest(), Journal(tmp_path))
    new = LiveCatalogue(refitted, Journal(tmp_path), large=large)
    new.edit(Edit("add", rows=({**row("n0"), "title": 7, "year": 1999},)))
    now = old.catch_up()
    assert (now.version, now.state) == (2, new.current.state)
    about = now.recommender.catalogue_.attributes.row(-1, named=True)
    assert about == {"title": None, "categories": row("n0")["categories"]}
    assert "attributes of added items that do not fit this run are left out: title, year" in caplog.text
    for mistake in ({"year": 1999}, {"title": 7}):
        with pytest.raises(DataError, match="attribute"):
            old.edit(Edit("add", rows=({**row("n1"), **mistake},)))
    again = live_in(tmp_path)
    assert answers(again.current) == answers(now), "a start with the older run arrives at the same"
    latest = refitted
    reloaded = old.edit(Edit("reload"))
    assert reloaded.recommender.catalogue_.attributes.row(-1, named=True)["year"] == 1999, "it was kept"


@pytest.mark.parametrize("versions", [[3], [2, 2], [2, 4], [2, 3, 2]])
def test_versions_of_a_journal_are_consecutive(tmp_path: Path, versions: list[int]) -> None:
    live = live_in(tmp_path)
    journal = Journal(tmp_path)
    journal.append(*(retire(item).to_line(version) for item, version in zip(ITEMS, versions)))
    rule = "versions in the journal must be consecutive: expected"
    with pytest.raises(ArtifactError, match=rule):
        live_in(tmp_path)
    with pytest.raises(Refused, match=rule):
        live.catch_up()


def test_an_edit_waits_for_what_another_thread_has_followed(tmp_path: Path) -> None:
    live, other = live_in(tmp_path), live_in(tmp_path)

    def follow_meanwhile(check: Any) -> None:
        if other.current.version == 1:
            other.edit(retire(ITEMS[0]))
            live.catch_up()  # the thread that searches
        check()

    ((_, after),) = live.edit_all([lambda _: retire(ITEMS[1])], follow_meanwhile)  # type: ignore[misc]
    assert after.version == 3
    assert other.catch_up().state.retired == set(ITEMS[:2])
    assert len({live.current.state, other.current.state}) == 1, "states are values"


def test_a_reload_that_is_not_made_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder()
    live = folder.live_in(tmp_path)
    live.edit(retire(ITEMS[0]))
    folder.retired = (ITEMS[5],)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full_disk)
        with pytest.raises(ArtifactError, match="the disk is full"):
            live.edit(Edit("reload"))
    assert not live.edit(Edit("rollback", to=1)).is_retired(ITEMS[5])
    live.edit(Edit("reload"))
    assert live.edit(Edit("rollback", to=3)).is_retired(ITEMS[5]), "a rollback keeps the model that was reloaded"


def full_disk(journal: Journal, *lines: Any) -> None:
    raise ArtifactError("the disk is full")


def test_edits_that_were_made_are_told_when_a_later_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, append = live_in(tmp_path), Journal.append
    check = Snapshot.check
    # Together they fail, so they are made one by one.
    monkeypatch.setattr(Snapshot, "check", lambda self, added: check(self, ["nobody"] if self.version > 3 else added))
    monkeypatch.setattr(
        Journal, "append", lambda self, *lines: append(self, *lines) if lines[0]["version"] == 2 else full_disk(self)
    )
    results = live.edit_all([lambda _, item=item: retire(item) for item in ITEMS[:3]])
    assert [getattr(one, "message", "made") for one in results] == ["made", "the disk is full", "the disk is full"]
    assert live_in(tmp_path).current.state.retired == {ITEMS[0]}


def test_a_follower_that_loads_does_not_hold_up_the_edits_of_others(tmp_path: Path) -> None:
    folder = Folder()
    live, follower = live_in(tmp_path), folder.live_in(tmp_path)
    live.edit(Edit("reload"))
    folder.loading.clear()
    folder.readable.clear()
    following = threading.Thread(target=follower.catch_up)
    following.start()
    assert folder.loading.wait(20)
    editing = threading.Thread(target=live.edit, args=(retire(ITEMS[0]),))
    editing.start()
    editing.join(10)
    assert not editing.is_alive(), "the lock of the journal is free"
    folder.readable.set()
    following.join(20)
    assert follower.catch_up().version == 3
