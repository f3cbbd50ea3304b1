"""Real servers for tests: in a thread of this process, or as the command in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from capsid.serve.app import create_app
from capsid.serve.options import ServeOptions
from capsid.serve.start import HeaderLimit

PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_ready(client: httpx.Client, alive: Any = lambda: True) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and alive():
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("the server did not become ready")


class Served:
    """A server in a thread; the same application, sockets and event loop as the command's."""

    def __init__(self, run: Path, state: Path | str, **options: Any) -> None:
        self.options = ServeOptions(run=str(run), state=str(state), port=free_port(), **options)
        self.app = create_app(self.options)
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=self.options.port,
            log_level="warning",
            loop="uvloop",
            http=HeaderLimit,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.url = f"http://127.0.0.1:{self.options.port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    @property
    def service(self) -> Any:
        return self.app.service

    def __enter__(self) -> Served:
        self.thread.start()
        until_ready(self.client, self.thread.is_alive)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server did not stop"

    def recommend(self, history: list[str], **wishes: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/recommend", json={"history": history, **wishes})
        assert answer.status_code == 200, answer.text
        return answer.json()


class Command:
    """`capsid serve` in a process group of its own."""

    def __init__(self, run: Path, state: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "capsid", "serve", str(run), "--state", str(state), "--port", str(self.port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*command, *arguments], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def __enter__(self) -> Command:
        until_ready(self.client, lambda: self.process.poll() is None)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)
