"""The ASGI application: routes, page, middleware, and the startup and shutdown of the service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import capsid
from capsid.errors import CapsidError
from capsid.serve.edge import (
    App,
    BodyLimit,
    Edge,
    Gate,
    Keys,
    Quick,
    RateLimit,
    Receive,
    Scope,
    Send,
    answer_refusal,
    internal,
)
from capsid.serve.errors import Refused, invalid, not_json, refused
from capsid.serve.metrics import Metrics
from capsid.serve.options import ServeOptions
from capsid.serve.routes import Routes
from capsid.serve.service import Service
from capsid.serve.start import METRICS

logger = logging.getLogger("capsid.serve")
PAGE = Path(__file__).parent / "page"
_CODES = {404: "not_found", 405: "method_not_allowed"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Asked for again each time, so that a new version of the package is seen at once; unchanged files are a 304.
    "cache-control": "no-cache",
}


class Page(StaticFiles):
    """The files of the explorer, which may load nothing from elsewhere."""

    async def get_response(self, path: str, scope: Any) -> Response:
        response: Response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


class Application:
    """The service as ASGI. Our own layers are outside the framework: what they answer does not pay for its layers."""

    def __init__(self, layers: App, api: FastAPI, service: Service) -> None:
        self._layers, self.api, self.service = layers, api, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._layers(scope, receive, send)


def create_app(options: ServeOptions | None = None) -> Application:
    """The application; worker processes take the options from their environment."""
    options = options or ServeOptions.from_environment()
    metrics = Metrics()
    service = Service(options, metrics)
    keys = Keys.read(options)

    def draining() -> bool:
        return service.draining

    limit, routes = RateLimit(options.rate_limit), Routes(service)
    api = _api(service, routes)
    quick = Quick(api, answers=routes.quick())
    inside = BodyLimit(quick, most=options.body_limit, draining=draining, drain=options.drain)
    layers: App = Gate(
        inside,
        keys=keys,
        limit=limit,
        metrics=metrics,
        draining=draining,
        admit=service.admit,
        origins=options.cors,
    )
    if options.cors:
        layers = CORSMiddleware(layers, allow_origins=options.cors, allow_methods=["*"], allow_headers=["*"])
    layers = Edge(layers, metrics=metrics, version=lambda: service.version, draining=draining)
    return Application(layers, api, service)


def _api(service: Service, routes: Routes) -> FastAPI:
    """The routes and the page."""
    api = FastAPI(
        title="capsid",
        version=capsid.__version__,
        summary="Recommendations from Semantic IDs, over a catalogue that can be edited while it serves.",
        docs_url=None,
        redoc_url=None,
        lifespan=lambda app: _life(service),
    )
    for kind in (Refused, CapsidError, HTTPException, RequestValidationError, Exception):
        api.add_exception_handler(kind, _on_error)
    api.include_router(routes.router())
    # Not mounted at the root: it would catch every request whose method does not match a route.
    api.mount("/page", Page(directory=PAGE), name="page")
    api.add_api_route("/", _front, include_in_schema=False)
    return api


async def _front() -> Response:
    """The explorer; its other files are below /page."""
    return FileResponse(PAGE / "index.html", headers=_HEADERS)


@contextlib.asynccontextmanager
async def _life(service: Service) -> AsyncIterator[dict[str, Any]]:
    _drain_on_sigterm(service)
    service.start(_fail)
    yield {METRICS: service.metrics}
    await service.stop()


def _drain_on_sigterm(service: Service) -> None:
    """Refuse new requests at once, and let the server close its port a moment later."""
    server_stops = signal.getsignal(signal.SIGTERM)
    # Only the main thread can handle signals; a server in another thread is stopped another way.
    if not callable(server_stops) or threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def drain(number: int, frame: Any) -> None:
        service.draining = True
        loop.call_soon_threadsafe(loop.call_later, service.options.drain, server_stops, number, frame)

    signal.signal(signal.SIGTERM, drain)


def _fail(error: BaseException) -> None:
    """End the process if the run cannot be loaded, with the same messages as the command line."""
    if isinstance(error, CapsidError):
        logger.error("error: %s", error.message)
        if error.hint:
            logger.error("hint: %s", error.hint)
    else:
        logger.error("the run could not be loaded", exc_info=error)
    sys.stderr.flush()
    os._exit(3)


async def _on_error(request: Request, error: Exception) -> Response:
    return _Refusal(_as_refused(error))


def _as_refused(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, CapsidError):
        return refused(error)
    if isinstance(error, RequestValidationError):
        # The framework prefixes each location with its source (body, query, path).
        return invalid([{**p, "loc": p["loc"][1:]} for p in error.errors()])
    if not isinstance(error, HTTPException):
        return internal()
    if error.status_code == 400:
        # The framework raises it only for bodies that it cannot parse.
        return not_json()
    code = _CODES.get(error.status_code, f"http_{error.status_code}")
    return Refused(error.status_code, code, str(error.detail), headers=dict(error.headers or {}))


class _Refusal(Response):
    """The response to a refused request."""

    def __init__(self, error: Refused) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await answer_refusal(scope, send, self._error)
