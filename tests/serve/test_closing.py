"""A port that closes while clients wait at it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import uvicorn

from capsid.serve import start as run
from capsid.serve.start import PatientServer

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def gone(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"connection", b"close"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def answered(kind: type[uvicorn.Server], clients: int, *, late: float = 0.0) -> int:
    """How many of the clients that connect right before the port closes get an answer."""

    async def run() -> int:
        config = uvicorn.Config(gone, port=0, lifespan="off", log_config=None, http="httptools")
        config.load()
        server = kind(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        # No await in between: the event loop has not yet seen these connections when the server is told to end.
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
        asyncio.get_running_loop().call_later(late, ask, waiting)
        await server.shutdown()
        return sum(was_answered(client) for client in waiting)

    return asyncio.run(run())


def ask(clients: list[socket.socket]) -> None:
    for client in clients:
        with contextlib.suppress(OSError):
            client.sendall(REQUEST)


def was_answered(client: socket.socket) -> bool:
    with client:
        client.settimeout(30)
        try:
            return client.recv(64).startswith(b"HTTP/1.1 503")
        except ConnectionResetError:
            return False


def test_clients_at_the_port_are_answered() -> None:
    assert answered(PatientServer, 40) == 40


def test_clients_that_ask_a_moment_later_are_answered() -> None:
    assert answered(PatientServer, 40, late=0.15) == 40


def test_nobody_waits_for_a_client_that_asks_nothing() -> None:
    assert answered(PatientServer, 1, late=30) == 0


def test_the_server_of_the_library_does_not_wait() -> None:
    assert answered(uvicorn.Server, 40, late=0.15) == 0


def test_workers_are_patient_too(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(PatientServer, "run", lambda self, sockets: served.append(sockets))
    with socket.socket() as port:
        run._serve_at({}, port)
        assert served == [[port]]
