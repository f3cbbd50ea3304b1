"""Starts the service: one process, or several that share a port, a mapped run and a journal.

The server closes its port without losing requests that have already reached it: a client whose connection the kernel
has accepted does not know that the port is about to close, so it is answered first. Request headers that do not arrive
in time or do not end are refused: they must not hold a connection or fill memory. Their time counts from the acceptance
of a connection, and later from the first byte after an answer; a byte now and then gains none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.main import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capsid.serve.edge import Keys, refusal_response, request_id
from capsid.serve.errors import Refused
from capsid.serve.journal import Journal
from capsid.serve.metrics import SHARED
from capsid.serve.options import ENVIRONMENT, ServeOptions
from capsid.serve.workers import Workers, has_joined

# Turns of the event loop before and after the port is closed, and seconds between them. Turns are counted rather than
# time: on a busy machine the process may sleep through any time, and would then close connections before reading them.
_TURNS, _PAUSE = 20, 0.02
logger = logging.getLogger("capsid.serve")
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {name: {"handlers": ["stderr"], "level": "INFO", "propagate": False} for name in ("uvicorn", "capsid")},
}
_APP = "capsid.serve.app:create_app"
# Seconds in which the headers of a request have to arrive.
HEADER_SECONDS = 30.0
# Bytes that they may have. What arrives together with their first byte is not counted, because it may end a body.
HEADER_BYTES = 64 * 1024
# Where the application leaves its metrics in the state of its lifespan.
METRICS = "capsid.metrics"


class PatientServer(uvicorn.Server):
    """Before it ends, takes the connections that wait at its port and the requests of those that are open."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, wait for answers and end the application."""
        await self._turn(3)
        for server in self.servers:
            server.close()
        await self._turn(_TURNS)
        await super().shutdown(sockets)

    async def _turn(self, turns: int) -> None:
        """Let the event loop go round, unless no connection is left."""
        for turn in range(turns):
            if turn > 2 and not self.server_state.connections:
                return
            await asyncio.sleep(_PAUSE)


def serve(options: ServeOptions, *, show: bool = False, tell: Callable[[str], object] = logger.warning) -> None:
    """Serve until a signal ends it. With `show`, a browser opens the page when the service is ready.

    `tell` is told what was done to repair the journal.
    """
    options = options.for_workers()
    Keys.read(options)  # a bad key is told here, before there are workers
    if show:
        threading.Thread(target=_show, args=(f"http://127.0.0.1:{options.port}/",), daemon=True).start()
    journal = Journal(options.state_folder)
    for line in journal.repair(recover=options.recover):
        tell(line)
    journal.close()
    os.environ[ENVIRONMENT] = options.to_environment()
    settings: dict[str, Any] = {"host": options.host, "port": options.port, **_SERVER}
    with tempfile.TemporaryDirectory(prefix="capsid-metrics-") as folder:
        if options.workers > 1:
            os.environ[SHARED] = folder
            port = uvicorn.Config(_APP, **settings).bind_socket()
            workers = Workers(partial(_serve_at, settings), port, options.workers, partial(has_joined, Path(folder)))
            sys.exit(workers.run())
        server = PatientServer(uvicorn.Config(_APP, **settings))
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def _serve_at(settings: dict[str, Any], port: socket.socket) -> None:
    """Serve in a worker."""
    PatientServer(uvicorn.Config(_APP, **settings)).run(sockets=[port])


def _show(page: str) -> None:
    """Open the page once queries are answered."""
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{page}health/ready", timeout=5):
            break
        time.sleep(0.1)
    webbrowser.open(page)


class HeaderLimit(HttpToolsProtocol):
    """The server's HTTP, with limits for headers."""

    _timer: asyncio.TimerHandle | None = None
    _begun = False
    _just_begun = False
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; until it completes the headers of a request, time and size count."""
        self._just_begun = False
        super().data_received(data)
        if self._begun and not self._just_begun:
            self._size += len(data)
            if self._size > HEADER_BYTES:
                self._refuse(_refused(431, "headers_too_large", f"have at most {HEADER_BYTES // 1024} KiB"))
                return
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting and self._timer is None:
            self._start()

    def on_message_begin(self) -> None:
        self._begun = self._just_begun = True
        self._size = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
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
            self._refuse(_refused(408, "headers_too_slow", f"arrive within {HEADER_SECONDS:g} s"))
        self.transport.close()

    def _refuse(self, refusal: Refused) -> None:
        if self.transport.is_closing():
            return
        if METRICS in self.app_state:
            self.app_state[METRICS].dropped(refusal.code)
        self.transport.write(_encoded(refusal, request_id(self.scope)))
        self.transport.close()


def _refused(status: int, code: str, rule: str) -> Refused:
    return Refused(status, code, f"the headers of a request must {rule}", headers={"connection": "close"})


def _encoded(refusal: Refused, name: str) -> bytes:
    headers, body = refusal_response(refusal, name)
    lines = [b"%s: %s\r\n" % pair for pair in [*headers, (b"x-request-id", name.encode())]]
    status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
    return b"".join([status, *lines, b"\r\n", body])


_SERVER = {
    "factory": True,
    "loop": "uvloop",
    "http": HeaderLimit,
    "ws": "none",
    "access_log": False,
    "log_config": _LOG,
    "server_header": False,
    "timeout_graceful_shutdown": 60,
    "timeout_keep_alive": 30,
}
