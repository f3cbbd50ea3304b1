"""Standard output and error as verbs see them: whatever stands behind them, no verb ends in a traceback.

Output that cannot be written is an error of one sentence; progress that cannot be shown is not worth ending a fit for.
Characters that the terminal's encoding lacks become escapes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from capsid.errors import CapsidError


class OutputError(CapsidError):
    """Standard output is full or closed."""


class Output(io.TextIOBase):
    """Writes to a stream; what the system refuses becomes an OutputError, a reader that has gone does not."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As the stream's."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        """Always: a closed stream says so when it is written to."""
        return True

    def isatty(self) -> bool:
        """Whether a person reads along."""
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        """The stream's, where it has one."""
        if self._stream is None:
            raise io.UnsupportedOperation("there is no stream")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """All of it."""
        self._do("write", text)
        return len(text)

    def flush(self) -> None:
        """Now."""
        if self._stream is not None:
            self._do("flush")

    def _do(self, what: str, *arguments: Any) -> None:
        try:
            if self._stream is None or self._stream.closed:
                raise OSError(errno.EBADF, "it is closed")
            getattr(self._stream, what)(*arguments)
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            self._refused(error)

    def _refused(self, error: OSError | ValueError) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"could not write to standard output: {reason}", hint="is the disk full, or the terminal closed?"
        ) from None


class Notes(Output):
    """As `Output`, for progress and messages: what cannot be written is dropped."""

    def _do(self, what: str, *arguments: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            super()._do(what, *arguments)

    def _refused(self, error: OSError | ValueError) -> None:
        """Nobody can be told."""


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Let the verb write through them."""
    with contextlib.redirect_stdout(Output(sys.stdout)), contextlib.redirect_stderr(Notes(sys.stderr)):
        yield


def silence_output() -> None:
    """Point a standard output that cannot be written elsewhere, or the interpreter complains when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
