"""Parses the lines of a journal, finds the states that they lead to, and writes a few lines that lead to the same
states.

A line holds an edit or, at the beginning of a compacted journal, the whole state of a version. Knows neither files nor
recommenders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsid.errors import ArtifactError
from capsid.serve.snapshot import WHOLE, Edit, State

Line = Mapping[str, Any]


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
