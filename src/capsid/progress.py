"""Progress on standard error: one updating line on a terminal or in a notebook, plain lines elsewhere.

Library code gets a `Progress` as an argument; `silent` is the default, so nothing prints unless a caller asks. The
methods that people call themselves use `automatic`, which shows progress where somebody watches.
"""

from __future__ import annotations

import sys
import time
from typing import ClassVar, Protocol

from capsid.base.printable import one_line, printable

# Characters that a notebook erases before the next text.
WIDTH = 100


class Progress(Protocol):
    """Receives the progress of long-running work."""

    def line(self, text: str) -> None:
        """Print a permanent line."""

    def update(self, text: str) -> None:
        """Show the current state; it may be dropped or replaced by the next update."""


class Silent:
    """Prints nothing."""

    def line(self, text: str) -> None:
        pass

    def update(self, text: str) -> None:
        pass


class Console:
    """Writes to standard error; updates overwrite each other on a terminal and are occasional lines in a log."""

    # Set by `capsid --quiet` for the whole command.
    quiet: ClassVar[bool] = False

    def __init__(self, *, every_seconds: float = 10.0) -> None:
        notebook = in_notebook()
        self._updates = notebook or sys.stderr.isatty()
        # A notebook knows no such escape code: blanks remove the rest of a longer text.
        self._erase = f"\r{' ' * WIDTH}\r" if notebook else "\r\x1b[2K"
        self._every = 0.2 if self._updates else every_seconds
        self._last = time.monotonic()
        self._open = False

    def line(self, text: str) -> None:
        if self.quiet:
            return
        self._clear()
        print(printable(text), file=sys.stderr, flush=True)

    def update(self, text: str) -> None:
        now = time.monotonic()
        if self.quiet or now - self._last < self._every:
            return
        self._last = now
        if self._updates:
            print(f"{self._erase}{one_line(text)}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            print(one_line(text), file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._open:
            print(self._erase, end="", file=sys.stderr)
            self._open = False


silent = Silent()


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel, which shows what is written to standard error."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(sys.stderr, kernel.OutStream)


def automatic() -> Progress:
    """Progress where somebody watches, on a terminal or in a notebook; nothing in a script whose output is a file."""
    watched = sys.stderr is not None and sys.stderr.isatty()
    return Console() if watched or in_notebook() else silent


def duration(seconds: float) -> str:
    """A duration in readable form: 42 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
