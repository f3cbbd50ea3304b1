"""Versions that are built before they exist: a process announces edits that it is about to make, the others prepare.

Building a version may take seconds, and once its edit is acknowledged, no search may use an older one. So the others
build it at the same time as the process that makes the edit, beside their searches. An announcement is only a hint: it
may be missed, and what it announces may never happen. What was prepared is used if the journal gets exactly that line
after exactly that version. Knows nothing about searches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from capsid.errors import ArtifactError
from capsid.serve.journal import Journal
from capsid.serve.lineage import Lineage
from capsid.serve.replay import Line, version_of

logger = logging.getLogger("capsid.serve")
# The file beside the journal that holds the last announcement.
COMING = "coming.jsonl"
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
