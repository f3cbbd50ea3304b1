"""What `serve.py` loads a service with: the command in a process, a light HTTP client, closed and open loops.

The client speaks just enough HTTP/1.1 over a kept connection; it shares the machine with the service and must cost
little.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 120.0
Ask = Callable[[int], tuple[str, str, Any]]


class Nursery:
    """A process that has loaded the libraries and forks services: each starts without loading them again."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _NURSERY]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, arguments: list[str], log: Path) -> Child:
        """`capsid` with these arguments, in a process group of its own."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([arguments, str(log)]) + "\n")
        self.process.stdin.flush()
        return Child(int(self.process.stdout.readline()))

    def end(self) -> None:
        """Stop it; services that run go on."""
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Child:
    """A process that somebody else started and reaps; the part of `Popen` that a service needs."""

    pid: int

    def poll(self) -> int | None:
        """None while it runs; its exit code is not known."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def send_signal(self, number: int) -> None:
        """Signal it."""
        os.kill(self.pid, number)

    def wait(self, patience: float) -> int:
        """Wait for its end."""
        end = time.monotonic() + patience
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", patience)
            time.sleep(0.01)
        return 0


_NURSERY = f"""
import json, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import _forked
import capsid.cli.serve, capsid.serve.app, capsid.serve.start
from capsid.cli.main import run
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.environ["OMP_NUM_THREADS"] = "1"

def serve(arguments):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return run(arguments)

for line in sys.stdin:
    arguments, log = json.loads(line)
    print(_forked.start(lambda: serve(arguments), log=log), flush=True)
"""


class Service:
    """`capsid serve` as a process of its own; with a nursery it starts sooner."""

    def __init__(self, run: Path, state: Path, *options: str, nursery: Nursery | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        arguments = ["serve", str(run), "--state", str(state), "--port", str(self.port), *options]
        log = state.with_name(f"{state.name}.log")
        self.process: subprocess.Popen[bytes] | Child
        if nursery is not None:
            self.process = nursery.start(arguments, log)
            return
        command, environment = [sys.executable, "-m", "capsid", *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(log, "a") as file:
            self.process = subprocess.Popen(command, env=environment, stderr=file, process_group=0)

    async def ready(self) -> Service:
        """Wait until it answers queries."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError):
                async with connected(self.port) as client:
                    if (await client.ask("GET", "/health/ready"))[0] == 200:
                        return self
            await asyncio.sleep(0.05)
        raise SystemExit("the service did not become ready; see its log")

    def processor_seconds(self) -> float:
        """Processor time of the service so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes of the service that stand in memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(number) if number == signal.SIGTERM else os.killpg(self.process.pid, number)
        return await asyncio.to_thread(self.process.wait, PATIENCE)


class Control:
    """A bare server in a process of its own that answers every request with the same bytes.

    What its probes take is what the machine takes; a service cannot be quicker.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROL], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def end(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.communicate()


_CONTROL = """
import asyncio

class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")

async def main():
    server = await asyncio.get_running_loop().create_server(Answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class Client:
    """One kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; a connection that ends in between raises."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
        kind = "content-type: application/json\r\n" if data else ""
        self.writer.write(f"{head}{kind}\r\n".encode() + data)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        answer = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(lines[0].split()[1]), headers, answer


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """A client for as long as the block lasts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@dataclass
class Outcome:
    """What a load met: answers by status, seconds of those that were served, and requests whose answer never came."""

    codes: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    elapsed: float = 0.0

    def add(self, other: Outcome) -> None:
        """Take up another load of the same kind."""
        self.codes += other.codes
        self.seconds += other.seconds
        self.lost += other.lost
        self.elapsed += other.elapsed

    @property
    def rate(self) -> float:
        """Served requests per second."""
        return self.codes[200] / self.elapsed if self.elapsed else 0.0

    def quantile(self, share: float) -> float:
        """Seconds that this share of the served requests took at most."""
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")

    def summary(self) -> dict[str, Any]:
        """As it stands in a result file."""
        return {
            "served_per_second": round(self.rate, 2),
            "codes": {str(code): count for code, count in sorted(self.codes.items())},
            "lost": self.lost,
            "p50_ms": round(1e3 * self.quantile(0.5), 2),
            "p99_ms": round(1e3 * self.quantile(0.99), 2),
        }


async def closed_loop(
    port: int, ask: Ask, *, clients: int, seconds: float, check: Callable[[bytes], None] | None = None
) -> Outcome:
    """Clients that each ask again as soon as they are answered."""
    out, start = Outcome(), time.monotonic()
    number = iter(range(10**9))

    async def run() -> None:
        async with connected(port) as client:
            while time.monotonic() - start < seconds:
                await _one(client, ask(next(number)), out, time.perf_counter(), check)

    await asyncio.gather(*(run() for _ in range(clients)))
    out.elapsed = time.monotonic() - start
    return out


@contextlib.asynccontextmanager
async def many_connected(port: int, count: int) -> AsyncIterator[list[Client]]:
    """Several clients; they are connected before the block begins, so that a load does not measure connecting."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(port)) for _ in range(count)]


async def open_loop(clients: list[Client], ask: Ask, *, rate: float, seconds: float) -> Outcome:
    """Requests at a constant rate, whether or not earlier ones were answered; time counts from when each was due."""
    out, start = Outcome(), time.perf_counter()
    due: asyncio.Queue[tuple[int, float] | None] = asyncio.Queue()

    async def run(client: Client) -> None:
        while (job := await due.get()) is not None:
            await _one(client, ask(job[0]), out, job[1], None)

    workers = [asyncio.create_task(run(client)) for client in clients]
    for number in range(int(rate * seconds)):
        at = start + number / rate
        await asyncio.sleep(max(at - time.perf_counter(), 0.0))
        due.put_nowait((number, at))
    for _ in workers:
        due.put_nowait(None)
    await asyncio.gather(*workers)
    out.elapsed = time.perf_counter() - start
    return out


async def _one(
    client: Client, request: tuple[str, str, Any], out: Outcome, since: float, check: Callable[[bytes], None] | None
) -> None:
    code, _, body = await client.ask(*request)
    out.codes[code] += 1
    if code == 200:
        out.seconds.append(time.perf_counter() - since)
        if check is not None:
            check(body)


def ask_by_document(port: int, cases: int) -> dict[str, Any]:
    """Requests that schemathesis makes, spread over all routes; what was answered, and what breaks the document."""
    import hypothesis
    import schemathesis

    url = f"http://127.0.0.1:{port}"
    operations = [found.ok() for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()]
    asked, failures = Counter[int](), []
    settings = hypothesis.settings(
        max_examples=-(-cases // len(operations)),
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def ask(case: schemathesis.Case) -> None:
        asked[case.call_and_validate(base_url=url).status_code] += 1

    # Routes without parameters have only a few cases, so the others are asked again with other seeds.
    for seed in itertools.count():
        for operation in operations:
            try:
                settings(hypothesis.seed(seed)(hypothesis.given(case=operation.as_strategy())(ask)))()
            except (Exception, BaseExceptionGroup) as error:
                failures.append(f"{operation.label}: {error}"[:500])
        if failures or asked.total() >= cases:
            break
    worst = sum(count for code, count in asked.items() if code >= 500)
    return {"codes": {str(c): n for c, n in sorted(asked.items())}, "failures": failures, "server_errors": worst}
