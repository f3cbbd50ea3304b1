"""Starts the service: one process, or several that share a port, a mapped run and a journal."""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.main import STARTUP_FAILURE

from capsid.serve.closing import PatientServer
from capsid.serve.edge import Keys
from capsid.serve.headers import HeaderLimit
from capsid.serve.journal import Journal
from capsid.serve.metrics import SHARED
from capsid.serve.options import ENVIRONMENT, ServeOptions
from capsid.serve.peers import has_joined
from capsid.serve.workers import Workers

logger = logging.getLogger("capsid.serve")
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {name: {"handlers": ["stderr"], "level": "INFO", "propagate": False} for name in ("uvicorn", "capsid")},
}
_APP = "capsid.serve.app:create_app"
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
            sys.exit(_serve_by_workers(options.workers, settings, Path(folder)))
        server = PatientServer(uvicorn.Config(_APP, **settings))
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def _serve_by_workers(count: int, settings: dict[str, Any], folder: Path) -> int:
    """Serve from several processes; returns the exit code."""
    port = uvicorn.Config(_APP, **settings).bind_socket()
    return Workers(partial(_serve_at, settings), port, count, partial(has_joined, folder)).run()


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
