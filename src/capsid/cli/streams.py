"""Wraps standard output and standard error, so that a failing stream never ends a verb with a traceback.

Output that cannot be written is a one-line error. Progress that cannot be written is dropped, and the fit continues.
Characters that the terminal's encoding lacks are escaped.
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
    """Writes to a stream. A failed write raises OutputError; a closed pipe still raises BrokenPipeError."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("there is no stream")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._do("write", text)
        return len(text)

    def flush(self) -> None:
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
    """Like `Output`, for progress and messages: text that cannot be written is dropped."""

    def _do(self, what: str, *arguments: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            super()._do(what, *arguments)

    def _refused(self, error: OSError | ValueError) -> None:
        """Ignore the error: there is no stream left to report it on."""


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Wrap standard output and standard error while a verb runs."""
    with contextlib.redirect_stdout(Output(sys.stdout)), contextlib.redirect_stderr(Notes(sys.stderr)):
        yield


def silence_output() -> None:
    """Redirect a broken standard output to the null device, so that the interpreter does not complain at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
