"""What stands behind standard output and error: control characters in data, full disks, closed streams, plain ASCII."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_world import capsid, settings

NASTY = "Amélie 東 \x1b[2J\x1b[31mred\x07\r\x9b5Aup\u202eevil\nsecond\tline"


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A shop whose titles and ids hold control characters, and a run of it."""
    shop = tmp_path_factory.mktemp("nasty") / "shop"
    shop.mkdir()
    ids = [f"i{n}\x1b[1m\x07" for n in range(12)]
    lines = [{"item_id": i, "title": f"{NASTY} {n % 3}", "brand": NASTY} for n, i in enumerate(ids)]
    (shop / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    users = [f"u{u}\x1b[1m {' '.join(ids[(u + step) % 12] for step in range(6))}\n" for u in range(24)]
    (shop / "sequences.txt").write_text("".join(users))
    run = shop.parent / "run"
    small = settings("tokenizer.codebooks=3,3", "encoder=hashing")
    answer = capsid("fit", "rq-kmeans", "--data", shop, "--out", run, *small)
    assert answer.code == 0, answer.err
    return shop, run


def test_titles_and_ids_never_reach_the_terminal_raw(nasty: tuple[Path, Path], tmp_path: Path) -> None:
    shop, run = nasty
    first = "i0\x1b[1m\x07"
    commands = [
        ["recommend", run, "--history", first],
        ["recommend", run, "--history", first, "--json"],
        ["recommend", run, "--history", "i0\x1b[1m"],
        ["recommend", run, "--history", ""],
        ["tokenizer", "inspect", run, first],
        ["tokenizer", "inspect", run, first, "--json"],
        ["tokenizer", "inspect", run, "\x1b[31mno"],
        ["tokenizer", "report", run],
        ["tokenizer", "export", run, "--out", "-"],
        ["predict", run, "--out", "-"],
        ["evaluate", run],
        ["data", "describe", shop],
        ["data", "check", shop],
        ["data", "check", tmp_path / "\x1b[31mno"],
        ["fit", "\x1b[31mno", "--data", shop, "--out", tmp_path / "x"],
        ["fit", "sasrec", "--data", shop, "--out", tmp_path / "x", "--set", "generator.\x1b[31mno=1"],
        ["\x1b[31mno"],
        ["--\x1b[31mno"],
    ]
    for command in commands:
        answer = capsid(*command)
        for text in (answer.out, answer.err):
            assert not set(text) & set("\x1b\x07\r\x9b\u202e"), (command, text)
    assert "\\x1b[2J\\x1b[31mred\\x07" in capsid("recommend", run, "--history", first).out
    assert json.loads(capsid("recommend", run, "--history", first, "--json").out)["history"] == [first]


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "capsid", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})},  # type: ignore[dict-item]
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("verb", [["data", "list"], ["predict"]])
def test_a_full_disk_behind_standard_output(verb: list[object], fitted: Path) -> None:
    more = [fitted, "--out", "-"] if verb == ["predict"] else []
    with open("/dev/full", "w") as full:
        process = start(*verb, *more, stdout=full, stderr=subprocess.PIPE)
        err = process.communicate()[1].decode()
    assert process.returncode == 1
    assert "error: could not write to standard output: No space left on device" in err
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_a_closed_standard_output() -> None:
    process = start("data", "list", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    err = process.communicate()[1].decode()
    assert (process.returncode, "Traceback" in err) == (1, False)
    assert "error: could not write to standard output" in err


def test_plain_ascii(nasty: tuple[Path, Path]) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    unknown = start("tokenizer", "inspect", nasty[1], "Amélie 東", **pipes, env=ascii_only)
    err = unknown.communicate()[1].decode("ascii")
    assert (unknown.returncode, "error: there is no item 'Am" in err) == (1, True)
    shown = start("recommend", nasty[1], "--history", "i0\x1b[1m\x07", **pipes, env=ascii_only)
    out = shown.communicate()[0].decode("ascii")
    assert (shown.returncode, "Am\\xe9lie \\u6771" in out) == (0, True)


def test_a_closed_standard_error_does_not_end_a_fit(shop: Path, fitted: Path, tmp_path: Path) -> None:
    command = ["fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", *settings()]
    closed = start(*command, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    out = closed.communicate()[0].decode()
    assert closed.returncode == 0
    assert f"run: {tmp_path / 'run'}" in out
    assert (tmp_path / "run" / "manifest.json").exists()
    read, write = os.pipe()
    os.close(read)
    broken = start(*command, "--force", stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    broken.communicate()
    assert broken.returncode == 0
