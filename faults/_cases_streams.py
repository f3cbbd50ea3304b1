"""Standard output full, closed or ASCII, a closed standard error, Ctrl-C: `capsid` in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from _cases import Answer, Case, World

GROUP = "streams"
SECONDS = 120
COMMANDS = {
    "list": lambda w: ["data", "list"],
    "recommend": lambda w: ["recommend", w.run, "--history", "i0", "--json"],
    "export": lambda w: ["tokenizer", "export", w.run, "--out", "-"],
}


def cases() -> Iterator[Case]:
    """All of them; one process each."""
    for name, command in COMMANDS.items():
        yield Case(
            GROUP, f"{name} to a full disk", lambda w, c=command: _to(w, c(w), "/dev/full"), says="standard output"
        )
        yield Case(
            GROUP, f"{name} to a closed output", lambda w, c=command: _closed(w, c(w), 1), says="standard output"
        )
        yield Case(GROUP, f"{name} to ASCII", lambda w, c=command: _ascii(w, c(w)), expected="success")
        yield Case(GROUP, f"{name} to a reader that leaves", lambda w, c=command: _pipe(w, c(w)), expected="success")
    fit = lambda w: ["fit", "popularity", "--data", w.shop, "--out", w.fresh() / "new"]  # noqa: E731
    yield Case(GROUP, "fit with a closed error stream", lambda w: _closed(w, fit(w), 2), expected="success")
    yield Case(
        GROUP, "fit with a full error stream", lambda w: _to(w, fit(w), "/dev/full", stream="2"), expected="success"
    )
    yield Case(
        GROUP,
        "an odd address",
        lambda w: _start(w, ["data", "describe", "amazon-beauty"], CAPSID_AMAZON_URL="nonsense"),
    )
    for wait in (0.05, 0.2, 0.5, 1.0, 1.5):
        act = lambda w, s=wait: _interrupted(w, s)  # noqa: E731
        yield Case(GROUP, f"Ctrl-C after {wait} s", act, expected="success")


def _start(world: World, command: list[object], shell: str = "", **environment: str) -> Answer:
    arguments = [sys.executable, "-m", "capsid", *map(str, command)]
    if shell:
        arguments = ["sh", "-c", f'"$@" {shell}', "sh", *arguments]
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(arguments, env=given, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    return Answer(done.returncode, done.stdout, done.stderr)


def _to(world: World, command: list[object], file: str, stream: str = "1") -> Answer:
    return _start(world, command, f"{stream}>{file}")


def _closed(world: World, command: list[object], stream: int) -> Answer:
    return _start(world, command, f"{stream}>&-")


def _ascii(world: World, command: list[object]) -> Answer:
    return _start(world, command, PYTHONIOENCODING="ascii", LC_ALL="C")


def _pipe(world: World, command: list[object]) -> Answer:
    return _start(world, command, "| head -c 1")


def _interrupted(world: World, seconds: float) -> Answer:
    """Ctrl-C ends with one line and code 130, wherever it comes; before Python runs our code, Python's own way."""
    command: Any = [sys.executable, "-m", "capsid", "recommend", str(world.run), "--history", "i0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    # A signal in the first moments ends the interpreter before `capsid` is imported: that is not ours to catch.
    early = process.returncode != 0 and "capsid" not in err
    good = process.returncode in (0, 130) or early
    return Answer(0, out, "" if early else err) if good else Answer(process.returncode, out, err)
