"""Request headers that do not arrive in time or do not end are refused: they must not hold a connection or fill memory.

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
# Bytes that they may have. What arrives together with their first byte is not counted, because it may end a body.
HEADER_BYTES = 64 * 1024
# Where the application leaves its metrics in the state of its lifespan.
METRICS = "capsid.metrics"


class HeaderLimit(HttpToolsProtocol):
    """The server's HTTP, with limits for headers."""

    _timer: asyncio.TimerHandle | None = None
    _begun = False
    _just_begun = False
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; until it completes the headers of a request, time and size count."""
        self._just_begun = False
        super().data_received(data)
        if self._begun and not self._just_begun:
            self._size += len(data)
            if self._size > HEADER_BYTES:
                self._refuse(_too_large())
                return
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting and self._timer is None:
            self._start()

    def on_message_begin(self) -> None:
        """The first byte of a request has arrived."""
        self._begun = self._just_begun = True
        self._size = 0
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
        if self._begun:
            self._refuse(_too_slow())
        self.transport.close()

    def _refuse(self, refusal: Refused) -> None:
        if self.transport.is_closing():
            return
        if METRICS in self.app_state:
            self.app_state[METRICS].dropped(refusal.code)
        self.transport.write(_encoded(refusal, request_id(self.scope)))
        self.transport.close()


def _too_slow() -> Refused:
    text = f"the headers of a request must arrive within {HEADER_SECONDS:g} s"
    return Refused(408, "headers_too_slow", text, headers={"connection": "close"})


def _too_large() -> Refused:
    text = f"the headers of a request must have at most {HEADER_BYTES // 1024} KiB"
    return Refused(431, "headers_too_large", text, headers={"connection": "close"})


def _encoded(refusal: Refused, name: str) -> bytes:
    headers, body = refusal_response(refusal, name)
    lines = [b"%s: %s\r\n" % pair for pair in [*headers, (b"x-request-id", name.encode())]]
    status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
    return b"".join([status, *lines, b"\r\n", body])
