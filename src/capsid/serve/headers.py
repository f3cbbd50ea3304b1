"""A connection whose request headers do not arrive in time is refused or closed: it must not be held for ever.

The time counts from the acceptance of a connection, and later from the first byte after an answer; a byte now and then
gains none. An idle connection is closed by the server itself. Knows neither bodies nor what the headers say.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capsid.serve.edge import refusal_response, request_id
from capsid.serve.errors import Refused

# Seconds in which the headers of a request have to arrive.
HEADER_SECONDS = 30.0
# Where the application leaves its metrics in the state of its lifespan.
METRICS = "capsid.metrics"


class HeaderLimit(HttpToolsProtocol):
    """The server's HTTP, with a limit for headers."""

    _timer: asyncio.TimerHandle | None = None
    _begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; until it completes the headers of a request, the time runs."""
        super().data_received(data)
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting and self._timer is None:
            self._start()

    def on_message_begin(self) -> None:
        """The first byte of a request has arrived."""
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """All headers of a request have arrived."""
        self._begun = False
        self._stop()
        super().on_headers_complete()

    def _start(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Answer a request that has begun. Who asks nothing gets no answer: browsers connect before they need to."""
        if self._begun and not self.transport.is_closing():
            refusal = _too_slow()
            if METRICS in self.app_state:
                self.app_state[METRICS].dropped(refusal.code)
            self.transport.write(_encoded(refusal, request_id(self.scope)))
        self.transport.close()


def _too_slow() -> Refused:
    text = f"the headers of a request must arrive within {HEADER_SECONDS:g} s"
    return Refused(408, "headers_too_slow", text, headers={"connection": "close"})


def _encoded(refusal: Refused, name: str) -> bytes:
    headers, body = refusal_response(refusal, name)
    lines = [b"%s: %s\r\n" % pair for pair in [*headers, (b"x-request-id", name.encode())]]
    status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
    return b"".join([status, *lines, b"\r\n", body])
