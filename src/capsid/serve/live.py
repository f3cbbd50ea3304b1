"""The catalogue that changes while it serves: one reference to the current snapshot, and a journal of the edits.

Edits build the next snapshot beside the current one, try a search on it, and write their lines to the journal. Then
one assignment replaces the current snapshot, so every search sees one version. Other processes follow the journal.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from capsid.errors import ArtifactError
from capsid.recommender import Recommender
from capsid.serve.errors import Refused
from capsid.serve.journal import Journal
from capsid.serve.replay import edit_of, is_whole, replayed, shortened, state_of, version_of
from capsid.serve.snapshot import Edit, Snapshot, State, with_state

logger = logging.getLogger("capsid.serve")
KEPT = 3
# Bytes from which on a journal is replaced by a shorter one, and again when it has twice the size that this left.
LARGE = 1 << 20
# Makes an edit of the catalogue that it applies to; what was made, and the version with it.
Make = Callable[[Snapshot], Edit]
Made = tuple[Edit, Snapshot]
# Runs the trial search of a version, which raises if it fails.
Try = Callable[[Callable[[], None]], None]


def try_here(check: Callable[[], None]) -> None:
    """Run a trial search in this thread."""
    check()


class LiveCatalogue:
    """`current` may be read by any thread at any time. `edit` is for one thread at a time in this process."""

    def __init__(
        self, load: Callable[[], Recommender], journal: Journal, *, kept: int = KEPT, large: int = LARGE
    ) -> None:
        self._load, self._journal, self._kept = load, journal, kept
        self._large = self._enough = large
        with journal.locked():
            before = replayed(journal.read(), kept)
        # Read after the journal, so that it is not older than a reload in it.
        self._base, self._reloaded = load(), before.reloaded
        # Earlier versions for rollback; those from before the start are kept as states and built on request.
        self._states = OrderedDict(before.states)
        version, state = self._states.popitem()
        self.current = with_state(self._base, state, version)
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        with journal.locked():
            self._follow()
            self._shorten()

    @property
    def versions(self) -> list[int]:
        """Versions available for rollback, oldest first."""
        return list(self._states)

    def edit(self, edit: Edit) -> Snapshot:
        """Make an edit and return the new version; if it cannot be made, raise and change nothing."""
        ((_, after),) = map(_made, self.edit_all([lambda _: edit]))
        return after

    def edit_all(self, makes: Sequence[Make], tried: Try = try_here) -> list[Made | Exception]:
        """Make edits in order, with one trial search and one write for all of them: for each, its result or its error.

        An edit that cannot be made does not stop the others. Each has a version of its own; the last one is served.
        """
        out: list[Made | Exception] = []
        while len(out) < len(makes):
            out += self._edit_some(makes[len(out) :], tried)
        return out

    def _edit_some(self, makes: Sequence[Make], tried: Try) -> list[Made | Exception]:
        """The results of the first edits; those after a rollback or a reload, which need the version before, follow."""
        while True:
            out = self._build(self.catch_up(), makes)
            made = [one for one in out if not isinstance(one, Exception)]
            if not made:
                return out
            try:
                tried(partial(made[-1][1].check, [str(row["item_id"]) for edit, _ in made for row in edit.rows]))
            except Refused as refusal:
                if len(makes) > 1:
                    # One of them is to blame; the others are made without it.
                    return [one for make in makes[: len(out)] for one in self._edit_some([make], tried)]
                return [refusal]
            with self._journal.locked():
                if self._follow():
                    # Edits that another process made meanwhile come before these.
                    continue
                self._journal.append(*(edit.to_line(after.version) for edit, after in made))
                self._switch(*(after for _, after in made))
                self._shorten()
            return out

    def _build(self, before: Snapshot, makes: Sequence[Make]) -> list[Made | Exception]:
        out: list[Made | Exception] = []
        for make in makes:
            try:
                edit = make(before)
                alone = edit.operation in ("rollback", "reload")
                if alone and out:
                    break
                before = self._next(before, edit)
                out.append((edit, before))
            except Exception as error:
                out.append(error)
                continue
            if alone:
                break
        return out

    def catch_up(self) -> Snapshot:
        """The current snapshot with all edits acknowledged by any process; one system call if there are no new ones."""
        if self._journal.behind:
            with self._journal.locked():
                self._follow()
        return self.current

    def _follow(self) -> bool:
        """Make the edits that other processes have acknowledged; whether there were any."""
        lines, state = self._journal.read(), State()
        for line in lines:
            version = version_of(line)
            if is_whole(line):
                # Another process has shortened the journal: this one may have been many versions behind.
                state = state_of(line, state)
                if version > self.current.version:
                    if int(line["reloaded"]) > self._reloaded:
                        self._refresh(int(line["reloaded"]))
                    self._switch(with_state(self._base, state, version))
                continue
            after = self._next(self.current, edit_of(line))
            if after.version != version:
                raise ArtifactError(f"the journal must continue with version {after.version}, got {version}")
            self._switch(after)
        return bool(lines)

    def _refresh(self, version: int) -> None:
        """Read the run's folder again, for this version."""
        self._base, self._reloaded = self._load(), version
        # Versions belong to the edits, not to the model: a rollback keeps the new model.
        self._snapshots.clear()

    def _shorten(self) -> None:
        """Replace a long journal by the states that it leads to; the edits themselves are no longer needed."""
        if self._journal.size <= self._enough:
            return
        try:
            states = {**self._states, self.current.version: self.current.state}
            self._journal.replace(*shortened(states, self._reloaded))
        except ArtifactError as error:
            # The edits are safe in the long one.
            logger.warning("the journal stays long: %s", error.message)
        self._enough = max(self._large, 2 * self._journal.size)

    def _next(self, before: Snapshot, edit: Edit) -> Snapshot:
        if edit.operation == "reload":
            self._refresh(before.version + 1)
            return with_state(self._base, before.state, before.version + 1)
        if edit.operation != "rollback":
            _check(before, edit)
            return before.then(edit)
        if edit.to not in self._states:
            kept = ", ".join(map(str, self.versions)) or "none"
            raise Refused(409, "unknown_version", f"version {edit.to} is not stored", hint=f"stored versions: {kept}")
        old = self._snapshots.get(edit.to) or with_state(self._base, self._states[edit.to], edit.to)
        return Snapshot(before.version + 1, old.recommender, old.state)

    def _switch(self, *after: Snapshot) -> None:
        """Serve the last of these versions; those before it are kept for rollback."""
        earlier = (self.current, *after[:-1])
        self.current = after[-1]
        for before in earlier:
            self._states[before.version], self._snapshots[before.version] = before.state, before
        while len(self._states) > self._kept:
            version, _ = self._states.popitem(last=False)
            self._snapshots.pop(version, None)


def _made(result: Made | Exception) -> Made:
    if isinstance(result, Exception):
        raise result
    return result


def _check(snapshot: Snapshot, edit: Edit) -> None:
    """Check that the items of an edit exist, or are new."""
    items = snapshot.recommender.catalogue_.items
    for row in edit.rows:
        name = row["item_id"]
        if name in items:
            hint = "restore it" if snapshot.is_retired(name) else "ids of known items do not change"
            raise Refused(409, "known_item", f"item {name!r} is in the catalogue already", hint=hint)
    for name in edit.items:
        if name not in items:
            raise Refused(404, "unknown_item", f"there is no item {name!r}", hint="GET /v1/items?q= finds items")
