"""What one process announces, others have built when it is acknowledged; what does not happen leaves no trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import PATIENCE, Served
from test_edits import new
from test_live import EDITS, ITEMS, Folder, add, answers, loaded, retire

from capsid.recommender import Recommender
from capsid.serve.errors import Refused
from capsid.serve.journal import Journal
from capsid.serve.live import LiveCatalogue
from capsid.serve.replay import COMING, Ahead
from capsid.serve.snapshot import Edit, Snapshot


def live_in(state: Path, load: Callable[[], Recommender] = loaded) -> LiveCatalogue:
    return LiveCatalogue(load, Journal(state), Ahead(Journal(state, COMING)), retry=0.0)


def meanwhile(live: LiveCatalogue, edit: Edit, act: Callable[[], object]) -> Snapshot:
    """Make an edit; act when it is built, before it is written."""
    (made,) = live.edit_all([lambda _: edit], lambda check: (act(), check())[1])  # type: ignore[func-returns-value]
    if isinstance(made, Exception):
        raise made
    return made[1]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that were built by adding items."""
    built: list[int] = []
    then = Snapshot.then
    monkeypatch.setattr(Snapshot, "then", lambda self, edit: (built.append(self.version + 1), then(self, edit))[1])
    return built


def test_an_announced_edit_is_built_before_it_is_made(tmp_path: Path, builds: list[int]) -> None:
    live, follower = live_in(tmp_path), live_in(tmp_path)
    meanwhile(live, add("n0", "n1"), follower.keep_up)
    assert follower.current.version == 1, "the edit does not count before it is written"
    assert builds == [2, 2], "by both"
    now = follower.catch_up()
    assert (now.version, now.state) == (2, live.current.state)
    assert answers(now) == answers(live.current)
    assert builds == [2, 2], "not once more"
    live.edit(retire(ITEMS[0]))
    assert not follower.announced, "it is quick to build"
    follower.keep_up()
    assert follower.current.version == 3


def test_edits_that_are_made_together_are_prepared_together(tmp_path: Path, builds: list[int]) -> None:
    live, follower = live_in(tmp_path), live_in(tmp_path)
    edits = [add("n0"), retire("n0"), retire("nobody"), add("n1")]
    results = live.edit_all([lambda _, e=e: e for e in edits], lambda check: follower.keep_up())
    assert [isinstance(one, Refused) for one in results] == [False, False, True, False]
    builds.clear()
    assert follower.catch_up().state == live.current.state
    assert (follower.current.version, builds) == (4, [])


@settings(max_examples=20)
@given(edits=EDITS, together=st.integers(1, 4), late=st.sampled_from([1, 2, 3]))
def test_who_prepares_arrives_at_the_same(
    tmp_path_factory: pytest.TempPathFactory, edits: list[Edit], together: int, late: int
) -> None:
    folder = tmp_path_factory.mktemp("live")
    live, follower = live_in(folder), live_in(folder)
    for number, start in enumerate(range(0, len(edits), together)):
        makes = [lambda _, e=e: e for e in edits[start : start + together]]
        live.edit_all(makes, lambda check, n=number: (n % late or follower.keep_up(), check())[1])
    now = follower.catch_up()
    assert (now.version, now.state, follower.versions) == (live.current.version, live.current.state, live.versions)
    assert answers(now) == answers(live.current)


def test_what_was_announced_and_not_made_is_not_used(tmp_path: Path) -> None:
    """A reload that failed has read the folder as it was then."""
    folder = Folder()
    live, follower = live_in(tmp_path), live_in(tmp_path, folder.load)

    def fail() -> None:
        follower.keep_up()
        raise Refused(500, "canary", "no")

    for edit in (Edit("reload"), add("n0")):
        with pytest.raises(Refused):
            meanwhile(live, edit, fail)
    with pytest.raises(Refused):
        meanwhile(live, Edit("reload"), fail)
    folder.retired = (ITEMS[5],)
    live.edit(Edit("reload"))
    now = follower.catch_up()
    assert (now.version, now.is_retired(ITEMS[5])) == (2, True)
    assert now.state == live.current.state


def test_what_was_prepared_after_another_version_is_not_used(tmp_path: Path) -> None:
    live, other, follower = live_in(tmp_path), live_in(tmp_path), live_in(tmp_path)

    def fail(check: Callable[[], None]) -> None:
        follower.keep_up()
        raise OSError("no")

    live.edit_all([lambda _: add("n0"), lambda _: add("n1")], fail)
    other.edit(retire(ITEMS[0]))
    assert live.edit(add("n1")).version == 3, "as was announced"
    now = follower.catch_up()
    assert now.state == live.current.state
    assert answers(now) == answers(live.current)


def test_searches_and_other_edits_do_not_wait_for_what_is_prepared(tmp_path: Path) -> None:
    folder = Folder()
    live, other, follower = live_in(tmp_path), live_in(tmp_path), live_in(tmp_path, folder.load)
    folder.loading.clear()
    folder.readable.clear()
    preparing = threading.Thread(target=follower.keep_up)

    def look() -> None:
        preparing.start()
        assert folder.loading.wait(20)
        assert follower.catch_up().version == 1
        other.edit(retire(ITEMS[0]))
        assert follower.catch_up().is_retired(ITEMS[0]), "it came before the reload"
        assert preparing.is_alive()
        folder.readable.set()
        preparing.join(20)

    looks = [look]
    after = meanwhile(live, Edit("reload"), lambda: looks.pop()() if looks else None)
    assert (after.version, follower.catch_up().version) == (3, 3)
    assert follower.current.state == after.state


def test_an_edit_that_is_being_prepared_is_waited_for_and_not_built_twice(tmp_path: Path) -> None:
    folder = Folder()
    live, follower = live_in(tmp_path), live_in(tmp_path, folder.load)
    loads: list[int] = []
    load = folder.load
    follower._load = lambda: (loads.append(1), load())[1]
    folder.loading.clear()
    folder.readable.clear()
    preparing, following = threading.Thread(target=follower.keep_up), threading.Thread(target=follower.catch_up)
    meanwhile(live, Edit("reload"), lambda: (preparing.start(), folder.loading.wait(20)))
    following.start()
    following.join(0.2)
    assert following.is_alive(), "an older version must not be served"
    folder.readable.set()
    for thread in (preparing, following):
        thread.join(20)
    assert (follower.current.version, loads) == (2, [1])


def test_what_cannot_be_prepared_is_tried_when_it_is_made(tmp_path: Path) -> None:
    folder = Folder()
    live, follower = live_in(tmp_path), live_in(tmp_path, folder.load)
    folder.problem = OSError("the folder is being replaced")
    meanwhile(live, Edit("reload"), follower.keep_up)
    assert not follower.stuck
    folder.problem = None
    assert follower.catch_up().version == 2


def test_announcements_are_hints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live, follower = live_in(tmp_path), live_in(tmp_path)
    for damage in ("not json\n", '{"no": "version"}\n'):
        (tmp_path / COMING).write_text(damage)
        follower.keep_up()
        assert not follower.announced, "it is not read again and again"
    (tmp_path / COMING).unlink()
    assert live.edit(add("n0")).version == 2
    assert "other workers cannot prepare for an edit" in caplog.text
    follower.keep_up()
    assert follower.current.version == 2


def test_a_service_prepares_while_it_searches(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(run, tmp_path / "state") as own, Served(run, tmp_path / "state") as other:
        seen: list[Any] = []

        def wait(check: Callable[[], None]) -> None:
            end = time.monotonic() + PATIENCE
            steps = other.service.live._ahead._steps
            while not steps and time.monotonic() < end:
                time.sleep(0.01)
                steps = other.service.live._ahead._steps
            seen.extend([list(steps), other.recommend([])["version"]])
            check()

        monkeypatch.setattr(own.service, "_tried", wait)
        assert own.client.post("/v1/items", json={"items": [new("n0")]}).status_code == 201
        assert seen == [[2], 1]
        assert other.recommend([])["version"] == 2
