"""Middleware for every request: request id, keys, limits, draining, metrics, and one format for errors. Pure ASGI.

Two layers, so that pages of allowed origins can also read refusals: `Edge` is outermost, `Gate` is inside CORS.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import random
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsid.errors import ArtifactError, ConfigError
from capsid.serve.errors import Refused, envelope, too_many
from capsid.serve.metrics import Metrics
from capsid.serve.options import ServeOptions

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("capsid.serve")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Read-only routes that use POST, because a history does not fit into a URL.
_QUESTIONS = frozenset({"/v1/recommend", "/v1/recommend/batch", "/v1/explain", "/v1/compare"})
# The page itself holds no data; it asks for the key and sends it with its requests.
_OPEN = ("/health/", "/page/")
# Routes whose paths are names in the metrics even if a layer before the router answers.
_NAMED = _QUESTIONS | {"/health/live", "/health/ready"}
# Without an API key, only these host names are served, so that no foreign page gets in by DNS rebinding.
_PORT = re.compile(r":\d+$")
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Seconds in which a body has to arrive, and seconds between two looks whether the service stops meanwhile.
BODY_SECONDS, _LOOK = 30.0, 0.2
VERSION, REQUEST = "capsid.version", "capsid.request"


@dataclass(frozen=True)
class Keys:
    """`api` allows everything but edits, `admin` everything; empty: no key needed."""

    api: str = ""
    admin: str = ""

    @classmethod
    def read(cls, options: ServeOptions) -> Keys:
        return cls(
            read_key(options.api_key_file, "CAPSID_API_KEY"), read_key(options.admin_key_file, "CAPSID_ADMIN_KEY")
        )

    def check(self, method: str, path: str, given: str) -> bool:
        """Refuse a request without the right key; returns whether it has one. Keys are compared in constant time."""
        if _same(given, self.admin):
            return True
        known = _same(given, self.api)
        if path == "/" or path.startswith(_OPEN) or not (self.api or self.admin):
            return known
        if _is_edit(method, path):
            if not known:
                raise _unauthorized()
            hint = "send the admin key" if self.admin else "start the service with --admin-key-file"
            raise Refused(403, "forbidden", "changes to the catalogue need the admin key", hint=hint)
        if self.api and not known:
            raise _unauthorized()
        return known


def _is_edit(method: str, path: str) -> bool:
    return method in _WRITES and path not in _QUESTIONS


def _unauthorized() -> Refused:
    return Refused(
        401,
        "unauthorized",
        "the key is missing or wrong",
        hint="send the header `Authorization: Bearer KEY`",
        headers={"www-authenticate": "Bearer"},
    )


def _same(given: str, key: str) -> bool:
    return bool(key) and hmac.compare_digest(given.encode(), key.encode())


def read_key(file: str, variable: str) -> str:
    """The key: the first line of a file, or of the environment variable; empty without either."""
    text, source = os.environ.get(variable, ""), file or variable
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"the key file {file} cannot be read: {error}", hint="check its path") from None
    elif not text:
        return ""
    key = next(iter(text.splitlines()), "").strip()
    if len(key) < 8:
        message = f"the key in {source} must have at least 8 characters, got {len(key)}"
        raise ConfigError(message, hint="put a longer key into the first line")
    # Not shown but counted: a part of a key does not belong into a log.
    wrong = next((place for place, letter in enumerate(key, 1) if not " " <= letter <= "~"), None)
    if wrong is not None:
        message = f"the key in {source} must have printable ASCII characters only, got another at place {wrong}"
        raise ConfigError(message, hint="a header cannot carry others; `openssl rand -hex 32` makes a key")
    return key


class RateLimit:
    """A token bucket per caller, which holds at most one second's worth of requests."""

    def __init__(self, per_second: float, *, callers: int = 10_000) -> None:
        self._rate, self._callers = per_second, callers
        self._room = max(per_second, 1.0)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float) -> None:
        """Let a request through, or refuse it."""
        if not self._rate:
            return
        left, since = self._buckets.pop(caller, (self._room, now))
        left = min(self._room, left + (now - since) * self._rate)
        allowed = left >= 1.0
        self._buckets[caller] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > self._callers:
            self._buckets.popitem(last=False)
        if not allowed:
            raise too_many("rate_limited", f"more than {self._rate:g} requests per second", (1.0 - left) / self._rate)


class Edge:
    """Gives each request an id and each answer its headers, and counts both."""

    def __init__(self, app: App, *, metrics: Metrics, version: Callable[[], int], draining: Callable[[], bool]) -> None:
        self._app, self._metrics, self._version, self._draining = app, metrics, version, draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, code, seconds = time.perf_counter(), 500, None
        name = scope[REQUEST] = request_id(scope)
        began = ended = False

        async def tell(message: Message) -> None:
            nonlocal code, began, ended, seconds
            if message["type"] == "http.response.start":
                began, code = True, message["status"]
                # Not at the end: a stream of events lasts as long as its client likes.
                seconds = time.perf_counter() - start
                headers = message["headers"] = list(message.get("headers", ()))
                version = scope.get(VERSION) or self._version()
                headers += [(b"x-request-id", name.encode()), (b"x-catalogue-version", str(version).encode())]
                if self._draining():
                    headers.append((b"connection", b"close"))
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Refused as refusal:
            await answer_refusal(scope, tell, refusal)
        except Exception:
            logger.exception("request %s failed", name)
            if not began:
                await answer_refusal(scope, tell, internal())
            elif not ended:
                raise
        finally:
            path = scope["path"]
            route = path if path in _NAMED else getattr(scope.get("route"), "path_format", "other")
            self._metrics.request(route, code, time.perf_counter() - start if seconds is None else seconds)


class Gate:
    """Refuses requests without a key, over the rate limit, from foreign names or pages, or while the service stops.

    It also refuses queries that could not be queued (`admit`), before their bodies are read: at twice the peak, every
    second request is refused, and refusing must cost next to nothing.
    """

    def __init__(
        self,
        app: App,
        *,
        keys: Keys,
        limit: RateLimit,
        metrics: Metrics,
        draining: Callable[[], bool],
        admit: Callable[[], None],
        origins: Sequence[str] = (),
    ) -> None:
        self._app, self._keys, self._limit, self._metrics, self._draining = app, keys, limit, metrics, draining
        self._admit, self._origins = admit, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except Refused as refusal:
                self._metrics.dropped(refusal.code)
                await answer_refusal(scope, send, refusal)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1:
            raise Refused(400, "invalid_request", f"a request must have one host header, got {hosts}")
        health = path.startswith("/health/")
        if self._draining() and not health:
            raise _stopping()
        if path.endswith("\n"):
            # The router would drop it: `$` in its patterns also matches before a newline at the end.
            raise Refused(404, "not_found", "Not Found")
        if not self._keys.api:
            _check_host(headers)
        kind, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        given = given.strip() if kind.lower() == "bearer" else ""
        known = self._keys.check(method, path, given)
        if not known and _is_edit(method, path):
            self._check_page(headers)
        if not health:
            # A key that is not ours names nobody: a caller could invent one for each request.
            caller = given if known else (scope.get("client") or ("", 0))[0]
            self._limit.take(caller, time.monotonic())
        if path in _QUESTIONS and method == "POST":
            self._admit()

    def _check_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse an edit that a foreign page asks for. Browsers send edits without a body before asking for leave."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin in self._origins or "*" in self._origins:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        foreign = origin.partition("://")[2] != host if origin else headers.get(b"sec-fetch-site") == b"cross-site"
        if foreign:
            got = repr(origin[:100]) if origin else "sec-fetch-site: cross-site"
            message = f"without a key pages of other origins may not change the catalogue, got {got}"
            raise Refused(403, "forbidden", message, hint="allow the page with --cors-origin, or set an admin key")


def _check_host(headers: Mapping[bytes, bytes]) -> None:
    host = headers.get(b"host", b"").decode("latin-1")
    if _PORT.sub("", host) not in _LOCAL:
        raise Refused(
            403,
            "forbidden",
            f"without an API key only this machine may connect, got host {host[:100]!r}",
            hint="set an API key",
        )


class BodyLimit:
    """Refuses bodies that are too large, by their declared length or as soon as they exceed the limit, and slow ones.

    A body has `BODY_SECONDS` to arrive. While the service stops it has only `drain` seconds left, so that one client
    that does not finish cannot hold up the end.
    """

    def __init__(self, app: App, *, most: int, draining: Callable[[], bool], drain: float) -> None:
        self._app, self._most, self._draining, self._drain = app, most, draining, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._most:
            await answer_refusal(scope, send, self._too_large())
            return
        size, complete = 0, False
        latest = time.monotonic() + BODY_SECONDS

        async def counted() -> Message:
            nonlocal size, complete
            # After the body, the only message left is that the client has gone, for which there is no limit.
            message = await (receive() if complete else self._in_time(receive, latest))
            if message["type"] == "http.disconnect" and not complete:
                # Nobody reads it, but it is counted as what it is.
                raise Refused(499, "client_gone", "the client closed the connection before its body was complete")
            complete = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        await self._app(scope, counted, send)

    async def _in_time(self, receive: Receive, latest: float) -> Message:
        """The next part of a body. Looks up now and then, whether the service has begun to stop."""
        stopping = False
        while True:
            if self._draining() and not stopping:
                stopping, latest = True, min(latest, time.monotonic() + self._drain)
            left = latest - time.monotonic()
            try:
                async with asyncio.timeout(min(left, _LOOK)):
                    return await receive()
            except TimeoutError:
                if time.monotonic() >= latest:
                    text = f"a body must arrive within {BODY_SECONDS:g} s"
                    slow = Refused(408, "body_too_slow", text, headers={"connection": "close"})
                    raise _stopping() if stopping else slow from None

    def _too_large(self) -> Refused:
        text = f"a body must have at most {self._most} bytes"
        return Refused(413, "body_too_large", text, headers={"connection": "close"})


def _stopping() -> Refused:
    return Refused(503, "draining", "the service is stopping", headers={"retry-after": "1"})


class Quick:
    """Answers the busiest routes without the framework, whose layers take most of the time of a cheap answer.

    The framework has the same routes and documents them.
    """

    def __init__(self, app: App, *, answers: Mapping[tuple[str, str], App]) -> None:
        self._app, self._answers = app, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answers.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)


async def answer_refusal(scope: Scope, send: Send, refusal: Refused) -> None:
    """Send an error."""
    headers, body = refusal_response(refusal, scope[REQUEST])
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusal_response(refusal: Refused, name: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the body of an error; `name` is the id of the request."""
    body = json.dumps(envelope(refusal.code, refusal.message, refusal.hint, name)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(refusal.headers or {})}
    return [(key.encode(), value.encode("latin-1", "replace")) for key, value in headers.items()], body


def internal() -> Refused:
    """The answer where the service itself failed."""
    return Refused(500, "internal", "internal error; see the log of the service")


def request_id(scope: Mapping[str, Any]) -> str:
    """The id that the client has given to its request, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return bytes(value).decode()
    # Not from `secrets`: a system call releases the interpreter lock, and the model thread then holds it for a while.
    return f"{random.getrandbits(64):016x}"
