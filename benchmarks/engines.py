"""What engines cost and whether they all write the same bytes, also after kill -9 of a worker and of the command.

    python benchmarks/engines.py [--quick] [--items 1000000] [--skip hashes,ray,two,sleeping] [--out FILE]

Hashes: `capsid vectors encode` writes the codes of a made catalogue (see _catalogue.py) in this process, in two
processes and on Ray; then again while a worker is killed, and while the command itself is killed and repeated.
Ray: processor time of the same shards in a plain loop and on Ray, with all of Ray's processes.
Two: time by the clock of one and of two processes; this needs a quiet machine.
Sleeping: 16 workers whose shards only wait show what the scheduler itself costs; they say nothing about computing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _catalogue import Catalogue
from _commands import descendants
from common import folder_hash, machine, write_result
from industrial import write_vectors

from capsid.progress import silent
from capsid.scale.engine import Engine, Here, Processes, Ray, run_job
from capsid.scale.jobs import EncodeJob, WaitJob, job_text

SLEEPERS = 16
# A worker or a command is killed when this many shards are there.
KILL_AFTER = 3
MINUTES = 60.0
ENGINES = {"here": (), "processes": ("--workers", "2"), "ray": ("--workers", "2")}
WORKERS = {"processes": b"capsid.scale.worker", "ray": b"ray::run_shard"}


def make_catalogue(folder: Path, items: int, codes: int, depth: int) -> None:
    """Made vectors and a tokenizer fitted on them, by the command."""
    write_vectors(Catalogue(items), folder / "v.npy")
    books = ",".join([str(codes)] * depth)
    options = ["--vectors=v.npy", "--out=tok", "--no-vectors", f"--set=tokenizer.codebooks={books}"]
    subprocess.run([sys.executable, "-m", "capsid", "vectors", "fit", "capsid", *options], cwd=folder, check=True)


def command(engine: str, out: str, rows_per_shard: int) -> list[str]:
    """`capsid vectors encode` on an engine."""
    options = ["--vectors=v.npy", f"--out={out}", f"--shard-rows={rows_per_shard}", f"--engine={engine}"]
    return [sys.executable, "-m", "capsid", "vectors", "encode", "tok", *options, *ENGINES[engine]]


def hashes(folder: Path, rows_per_shard: int, engines: list[str]) -> dict[str, Any]:
    """One hash for each engine, unbroken and after kills, and how many shards a repeated command kept."""
    found: dict[str, Any] = {}
    for engine in engines:
        for out in folder.glob(f"{engine}*"):
            shutil.rmtree(out)
        subprocess.run(command(engine, engine, rows_per_shard), cwd=folder, check=True)
        found[engine] = {"unbroken": folder_hash(folder / engine)}
        if engine in WORKERS:
            found[engine]["killed_worker"] = _killed_worker(folder, engine, rows_per_shard)
        found[engine] |= _killed_command(folder, engine, rows_per_shard)
        print(f"{engine}: {found[engine]}", flush=True)
    every = {value for its in found.values() for name, value in its.items() if name != "kept_after_kill"}
    return {"engines": found, "all_equal": len(every) == 1}


def _killed_worker(folder: Path, engine: str, rows_per_shard: int) -> str:
    """The hash after a worker was killed at its work; the command goes on by itself."""
    out = f"{engine}-worker"
    process = subprocess.Popen(command(engine, out, rows_per_shard), cwd=folder)
    _wait(lambda: _shards(folder / out) >= KILL_AFTER and bool(_workers(process.pid, engine)), process)
    os.kill(_workers(process.pid, engine)[0], signal.SIGKILL)
    assert process.wait() == 0, "the command did not survive the death of a worker"
    return folder_hash(folder / out)


def _killed_command(folder: Path, engine: str, rows_per_shard: int) -> dict[str, Any]:
    """The hash after the command was killed and given again, and the shards that the second one kept."""
    out = f"{engine}-command"
    process = subprocess.Popen(command(engine, out, rows_per_shard), cwd=folder)
    _wait(lambda: _shards(folder / out) >= KILL_AFTER, process)
    workers = _workers(process.pid, engine) if engine in WORKERS else []
    process.kill()
    process.wait()
    _wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    before = {p: p.stat().st_mtime_ns for p in (folder / out).glob("*.parquet")}
    subprocess.run(command(engine, out, rows_per_shard), cwd=folder, check=True)
    assert all(p.stat().st_mtime_ns == when for p, when in before.items()), "a finished shard was made again"
    return {"killed_command": folder_hash(folder / out), "kept_after_kill": len(before)}


def _shards(folder: Path) -> int:
    return len(list(folder.glob("*.parquet")))


def _workers(pid: int, engine: str) -> list[int]:
    """Processes below a command that make shards."""
    named = []
    for child in descendants(pid):
        try:
            if WORKERS[engine] in Path(f"/proc/{child}/cmdline").read_bytes():
                named.append(child)
        except OSError:
            continue
    return named


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    until = time.monotonic() + 10 * MINUTES
    while not ready():
        assert time.monotonic() < until, "it did not happen in time"
        assert process is None or process.poll() is None, "the command ended before it could be killed"
        time.sleep(0.02)


def processor_seconds() -> float:
    """Of this process and of all processes below it that are alive."""
    total = 0.0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def ray_overhead(folder: Path, rows_per_shard: int) -> dict[str, Any]:
    """Processor seconds of encoding a catalogue in this process and on Ray, with the same bytes as result."""
    from capsid.scale.engine import connected

    # As workers: threads of one process cost processor time, waiting for each other.
    torch.set_num_threads(1)

    def encode(out: str, engine: Engine) -> float:
        before = processor_seconds()
        run_job(EncodeJob.prepare(folder / "tok", folder / "v.npy", folder / out, rows_per_shard, silent), engine)
        return processor_seconds() - before

    for out in ("warm", "plain", "first", "second"):
        shutil.rmtree(folder / out, ignore_errors=True)
    encode("warm", Here())
    plain = encode("plain", Here())
    start, before = time.monotonic(), processor_seconds()
    with connected(2, None):
        started, start_cpu = time.monotonic() - start, processor_seconds() - before
        # The first run also starts the workers and loads what they need.
        first = encode("first", Ray(2))
        again = encode("second", Ray(2))
    same = len({folder_hash(folder / out) for out in ("plain", "first", "second")}) == 1
    return {
        "plain_cpu_seconds": plain,
        "ray_start_seconds": started,
        "ray_start_cpu_seconds": start_cpu,
        "ray_first_cpu_seconds": first,
        "ray_second_cpu_seconds": again,
        "ratio_second": again / plain,
        # What is beyond 1.1 times the plain loop, with Ray's start and that of its workers.
        "seconds_beyond_ten_percent": start_cpu + first - 1.1 * plain,
        "same_bytes": same,
    }


def two_workers(folder: Path, rows_per_shard: int, repeat: int) -> dict[str, Any]:
    """Seconds by the clock of one and of two processes: from the start, and from the first finished shard on."""
    rounds = []
    for number in range(repeat):
        # Who begins changes, so that neither always has the warmer cache.
        for workers in (1, 2) if number % 2 else (2, 1):
            out = folder / f"w{workers}-{number}"
            job = EncodeJob.prepare(folder / "tok", folder / "v.npy", out, rows_per_shard, silent)
            ends, began = [], time.monotonic()
            for _ in Processes(workers).map(job_text(job), range(job.open().count)):
                ends.append(time.monotonic())
            # A rate once every worker has done a shard.
            steady = (len(ends) - workers) / (ends[-1] - ends[workers - 1])
            taken = {"seconds": ends[-1] - began, "shards_per_second": steady, "load": os.getloadavg()[0]}
            rounds.append({"workers": workers, **taken})
            print(f"{workers} processes: {rounds[-1]}", flush=True)
            shutil.rmtree(out)
    one, two = ([r for r in rounds if r["workers"] == n] for n in (1, 2))

    def least(runs: list[dict[str, Any]]) -> float:
        return min(run["seconds"] for run in runs)

    def fastest(runs: list[dict[str, Any]]) -> float:
        return max(run["shards_per_second"] for run in runs)

    return {"rounds": rounds, "speedup": least(one) / least(two), "steady_speedup": fastest(two) / fastest(one)}


def sleeping(engine: Engine, shards: int, seconds: float) -> dict[str, Any]:
    """Share of the workers' time that was spent in shards, once all workers are up. Scheduler overhead only."""
    with tempfile.TemporaryDirectory() as name:
        job, ends = WaitJob(out=str(Path(name) / "out"), shards=shards, seconds=seconds), []
        for _ in engine.map(job_text(job), range(shards)):
            ends.append(time.monotonic())
    # Workers start one after the other; by then all have done one shard.
    steady = ends[2 * SLEEPERS :]
    efficiency = len(steady) * seconds / (SLEEPERS * (ends[-1] - ends[2 * SLEEPERS - 1]))
    return {"workers": SLEEPERS, "shards": shards, "shard_seconds": seconds, "efficiency": min(efficiency, 1.0)}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small catalogue and no Ray; writes only to --out")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--skip", default="", help="hashes, ray, two or sleeping, separated by commas")
    parser.add_argument("--engines", default=",".join(ENGINES), help="whose hashes are compared")
    parser.add_argument("--shard-rows", type=int, default=16_384)
    parser.add_argument("--repeat", type=int, default=2, help="rounds of the comparison of one with two processes")
    parser.add_argument("--work", type=Path, help="where vectors and tokenizer are made, and found again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    skip, codes, depth, rows = set(args.skip.split(",")), 256, 4, args.shard_rows
    if args.quick:
        args.items, args.repeat, codes, depth, rows = 3_000, 1, 8, 2, 100
    has_ray = bool(importlib.util.find_spec("ray")) and not args.quick
    result: dict[str, Any] = {"machine": machine(1)}
    with contextlib.ExitStack() as stack:
        folder = (args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["CAPSID_HOME"] = str(folder / "home")
        if {"hashes", "ray", "two"} - skip and not (folder / "tok").exists():
            make_catalogue(folder, args.items, codes, depth)
        if "two" not in skip:
            result["two_workers"] = two_workers(folder, rows, args.repeat)
        if "hashes" not in skip:
            result["hashes"] = hashes(folder, rows, [e for e in args.engines.split(",") if e != "ray" or has_ray])
        if "ray" not in skip and has_ray:
            result["ray"] = ray_overhead(folder, rows)
            print(f"Ray: {result['ray']}")
    if "sleeping" not in skip:
        shards, seconds = (3 * SLEEPERS, 0.05) if args.quick else (10 * SLEEPERS, 2.0)
        result["sleeping_processes"] = sleeping(Processes(SLEEPERS), shards, seconds)
        share = result["sleeping_processes"]["efficiency"]
        print(f"{SLEEPERS} workers with sleeping shards (scheduler overhead only): {share:.3f}")
    config = {"items": args.items, "codes": codes, "depth": depth, "rows_per_shard": rows, "repeat": args.repeat}
    if not args.quick or args.out:
        write_result("engines", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
