"""The catalogue that changes while it serves: one reference to the current version, and a journal of the edits.

Edits build the next version beside the current one, try a search on it, and write their lines to the journal. Then
one assignment replaces the current version, so every search sees one version. Other processes follow the journal, and
prepare for edits that take long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from capsid.errors import ArtifactError
from capsid.serve.errors import Refused
from capsid.serve.journal import Journal
from capsid.serve.replay import (
    Ahead,
    Line,
    Lineage,
    Load,
    check_consecutive,
    edit_of,
    is_whole,
    replayed,
    shortened,
    state_of,
    version_of,
)
from capsid.serve.snapshot import Edit, Snapshot, State, with_state

logger = logging.getLogger("capsid.serve")
KEPT = 3
# Bytes from which on a journal is replaced by a shorter one, and again when it has twice the size that this left.
LARGE = 1 << 20
# Seconds until an edit of another process that could not be made here is tried again; it may take a whole load.
RETRY = 1.0
# Makes an edit of the catalogue that it applies to; what was made, and the version with it.
Make = Callable[[Snapshot], Edit]
Made = tuple[Edit, Snapshot]
# Runs the trial search of a version, which raises if it fails.
Try = Callable[[Callable[[], None]], None]


class LiveCatalogue:
    """`current` and `catch_up` are for any thread; `edit` and `keep_up` are for one thread at a time in this process.

    Without `ahead`, nothing is announced and nothing prepared.
    """

    def __init__(
        self,
        load: Load,
        journal: Journal,
        ahead: Ahead | None = None,
        *,
        kept: int = KEPT,
        large: int = LARGE,
        retry: float = RETRY,
    ) -> None:
        self._load, self._journal, self._ahead, self._retry = load, journal, ahead, retry
        self._large = self._enough = large
        # Held while the journal is used and while versions are switched. The journal's own lock is held only to read
        # or write lines: a load under it would hold up all processes.
        self._changing = threading.RLock()
        self._problem, self._tried_at = "", float("-inf")
        # The state in the last whole line that was read, which the next such line continues.
        self._whole = State()
        with journal.locked():
            before = replayed(list(journal.read()), kept)
        # Read after the journal, so that it is not older than a reload in it.
        base, states = load(), dict(before.states)
        version, state = states.popitem()
        self._now = Lineage(with_state(base, state, version), base, before.reloaded, kept, states)
        self._follow()
        with journal.locked():
            if not journal.pending:
                self._shorten()

    @property
    def current(self) -> Snapshot:
        return self._now.current

    @property
    def versions(self) -> list[int]:
        """Versions available for rollback, oldest first."""
        return list(self._now.states)

    @property
    def behind(self) -> bool:
        """Whether another process has made edits that this one has not; one system call."""
        return self._journal.behind or self.stuck

    @property
    def stuck(self) -> bool:
        """Whether an edit of another process could not be made here, so that the current version is too old."""
        return bool(self._problem)

    @property
    def announced(self) -> bool:
        """Whether another process is about to make an edit that takes long; one system call."""
        return self._ahead is not None and self._ahead.announced

    def edit(self, edit: Edit) -> Snapshot:
        """Make an edit and return the new version; if it cannot be made, raise and change nothing."""
        (made,) = self.edit_all([lambda _: edit])
        if isinstance(made, Exception):
            raise made
        return made[1]

    def edit_all(self, makes: Sequence[Make], tried: Try = lambda check: check()) -> list[Made | Exception]:
        """Make edits in order, with one trial search and one write for all of them: for each, its result or its error.

        An edit that cannot be made does not stop the others. Each has a version of its own; the last one is served.
        """
        try:
            return self._edit_together(makes, tried)
        except Refused as refusal:
            if len(makes) == 1:
                return [refusal]
        except Exception as error:
            return [error] * len(makes)
        # One of them is to blame; the others are made without it.
        return [result for make in makes for result in self.edit_all([make], tried)]

    def _edit_together(self, makes: Sequence[Make], tried: Try) -> list[Made | Exception]:
        """For each edit its result or its error; raises if none is made because of the trial or the journal."""
        while True:
            self.catch_up()
            before = self._now
            built = self._build(before, makes)
            made = [one for one in built if not isinstance(one, Exception)]
            if made:
                added = [str(row["item_id"]) for edit, _ in made for row in edit.rows]
                tried(partial(made[-1][1].current.check, added))
                if not self._write(before, made):
                    # Edits that another process made meanwhile come before these.
                    continue
            return [one if isinstance(one, Exception) else (one[0], one[1].current) for one in built]

    def _build(self, before: Lineage, makes: Sequence[Make]) -> list[tuple[Edit, Lineage] | Exception]:
        built: list[tuple[Edit, Lineage] | Exception] = []
        lines: list[Line] = []
        for make in makes:
            try:
                edit = make(before.current).marked()
                before.check(edit)
                line = edit.to_line(before.next_version)
                if edit.slow and self._ahead is not None:
                    self._ahead.announce([*lines, line])
                before = before.edited(edit, self._load)
                lines.append(line)
                built.append((edit, before))
            except Exception as error:
                built.append(error)
        return built

    def _write(self, before: Lineage, made: Sequence[tuple[Edit, Lineage]]) -> bool:
        """Write the edits and serve the last one, unless there are edits of other processes since `before`."""
        with self._changing, self._journal.locked():
            if self._now is not before or self._journal.pending:
                return False
            lines = [edit.to_line(after.current.version) for edit, after in made]
            check_consecutive(lines, before.current.version)
            self._journal.append(*lines)
            self._now = made[-1][1]
            self._shorten()
            return True

    def catch_up(self) -> Snapshot:
        """The current version with all edits acknowledged by any process; one system call if there are no new ones.

        A 503 while such an edit cannot be made here: an older version must not be served any more.
        """
        if self.behind:
            with self._changing:
                self._try_to_follow()
        return self.current

    def keep_up(self) -> None:
        """Make the edits of other processes, and prepare those that they have announced, beside searches."""
        self.catch_up()
        if self._ahead is not None and self._ahead.announced:
            self._ahead.prepare(self._now, self._after)

    def _try_to_follow(self) -> None:
        if not self.stuck or time.monotonic() >= self._tried_at + self._retry:
            try:
                self._follow()
                self._problem = ""
            except Exception as error:
                if not self.stuck:
                    logger.exception("version %d cannot be made here; queries are refused", self._now.next_version)
                self._problem = getattr(error, "message", "") or str(error) or type(error).__name__
                self._tried_at = time.monotonic()
        if self.stuck:
            version = self._now.next_version
            raise Refused(
                503,
                "behind",
                f"version {version}, which another process has made, cannot be made here: {self._problem}",
                hint="it is tried again every second; if the run or the journal is damaged, repair it and restart",
                headers={"retry-after": "1"},
            )

    def _follow(self) -> None:
        """Make the edits that other processes have acknowledged. One that fails is not passed: it is read again."""
        with self._journal.locked():
            lines = self._journal.read()
        for line in lines:
            prepared = None if self._ahead is None else self._ahead.take(self._now, line)
            self._now = prepared or self._after(self._now, line)

    def _after(self, now: Lineage, line: Line) -> Lineage:
        """The lineage after a line of another process."""
        version = version_of(line)
        if not is_whole(line):
            check_consecutive([line], now.current.version)
            return now.followed(edit_of(line), self._load)
        # The other process has shortened the journal: this one may have been many versions behind.
        self._whole = state_of(line, self._whole)
        if version <= now.current.version:
            return now
        return now.moved(self._whole, version, int(line["reloaded"]), self._load)

    def _shorten(self) -> None:
        """Replace a long journal by the states that it leads to; the edits themselves are no longer needed."""
        if self._journal.size <= self._enough:
            return
        try:
            states = {**self._now.states, self.current.version: self.current.state}
            self._journal.replace(*shortened(states, self._now.reloaded))
        except (ArtifactError, OSError) as error:
            # The edits are safe in the long one.
            logger.warning("the journal stays long: %s", error)
        self._enough = max(self._large, 2 * self._journal.size)
