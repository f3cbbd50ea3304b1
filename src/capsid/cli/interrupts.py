"""What Ctrl-C does to the command `capsid`: it stops the verb, but never in the middle of an import.

torch and other libraries run Python code from C++ while they load. An exception there may crash the process, be
dropped with a traceback, or come out as another error. So Ctrl-C during an import takes effect when the import is over.
"""

from __future__ import annotations

# `capsid.__main__` imports this module before anything else. Until then Ctrl-C is Python's, so little is loaded here.
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


class Interrupts:
    """Hears Ctrl-C once `listen` was called. `came` stays true even if the interrupted code hides the exception."""

    def __init__(self) -> None:
        self.came = False
        self._listener: FrameType | None = None

    def listen(self) -> None:
        """Raise KeyboardInterrupt on Ctrl-C from now on, but not inside an import that the caller makes."""
        # A shell may have set SIGINT to be ignored, as it does for background jobs.
        if callable(signal.getsignal(signal.SIGINT)):
            self._listener = sys._getframe(1)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._dropped
            signal.signal(signal.SIGINT, self._pressed)

    def ignore(self) -> None:
        """Ignore Ctrl-C from now on, because the process is about to end."""
        if self._listener is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        importer = self._importer(frame)
        if importer is None:
            raise KeyboardInterrupt
        _raise_in(importer)

    def _dropped(self, unraisable: Any) -> None:
        """Python drops what destructors and callbacks raise. If that is Ctrl-C, raise it again outside of them."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            frame = sys._getframe(1)
            _raise_in(self._importer(frame) or frame)
        else:
            self._hook(unraisable)

    def _importer(self, frame: FrameType | None) -> FrameType | None:
        """The outermost frame that is waiting for an import."""
        importer = None
        while frame is not None and frame is not self._listener:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                importer = frame.f_back
            frame = frame.f_back
        return importer


def _raise_in(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt as soon as this frame, or one of its callers, runs its next instruction."""
    while frame is not None:
        frame.f_trace = _stop
        frame.f_trace_opcodes = True
        frame = frame.f_back
    # Nothing is traced without a function for new frames; this one traces none of them.
    sys.settrace(lambda *_: None)


def _stop(*_: object) -> None:
    sys.settrace(None)
    raise KeyboardInterrupt
