"""Versions of the catalogue over time: the states that a journal leads to, the lineage of a version, versions to come.

A line of a journal holds an edit or, at the beginning of a compacted journal, the whole state of a version. A lineage
never changes: an edit makes another one, which is served or forgotten as a whole. Building a version may take seconds,
and once its edit is acknowledged, no search may use an older one. So a process announces edits that it is about to
make, and the others build the version at the same time, beside their searches. An announcement is only a hint: it may
be missed, and what it announces may never happen. What was prepared is used if the journal gets exactly that line after
exactly that version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from capsid.errors import ArtifactError
from capsid.recommender import Recommender
from capsid.serve.errors import Refused
from capsid.serve.journal import Journal
from capsid.serve.snapshot import WHOLE, Edit, Snapshot, State, item_frame, with_state

Line = Mapping[str, Any]
logger = logging.getLogger("capsid.serve")
# The file beside the journal that holds the last announcement.
COMING = "coming.jsonl"


@dataclass(frozen=True)
class Replayed:
    """`states` by version, oldest first: the newest and the ones before it that were asked for.

    `reloaded` is the last version that read the run's folder again.
    """

    states: dict[int, State]
    reloaded: int = 0


def replayed(lines: Sequence[Line], kept: int) -> Replayed:
    """The newest state and the `kept` ones before it. Version 1 is the run without edits.

    Edits between two states that are needed are applied together: a state may hold many items, a journal many edits.
    """
    check_consecutive(lines, version_of(lines[0]) - 1 if lines and is_whole(lines[0]) else 1)
    versions = [version_of(line) for line in lines]
    needed = {*versions[-kept - 1 :], *(edit_of(line).to for line in lines if not is_whole(line))}
    states, state, reloaded = {1: State()}, State(), 0
    waiting: list[Edit] = []
    for line, version in zip(lines, versions):
        if is_whole(line):
            if version == versions[0]:
                states.clear()
            state, waiting, reloaded = state_of(line, state), [], int(line["reloaded"])
        else:
            edit = edit_of(line)
            if edit.operation == "rollback":
                if edit.to not in states:
                    raise ArtifactError(f"the journal goes back to version {edit.to}, which it does not hold")
                state, waiting = states[edit.to], []
            elif edit.operation == "reload":
                reloaded = version
            else:
                waiting.append(edit)
        if version in needed:
            state, waiting = state.after(*waiting), []
            states[version] = state
    last = sorted(states)[-kept - 1 :]
    return Replayed({version: states[version] for version in last}, reloaded)


def shortened(states: Mapping[int, State], reloaded: int) -> list[dict[str, Any]]:
    """Lines that lead to the same states, one for each."""
    before, lines = State(), []
    for version, state in sorted(states.items()):
        lines.append({**state.to_line(version, before), "reloaded": reloaded})
        before = state
    return lines


def is_whole(line: Line) -> bool:
    """Whether a line holds a whole state."""
    return isinstance(line, Mapping) and line.get("operation") == WHOLE


def state_of(line: Line, before: State) -> State:
    """The state that a line holds, given that of the line before it."""
    try:
        if type(line["reloaded"]) is not int:
            raise ValueError("reloaded must be a version")
        return State.from_line(line, before)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"the journal holds a line that is not a state ({error}): {str(line)[:200]}") from None


def edit_of(line: Line) -> Edit:
    """The edit that a line holds."""
    try:
        return Edit.from_line(line)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"the journal holds a line that is not an edit ({error}): {str(line)[:200]}") from None


def check_consecutive(lines: Sequence[Line], before: int) -> None:
    """Refuse lines whose versions do not count on from the one before them: edits would be lost or made twice."""
    for expected, line in enumerate(lines, start=before + 1):
        version = version_of(line)
        if version != expected:
            raise ArtifactError(
                f"versions in the journal must be consecutive: expected {expected}, got {version}",
                hint="restore the file from a backup, or move it away to start without its edits",
            )


def version_of(line: Line) -> int:
    """The version that a line leads to."""
    version = line.get("version") if isinstance(line, Mapping) else None
    if type(version) is not int:
        raise ArtifactError(f"the journal holds a line without a version: {str(line)[:200]}")
    return version


Load = Callable[[], Recommender]


@dataclass(frozen=True, eq=False)
class Lineage:
    """`base` is the run without edits, read for version `reloaded`.

    `states` are the versions available for rollback, oldest first; `snapshots` are those that `base` was built for.
    """

    current: Snapshot
    base: Recommender
    reloaded: int
    kept: int
    states: Mapping[int, State]
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)

    @property
    def next_version(self) -> int:
        """The number of the version after this one."""
        return self.current.version + 1

    def check(self, edit: Edit) -> None:
        """Refuse an edit that does not fit, before anything is built."""
        if edit.operation == "rollback":
            self._check_kept(edit.to)
        refusal = _misfit(self.current, edit)
        if refusal is not None:
            raise refusal
        item_frame(edit.rows, self.current.recommender.catalogue_.attributes)

    def edited(self, edit: Edit, load: Load) -> Lineage:
        """The lineage after an edit that fits."""
        if edit.operation == "reload":
            return self.moved(self.current.state, self.next_version, self.next_version, load)
        if edit.operation == "rollback":
            self._check_kept(edit.to)
            old = self.snapshots.get(edit.to) or with_state(self.base, self.states[edit.to], edit.to)
            return self._then(Snapshot(self.next_version, old.recommender, old.state))
        return self._then(self.current.then(edit))

    def followed(self, edit: Edit, load: Load) -> Lineage:
        """The lineage after an edit that another process has made.

        That process may have read the run's folder at another time, so the items of the edit may be known already or
        unknown here, or have other attributes. The edit is then applied as it is at a start.
        """
        if _misfit(self.current, edit) is None:
            return self.edited(edit, load)
        return self._then(with_state(self.base, self.current.state.after(edit), self.next_version))

    def moved(self, state: State, version: int, reloaded: int, load: Load) -> Lineage:
        """The lineage at a later version; the run is read again if that version was made of a newer one."""
        if reloaded <= self.reloaded:
            return self._then(with_state(self.base, state, version))
        base = load()
        after = with_state(base, state, version)
        # Versions belong to the edits, not to the model: a rollback keeps the new model.
        return Lineage(after, base, reloaded, self.kept, self._states_after())

    def _then(self, after: Snapshot) -> Lineage:
        states = self._states_after()
        built = {**self.snapshots, self.current.version: self.current}
        snapshots = {version: snapshot for version, snapshot in built.items() if version in states}
        return Lineage(after, self.base, self.reloaded, self.kept, states, snapshots)

    def _states_after(self) -> dict[int, State]:
        states = {**self.states, self.current.version: self.current.state}
        return {version: states[version] for version in list(states)[max(len(states) - self.kept, 0) :]}

    def _check_kept(self, version: int) -> None:
        if version not in self.states:
            kept = ", ".join(map(str, self.states)) or "none"
            raise Refused(409, "unknown_version", f"version {version} is not stored", hint=f"stored versions: {kept}")


def _misfit(snapshot: Snapshot, edit: Edit) -> Refused | None:
    """Why an edit does not fit: its new items must be new, its other items must exist."""
    items = snapshot.recommender.catalogue_.items
    for row in edit.rows:
        name = row["item_id"]
        if name in items:
            hint = "restore it" if snapshot.is_retired(name) else "ids of known items do not change"
            return Refused(409, "known_item", f"item {name!r} is in the catalogue already", hint=hint)
    for name in edit.items:
        if name not in items:
            return Refused(404, "unknown_item", f"there is no item {name!r}", hint="GET /v1/items?q= finds items")
    return None


# Makes the lineage after a line.
After = Callable[[Lineage, Line], Lineage]


@dataclass(frozen=True, eq=False)
class _Step:
    """From a lineage by a line to the next lineage, which is None if it cannot be made."""

    before: Lineage
    line: Line
    result: Future[Lineage | None] = field(default_factory=Future)

    def fits(self, before: Lineage, line: Line) -> bool:
        return self.before is before and self.line == line

    def make(self, after: After) -> None:
        made = None
        try:
            made = after(self.before, self.line)
        except Exception as error:
            # Told when the edit is in the journal and cannot be made then either.
            logger.debug("version %d cannot be prepared: %s", version_of(self.line), error)
        finally:
            self.result.set_result(made)


class Ahead:
    """`announce` and `prepare` are for the thread that edits; `take` is for any thread."""

    def __init__(self, coming: Journal) -> None:
        self._coming = coming
        self._steps: dict[int, _Step] = {}

    @property
    def announced(self) -> bool:
        """Whether another process has announced something that was not prepared; one system call."""
        return self._coming.behind

    def announce(self, lines: Sequence[Line]) -> None:
        """Tell the other processes which lines this one is about to write, all from the present version on."""
        try:
            with self._coming.locked():
                self._coming.replace(*map(dict, lines))
        except (ArtifactError, OSError) as error:
            logger.warning("other workers cannot prepare for an edit: %s", error)

    def prepare(self, now: Lineage, after: After) -> None:
        """Make what the last announcement leads to. The steps of the one before it stay, as far as both agree."""
        lines = self._read()
        self._steps = {version: step for version, step in self._steps.copy().items() if version in lines}
        made: Lineage | None = now
        while made is not None and made.next_version in lines:
            version = made.next_version
            step, line = self._steps.get(version), lines[version]
            if step is None or not step.fits(made, line):
                step = self._steps[version] = _Step(made, line)
                step.make(after)
            made = step.result.result()

    def _read(self) -> dict[int, Line]:
        """The last announcement, by version; one that is damaged announces nothing."""
        with self._coming.locked():
            try:
                return {version_of(line): line for line in self._coming.read()}
            except ArtifactError:
                self._coming.replace()
                return {}

    def take(self, now: Lineage, line: Line) -> Lineage | None:
        """The lineage after a line of the journal, if it was prepared; waits for it if it is just being prepared."""
        step = self._steps.pop(version_of(line), None)
        return step.result.result() if step is not None and step.fits(now, line) else None
