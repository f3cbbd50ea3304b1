"""The command itself: drains on SIGTERM, loses no acknowledged edit when killed, and its workers agree."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Command, free_port
from small_recipes import world

ITEMS = list(world().items)


def run_clients(url: str, count: int, ask: Any) -> tuple[list[threading.Thread], threading.Event]:
    stop = threading.Event()

    def loop(number: int) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            while not stop.is_set() and ask(client, number):
                pass

    threads = [threading.Thread(target=loop, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads, stop


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_under_load_loses_no_accepted_request(run: Path, tmp_path: Path, workers: str) -> None:
    codes: list[int] = []
    broken: list[str] = []

    def ask(client: httpx.Client, number: int) -> bool:
        try:
            answer = client.post("/v1/recommend", json={"history": ITEMS[number : number + 3]})
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return False  # the port is closed: nothing was accepted
        except httpx.TransportError as error:
            broken.append(repr(error))
            return False
        codes.append(answer.status_code)
        return answer.status_code == 200  # who is told to come back later does

    with Command(run, tmp_path / "state", "--workers", workers) as server:
        threads, stop = run_clients(server.url, 6, ask)
        while len(codes) < 50:
            time.sleep(0.01)
        assert server.terminate() in (0, -15)
        stop.set()
        for thread in threads:
            thread.join(30)
    assert broken == []
    assert set(codes) <= {200, 503}
    assert codes.count(200) >= 50


def test_a_kill_loses_no_acknowledged_edit(run: Path, tmp_path: Path) -> None:
    retired: list[str] = []
    for _ in range(2):
        with Command(run, tmp_path / "state") as server:
            known = server.client.get("/v1/info").json()
            assert known["version"] == 1 + len(retired) or known["version"] == 2 + len(retired)
            found = server.client.post("/v1/recommend", json={"history": [], "k": 100}).json()
            assert not set(retired) & {i["item"] for i in found["items"]}
            if known["version"] == 2 + len(retired):
                retired.append(ITEMS[len(retired)])  # made, but killed before it was told

            def edit(client: httpx.Client, _: int) -> bool:
                item = ITEMS[len(retired)]
                try:
                    if client.delete(f"/v1/items/{item}").status_code == 200:
                        retired.append(item)
                except httpx.TransportError:
                    return False
                return len(retired) < 60

            before = len(retired)
            threads, stop = run_clients(server.url, 1, edit)
            while len(retired) < before + 4:
                time.sleep(0.001)
            server.kill()
            stop.set()
            for thread in threads:
                thread.join(30)
    with Command(run, tmp_path / "state") as server:
        found = server.client.post("/v1/recommend", json={"history": [], "k": 100}).json()
        assert not set(retired) & {i["item"] for i in found["items"]}


def test_workers_agree_after_every_edit(run: Path, tmp_path: Path) -> None:
    with Command(run, tmp_path / "state", "--workers", "2") as server:
        # The service was ready only when both workers were, so no connection meets one that still loads.
        for number in range(6):
            item = ITEMS[number]
            with httpx.Client(base_url=server.url, timeout=30) as client:
                edited = client.delete(f"/v1/items/{item}")
                assert edited.status_code == 200, edited.text
                assert edited.json()["version"] == 2 + number
            for _ in range(6):
                # A connection of its own each: the system hands them to either worker.
                with httpx.Client(base_url=server.url, timeout=30) as client:
                    given = client.post("/v1/recommend", json={"history": ITEMS[20:23], "k": 100})
                assert given.status_code == 200, given.text
                answer = given.json()
                assert answer["version"] == 2 + number
                assert not set(ITEMS[: number + 1]) & {i["item"] for i in answer["items"]}
        text = server.client.get("/metrics").text
        line = next(
            t for t in text.splitlines() if t.startswith('capsid_requests_total{code="200",route="/v1/recommend"')
        )
        assert float(line.rpartition(" ")[2]) == 36, "the numbers of both workers are added up"
        assert server.terminate() == 0


def workers_of(server: Command) -> list[int]:
    """The processes that answer, not the one that looks after them (nor multiprocessing's own)."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.process.pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def wait_for(condition: Any) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_a_worker_that_cannot_load_is_tried_again_while_another_serves(run: Path, tmp_path: Path) -> None:
    copy, away = tmp_path / "run", tmp_path / "away"
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
    with Command(copy, tmp_path / "state", "--workers", "2") as server:
        copy.rename(away)
        killed, healthy = workers_of(server)
        os.kill(killed, signal.SIGKILL)
        assert wait_for(lambda: len(set(workers_of(server)) - {killed, healthy}) == 1)
        (failing,) = set(workers_of(server)) - {killed, healthy}
        assert wait_for(lambda: failing not in workers_of(server)), "it cannot load"
        away.rename(copy)
        assert wait_for(lambda: len(set(workers_of(server)) - {killed, healthy, failing}) == 1), "it is tried again"
        assert healthy in workers_of(server)
        assert server.process.poll() is None
        assert server.terminate() == 0


def test_workers_end_with_their_parent(run: Path, tmp_path: Path) -> None:
    with Command(run, tmp_path / "state", "--workers", "2") as server:
        workers = workers_of(server)
        assert len(workers) == 2
        server.process.kill()
        assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_explore_opens_the_page_when_it_is_ready(run: Path, tmp_path: Path) -> None:
    port, seen = free_port(), tmp_path / "seen"
    script = tmp_path / "browser.py"
    script.write_text(
        f"import sys, urllib.request\nopen({str(seen)!r}, 'wb').write(urllib.request.urlopen(sys.argv[1]).read())"
    )
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
    environment = {**os.environ, "BROWSER": f"{sys.executable} {script} %s"}
    command = [sys.executable, "-m", "capsid", "explore", str(copy), "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and not (seen.exists() and seen.stat().st_size):
            time.sleep(0.05)
        assert "capsid" in seen.read_text()
    finally:
        process.terminate()
        process.wait(60)


def test_a_run_that_cannot_be_served_is_told(run: Path, tmp_path: Path) -> None:
    def answer(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "capsid", "serve", *arguments], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stderr

    code, text = answer(str(tmp_path / "nothing"))
    assert (code, "error: " in text, "hint: " in text) == (1, True, True)
    code, text = answer(str(run), "--host", "0.0.0.0")
    assert code == 2
    assert "error: --host must be a loopback address without an API key, got 0.0.0.0" in text
    damaged = tmp_path / "run"
    subprocess.run(["cp", "-r", str(run), str(damaged)], check=True)
    (damaged / "generator.safetensors").write_bytes(b"x")
    for workers in ("1", "2"):
        code, text = answer(str(damaged), "--port", "0", "--workers", workers)
        assert code == 3
        assert "generator.safetensors was changed" in text
