"""Every engine writes the same bytes, also after kills; what cannot be done is one sentence."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capsid.encode.large_vectors import open_vectors
from capsid.errors import ArtifactError, CapsidError, ConfigError
from capsid.progress import silent
from capsid.scale.engine import Engine, Here, Processes, Ray, engine_named, run_job
from capsid.scale.jobs import EncodeJob, ShardError, WaitJob, job_text, run_shard
from capsid.scale.shards import ShardsDone, shard_lock
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans

ROWS, WIDTH, PER_SHARD = 300, 8, 25
SHARDS = ROWS // PER_SHARD
HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer without torch, so that workers start quickly, and vectors with ids."""
    folder = tmp_path_factory.mktemp("world")
    np.save(folder / "v.npy", np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32))
    (folder / "v.ids.txt").write_text("".join(f"item-{n}\n" for n in range(ROWS)))
    tokenizer = ItemTokenizer(tokenizer=ResidualKMeans(codebooks=(4, 4)))
    tokenizer.fit(open_vectors(folder / "v.npy").table()).save_pretrained(folder / "tok")
    return folder


def encode_job(world: Path, out: Path, per_shard: int = PER_SHARD) -> EncodeJob:
    return EncodeJob.prepare(world / "tok", world / "v.npy", out, per_shard, silent)


def run(world: Path, out: Path, engine: Engine) -> ShardsDone:
    return run_job(encode_job(world, out), engine)[1]


@pytest.fixture(scope="module")
def expected(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("here") / "codes"
    assert run(world, out, Here()) == ShardsDone(SHARDS, SHARDS, 0, ROWS, True)
    return bytes_of(out)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if not p.name.startswith(".")}


def command(world: Path, out: Path, engine: str, per_shard: int = PER_SHARD) -> list[str]:
    options = [
        "--vectors",
        world / "v.npy",
        "--out",
        out,
        "--shard-rows",
        per_shard,
        "--engine",
        engine,
        "--workers",
        2,
    ]
    return [sys.executable, "-m", "capsid", "vectors", "encode", *map(str, [world / "tok", *options])]


def children_of(pid: int, holding: str) -> list[int]:
    """Descendants of a process whose command line holds a text."""
    parents: dict[int, int] = {}
    named: dict[int, bytes] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                named[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            except (OSError, ValueError, IndexError):
                continue
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        below = [child for child, its in parents.items() if its == parent]
        waiting += below
        found += [child for child in below if holding.encode() in named.get(child, b"")]
    return found


def wait_for(ready: Callable[[], object], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


# --- the same bytes everywhere


def test_processes_write_the_bytes_of_one(world: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    done = run(world, tmp_path / "codes", Processes(2))
    assert done == ShardsDone(SHARDS, SHARDS, 0, ROWS, True)
    assert bytes_of(tmp_path / "codes") == expected


def test_finished_shards_are_not_done_again(world: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "codes"
    run(world, out, Here())
    times = {p.name: p.stat().st_mtime_ns for p in out.glob("*.parquet")}
    (out / "codes-00003.parquet").unlink()
    cut = out / "codes-00005.parquet"
    cut.write_bytes(cut.read_bytes()[:-9])
    done = run(world, out, Processes(1))
    assert (done.written, done.kept, done.complete) == (2, SHARDS - 2, True)
    again = {p.name: p.stat().st_mtime_ns for p in out.glob("*.parquet")}
    assert [n for n in times if times[n] != again[n]] == ["codes-00003.parquet", "codes-00005.parquet"]
    assert bytes_of(out) == expected


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_worker_costs_its_shard(tmp_path: Path) -> None:
    """The workers wait in their shards, so that the kill hits one at work."""
    job = WaitJob(out=str(tmp_path / "out"), shards=4, seconds=0.4)
    killed, done = [], []
    for shard in Processes(2).map(job_text(job), range(4)):
        if not killed:
            killed = children_of(os.getpid(), "capsid.scale.worker")[:1]
            os.kill(killed[0], signal.SIGKILL)
        done.append(shard)
    assert sorted(shard.number for shard in done) == [0, 1, 2, 3]
    # A kill may hit a worker that has written its shard and not yet told so. Then the shard is found, not rewritten.
    assert sum(not shard.written for shard in done) <= 1
    assert sorted(bytes_of(tmp_path / "out")) == [f"wait-0000{n}.parquet" for n in range(4)]


def test_a_worker_that_always_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from capsid.scale import engine

    monkeypatch.setattr(engine, "COMMAND", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    job = job_text(WaitJob(out=str(tmp_path), shards=2, seconds=0))
    with pytest.raises(ShardError, match=r"worker of shard 0 was killed by SIGKILL, 3 times in a row"):
        list(Processes(1).map(job, range(2)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_driver_is_resumed(world: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "codes"
    driver = subprocess.Popen(command(world, out, "processes"), stderr=subprocess.PIPE)
    wait_for(lambda: len(list(out.glob("*.parquet"))) >= 2 or driver.poll() is not None)
    workers = children_of(driver.pid, "capsid.scale.worker")
    driver.kill()
    # Workers write to the same standard error, so this waits for them too.
    assert b"Traceback" not in driver.communicate()[1], "workers end without a complaint"
    # Workers end by themselves, after the shard they are at.
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    before = {p.name: p.stat().st_mtime_ns for p in out.glob("*.parquet")}
    assert len(before) >= 2
    done = run(world, out, Here())
    assert (done.kept, done.complete) == (len(before), True)
    assert {n: (out / n).stat().st_mtime_ns for n in before} == before
    assert bytes_of(out) == expected


# --- Ray, for real


@pytest.fixture(scope="module")
def cluster() -> None:
    """One small cluster for all tests, as a user's own would be."""
    pytest.importorskip("ray")
    from capsid.scale.engine import RayError, connected

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(connected(2, None))
        except RayError as error:
            if "timed out during startup" not in error.message:
                raise
            pytest.skip("this machine is too busy for Ray to start")
        yield


def test_ray_writes_the_bytes_of_one(cluster: None, world: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    assert run(world, tmp_path / "codes", Ray(2)) == ShardsDone(SHARDS, SHARDS, 0, ROWS, True)
    assert bytes_of(tmp_path / "codes") == expected


def test_a_killed_ray_worker_costs_its_shard(cluster: None, tmp_path: Path) -> None:
    job = WaitJob(out=str(tmp_path / "out"), shards=6, seconds=0.5)
    killed: list[int] = []

    def kill_one() -> bool:
        # A worker carries the name of its task only while it runs it, so there may be none at this moment.
        with contextlib.suppress(ProcessLookupError):
            for pid in children_of(os.getpid(), "ray::run_shard")[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return bool(killed)

    for done in Ray(2).map(job_text(job), range(6)):
        if not killed:
            wait_for(kill_one, seconds=30)
        assert done.number < 6
    assert killed
    assert len(bytes_of(tmp_path / "out")) == 6


def test_errors_come_through_ray(cluster: None, tmp_path: Path) -> None:
    missing = EncodeJob(tokenizer=str(tmp_path / "gone"), key="", vectors="v.npy", ids="v", out="o", rows_per_shard=1)
    with pytest.raises(ShardError, match=r"there is no file v.npy"):
        list(Ray(1).map(job_text(missing), [0]))


@pytest.mark.skipif(not HAS_RAY or not Path("/proc/self/stat").exists(), reason="needs Ray and /proc")
def test_a_killed_driver_of_ray_is_resumed(world: Path, tmp_path: Path) -> None:
    """Small shards, so that the kill comes long before the last one."""
    out, per_shard = tmp_path / "codes", 2
    driver = subprocess.Popen(command(world, out, "ray", per_shard), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(out.glob("*.parquet"))) >= 2 or driver.poll() is not None)
    workers = children_of(driver.pid, "ray::run_shard")
    driver.kill()
    if "timed out during startup" in driver.communicate()[1]:
        pytest.skip("this machine is too busy for Ray to start")
    # Ray's workers end with the driver; nobody is left who could write.
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    before = {p.name: p.stat().st_mtime_ns for p in out.glob("*.parquet")}
    assert 2 <= len(before) < ROWS // per_shard
    assert not (out / "shards.json").exists()
    done = run_job(encode_job(world, out, per_shard))[1]
    assert (done.kept, done.complete) == (len(before), True)
    assert {n: (out / n).stat().st_mtime_ns for n in before} == before
    run_job(encode_job(world, tmp_path / "unbroken", per_shard))
    assert bytes_of(out) == bytes_of(tmp_path / "unbroken")


@pytest.mark.skipif(not HAS_RAY, reason="needs Ray")
def test_an_address_that_does_not_answer() -> None:
    began = time.monotonic()
    with pytest.raises(CapsidError, match=r"does not answer at '127.0.0.1:9'") as caught:
        list(Ray(1, "127.0.0.1:9").map("{}", [0]))
    assert "ray start --head" in str(caught.value.hint)
    assert time.monotonic() - began < 10
    with pytest.raises(ConfigError, match=r"must be HOST:PORT or auto, got '10\.0\.0\.1:port'"):
        list(Ray(1, "10.0.0.1:port").map("{}", [0]))


@pytest.mark.skipif(HAS_RAY, reason="needs an environment without Ray")
def test_ray_is_not_installed() -> None:
    with pytest.raises(ConfigError, match="needs Ray"):
        list(Ray(1).map("{}", [0]))


# --- bad input


def test_a_job_started_twice(world: Path, tmp_path: Path) -> None:
    with shard_lock(tmp_path / "codes", (1, 1)):
        with pytest.raises(
            ArtifactError, match=rf"another capsid process is writing the shards of .*\(process {os.getpid()}"
        ):
            run(world, tmp_path / "codes", Here())
        # Another part is another driver's work.
        assert run_job(encode_job(world, tmp_path / "codes"), part=(1, 2))[1].written == SHARDS // 2
    assert run(world, tmp_path / "codes", Here()).complete


def test_a_full_disk(world: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300));"
        "from capsid.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    full = [sys.executable, "-c", code, *command(world, tmp_path / "codes", "processes")[3:]]
    stopped = subprocess.run(full, capture_output=True, text=True, timeout=120)
    assert stopped.returncode == 1
    assert "could not write" in stopped.stderr
    assert "hint: check free disk space" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert bytes_of(tmp_path / "codes") == {}
    assert run(world, tmp_path / "codes", Here()).written == SHARDS
    assert bytes_of(tmp_path / "codes") == expected


def test_a_worker_without_the_model(world: Path, tmp_path: Path) -> None:
    job = encode_job(world, tmp_path / "codes")
    gone = run_shard(job_text(replace(job, tokenizer=str(tmp_path / "gone"))), 0)
    assert "there is no folder" in gone["error"]
    other = run_shard(job_text(replace(job, key="other")), 0)
    assert "is not the tokenizer that the job was started with" in other["error"]
    assert "every worker must see the same files" in other["hint"]
    elsewhere = ShardError({**gone, "host": "far-away", "hint": None})
    assert elsewhere.message.startswith("worker on far-away: there is no folder")
    assert "same paths" in str(elsewhere.hint)
    text = json.loads(job_text(job)) | {"capsid": "0.0.1"}
    assert "the job was started with capsid 0.0.1" in run_shard(json.dumps(text), 0)["error"]
    assert not (tmp_path / "codes").exists()


def test_vectors_that_are_cut_or_gone(world: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.load(world / "v.npy"))
    job = EncodeJob.prepare(world / "tok", tmp_path / "v.npy", tmp_path / "codes", PER_SHARD, silent)
    whole = (tmp_path / "v.npy").read_bytes()
    (tmp_path / "v.npy").write_bytes(whole[:-100])
    assert "could not be read" in run_shard(job_text(job), 0)["error"]
    (tmp_path / "v.npy").unlink()
    assert "there is no file" in run_shard(job_text(job), 0)["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "spark"}, "there is no engine 'spark'"),
        ({"name": "here", "workers": 2}, "'here' has one worker, got --workers 2"),
        ({"name": "processes", "workers": 0}, "--workers must be at least 1, got 0"),
        ({"name": "processes", "address": "a:1"}, "--address is for --engine ray, got --engine processes"),
    ],
)
def test_options_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_named(**options)
