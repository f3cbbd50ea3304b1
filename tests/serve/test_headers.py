"""Connections on which the headers of a request do not arrive, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from served import Served

from capsid.serve import start as command
from capsid.serve.start import HEADER_BYTES, HeaderLimit

LIMIT = 0.3
# Far more than the limit on any machine; without the limit, tests wait this long and fail.
PATIENCE = 20.0
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"


class Client(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connections: set[Any]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.serve.start.HEADER_SECONDS", LIMIT)


async def answer(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def at_once(scope: Any, receive: Any, send: Any) -> None:
    await answer(send)


async def slowly(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3 * LIMIT)
    await answer(send)


async def after_the_body(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await answer(send)


@contextlib.asynccontextmanager
async def connected(app: Any) -> AsyncIterator[Client]:
    """A client of a server with this application."""
    settings: dict[str, Any] = {"lifespan": "off", "log_config": None, "http": HeaderLimit, "timeout_keep_alive": 30}
    config = uvicorn.Config(app, port=0, **settings)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.servers[0].sockets[0].getsockname()[1])
    try:
        yield Client(reader, writer, server.server_state.connections)
    finally:
        writer.close()
        await server.shutdown()


def talk(app: Any, say: Callable[[Client], Awaitable[bytes]]) -> bytes:
    async def run() -> bytes:
        async with connected(app) as client, asyncio.timeout(PATIENCE):
            return await say(client)

    return asyncio.run(run())


async def trickle(client: Client, byte: bytes) -> bytes:
    """Send a byte now and then, until the server closes the connection; what it said."""
    told = asyncio.ensure_future(client.reader.read())
    while not told.done():
        client.writer.write(byte)
        await asyncio.wait([told], timeout=LIMIT / 10)
    # If the last byte came after the end, the client is told that instead.
    return b"" if told.exception() else told.result()


def test_headers_that_do_not_end_are_refused(limit: None) -> None:
    async def say(client: Client) -> bytes:
        client.writer.write(b"GET / HTTP/1.1\r\nx-request-id: mine\r\nhost")
        return await client.reader.read()

    head, _, body = talk(at_once, say).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"connection: close" in head
    assert b"x-request-id: mine" in head
    text = f"the headers of a request must arrive within {LIMIT:g} s"
    wanted = {"code": "headers_too_slow", "message": text, "hint": None, "request_id": "mine"}
    assert json.loads(body)["error"] == wanted


def test_a_byte_now_and_then_gains_no_time(limit: None) -> None:
    async def say(client: Client) -> bytes:
        client.writer.write(b"GET / HTTP/1.1\r\nx: ")
        return await trickle(client, b"x")

    assert talk(at_once, say)[:12] in (b"HTTP/1.1 408", b"")


def test_who_says_nothing_gets_no_answer(limit: None) -> None:
    """Browsers open connections that they may need later, and would take an answer for that of their next request."""
    assert talk(at_once, lambda client: client.reader.read()) == b""
    assert talk(at_once, lambda client: trickle(client, b"\n")) == b""


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nx: "], ids=["before it", "in it"])
def test_the_next_request_on_a_connection_has_a_limit_too(limit: None, begun: bytes) -> None:
    async def say(client: Client) -> bytes:
        client.writer.write(GET)
        await client.reader.readuntil(b"ok")
        client.writer.write(begun)
        return await trickle(client, b"x" if begun else b"\n")

    assert talk(at_once, say)[:12] in ((b"HTTP/1.1 408", b"") if begun else (b"",))


def test_the_rest_of_a_body_that_nobody_reads_has_a_limit_too(limit: None) -> None:
    async def say(client: Client) -> bytes:
        client.writer.write(POST)
        await client.reader.readuntil(b"ok")
        return await trickle(client, b"x")

    assert talk(at_once, say) == b"", "its request was answered"


def test_answers_and_bodies_may_take_longer_than_headers(limit: None) -> None:
    async def wait(client: Client) -> bytes:
        client.writer.write(GET)
        return await client.reader.readuntil(b"ok")

    async def upload(client: Client) -> bytes:
        client.writer.write(POST)
        for _ in range(10):
            await asyncio.sleep(LIMIT / 4)
            client.writer.write(b"x" * 100)
        return await client.reader.readuntil(b"ok")

    for app, say in ((slowly, wait), (after_the_body, upload)):
        assert talk(app, say).startswith(b"HTTP/1.1 200")


def test_no_time_runs_once_the_headers_are_complete() -> None:
    async def say(client: Client) -> bytes:
        for parts in ([GET], [GET[:5], GET[5:20], GET[20:]]):
            for part in parts:
                client.writer.write(part)
                await asyncio.sleep(0.01)
            told = await client.reader.readuntil(b"ok")
            (connection,) = client.connections
            assert connection._timer is None
        return told

    assert talk(at_once, say).startswith(b"HTTP/1.1 200")


async def in_pieces(client: Client, data: bytes) -> None:
    """So that the server reads them one by one."""
    for start in range(0, len(data), 8192):
        client.writer.write(data[start : start + 8192])
        await client.writer.drain()
        await asyncio.sleep(0.005)


def test_headers_without_end_are_refused_by_their_size() -> None:
    async def say(client: Client) -> bytes:
        told = asyncio.ensure_future(client.reader.read())
        await in_pieces(client, b"GET / HTTP/1.1\r\nx-request-id: mine\r\n")
        while not told.done():
            client.writer.write(b"x: " + b"y" * 4096 + b"\r\n")
            await asyncio.wait([told], timeout=0.005)
        return b"" if told.exception() else told.result()

    head, _, body = talk(at_once, say).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"connection: close" in head
    text = "the headers of a request must have at most 64 KiB"
    wanted = {"code": "headers_too_large", "message": text, "hint": None, "request_id": "mine"}
    assert json.loads(body)["error"] == wanted


def test_large_headers_and_larger_bodies_before_them_are_read() -> None:
    """What ends a body counts for no headers, even if it arrives together with the next request's first bytes."""
    size = HEADER_BYTES + 8192
    body = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (size, b"z" * size)

    async def say(client: Client) -> bytes:
        await in_pieces(client, GET[:-2] + b"x: " + b"y" * 60_000 + b"\r\n\r\n")
        first = await client.reader.readuntil(b"ok")
        client.writer.write(body + GET[:20])
        second = await client.reader.readuntil(b"ok")
        client.writer.write(GET[20:])
        return first + second + await client.reader.readuntil(b"ok")

    assert talk(after_the_body, say).count(b"HTTP/1.1 200") == 3


def test_the_service_counts_refusals(run: Path, tmp_path: Path, limit: None) -> None:
    assert command._SERVER["http"] is HeaderLimit
    with Served(run, tmp_path / "state") as served:
        with socket.create_connection(("127.0.0.1", served.options.port), timeout=PATIENCE) as slow:
            slow.sendall(b"GET /v1/info HTTP/1.1\r\n")
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        assert 'capsid_rejected_total{reason="headers_too_slow"} 1.0' in served.client.get("/metrics").text
