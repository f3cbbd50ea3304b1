"""Memory of a worker for two catalogue sizes, overhead of Ray against the plain loop, and scheduling of idle shards.

    python benchmarks/scale.py [--quick] [--items N,M] [--out FILE]

Memory: a worker encodes one shard of a synthetic catalogue in its own process; the tokenizer's folder holds the ids of
all items. Another one ranks items for one shard of users with a synthetic run, beside a process that loads the whole
run and does the same. Overhead: processor time of the same shards in this process and on Ray, with all of Ray's
processes.
Sleeping: 16 workers whose shards only wait show what the scheduler itself costs; they say nothing about computing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _made_run import make_run
from common import gigabytes, machine, write_result

from capsid.encode.mapped_files import open_vectors
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.scale.engine import Engine, Here, Processes, Ray
from capsid.scale.jobs import EncodeJob, RankJob, WaitJob, job_text
from capsid.scale.ranked import USERS_PER_SHARD
from capsid.scale.run import run_job
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.residual_kmeans import ResidualKMeans

WIDTH, SIZES, SAMPLE = 64, (256, 256, 256), 5_000
SLEEPERS = 16

SHARD = """
from capsid.scale.jobs import run_shard
answer = run_shard(sys.argv[1], int(sys.argv[2]))
"""
WHOLE = """
from capsid.recommender import Recommender
run = Recommender.from_pretrained(sys.argv[1])
histories = run.held_out("test").histories
for _ in run.retriever.rank_batches(histories, range(int(sys.argv[2])), 10, filter_history=True, batch=64):
    answer = {"written": True}
"""
MEASURED = """
status = Path("/proc/self/status").read_text()
sizes = {n: 1024 * int(re.search(rf"{n}:\\s+(\\d+)", status)[1]) for n in ("VmHWM", "RssAnon", "RssFile")}
print(json.dumps({"written": answer["written"], "peak_bytes": sizes["VmHWM"], "held_bytes": sizes["RssAnon"]}))
"""


def make_catalogue(folder: Path, items: int) -> None:
    """Made vectors with ids of 13 characters, and a tokenizer whose folder holds the ids of all of them."""
    rng = np.random.default_rng(0)
    with open(folder / "v.npy", "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (items, WIDTH)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, items, 65_536):
            file.write(rng.standard_normal((min(65_536, items - start), WIDTH), dtype=np.float32).data)
    with open(folder / "v.ids.txt", "w", encoding="utf-8") as lines:
        lines.writelines(f"item-{n:08d}\n" for n in range(items))
    source = open_vectors(folder / "v.npy", cache=folder / "cache")
    sample = source.table(0, min(SAMPLE, items))
    fitted = ItemTokenizer(tokenizer=ResidualKMeans(codebooks=SIZES)).fit(sample)
    codes_NL = rng.integers(0, min(SIZES), (items, len(SIZES)), dtype=np.int32)
    fitted.ids_ = SemanticIds.assign(source.ids, Ragged.from_dense(codes_NL), SIZES)
    fitted.without_vectors().save_pretrained(folder / "tok")


def worker_memory(items: int, rows_per_shard: int) -> dict[str, Any]:
    """Peak of a worker that encodes the last whole shard."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CAPSID_HOME"] = str(folder / "home")
        make_catalogue(folder, items)
        job = EncodeJob.prepare(folder / "tok", folder / "v.npy", folder / "codes", rows_per_shard, silent)
        found = measured(SHARD, job_text(job), items // rows_per_shard - 1)
        tok = sum(p.stat().st_size for p in (folder / "tok").iterdir())
        return {"items": items, "tokenizer_folder_bytes": tok, **found}


def measured(work: str, *arguments: object) -> dict[str, Any]:
    """What a process of its own holds that does this work."""
    code = f"import json, re, sys\nfrom pathlib import Path\n{work}{MEASURED}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def rank_worker_memory(items: int) -> dict[str, Any]:
    """Peak of a worker that ranks items for one shard of users, and of a process that loads the run whole."""
    with tempfile.TemporaryDirectory() as name:
        run, users = Path(name) / "run", max(items // 4, USERS_PER_SHARD)
        make_run(run, items, users, SIZES)
        job = RankJob.prepare(run, Path(name) / "lists", split="test", k=10, filter_history=True)
        size = sum(p.stat().st_size for p in run.rglob("*") if p.is_file())
        mapped, whole = measured(SHARD, job_text(job), 0), measured(WHOLE, run, USERS_PER_SHARD)
        loaded = {f"whole_{name}": whole[name] for name in ("peak_bytes", "held_bytes")}
        return {"items": items, "users": users, "run_bytes": size, **mapped, **loaded}


def processor_seconds() -> float:
    """Of this process and of all processes below it that are alive."""
    parents, spent = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            spent[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    waiting, total = [os.getpid()], 0.0
    while waiting:
        one = waiting.pop()
        total += spent.get(one, 0.0)
        waiting += [child for child, its in parents.items() if its == one]
    return total


def ray_overhead(items: int, rows_per_shard: int) -> dict[str, Any]:
    """Processor seconds of encoding a catalogue in this process and on Ray, with the same bytes as result."""
    from capsid.scale.ray_tasks import connected

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CAPSID_HOME"] = str(folder / "home")
        make_catalogue(folder, items)

        def encode(out: str, engine: Engine) -> float:
            before = processor_seconds()
            run_job(EncodeJob.prepare(folder / "tok", folder / "v.npy", folder / out, rows_per_shard, silent), engine)
            return processor_seconds() - before

        encode("warm", Here())
        plain = encode("here", Here())
        start, before = time.monotonic(), processor_seconds()
        with connected(2, None):
            started, start_cpu = time.monotonic() - start, processor_seconds() - before
            # The first run also starts the workers and loads what they need.
            first = encode("first", Ray(2))
            again = encode("again", Ray(2))
        same = all((folder / "here" / p.name).read_bytes() == p.read_bytes() for p in (folder / "again").iterdir())
    out = {"items": items, "plain_cpu_seconds": plain, "ray_start_seconds": started, "ray_start_cpu_seconds": start_cpu}
    return out | {"ray_first_cpu_seconds": first, "ray_cpu_seconds": again, "ratio": again / plain, "same_bytes": same}


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
    parser.add_argument("--quick", action="store_true", help="small catalogues, and no Ray")
    parser.add_argument("--items", default="100000,1000000", help="sizes of the catalogues for the worker's memory")
    parser.add_argument("--skip", default="", help="memory, rank, ray or sleeping, separated by commas")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    sizes = [2_000, 20_000] if args.quick else [int(n) for n in args.items.split(",")]
    rows, skip = 1_000 if args.quick else 16_384, set(args.skip.split(","))
    result: dict[str, Any] = {"machine": machine(1)}
    if "memory" not in skip:
        result["worker_memory"] = [worker_memory(items, rows) for items in sizes]
        for found in result["worker_memory"]:
            peak, held = (gigabytes(found[f"{n}_bytes"]) for n in ("peak", "held"))
            print(f"worker, catalogue of {found['items']:,}: peak {peak}, held at the end {held}")
    if "rank" not in skip:
        result["rank_worker_memory"] = [rank_worker_memory(items) for items in sizes]
        for found in result["rank_worker_memory"]:
            peak, held, whole = (gigabytes(found[f"{n}_bytes"]) for n in ("peak", "held", "whole_peak"))
            print(
                f"rank worker, {found['items']:,} items: peak {peak}, held {held}; loading the run whole: peak {whole}"
            )
    if "ray" not in skip and not args.quick and importlib.util.find_spec("ray"):
        result["ray"] = ray_overhead(200_000, rows)
        print(f"Ray: {result['ray']['ratio']:.2f} times the processor time of the plain loop, plus its start")
    if "sleeping" not in skip:
        shards, seconds = (3 * SLEEPERS, 0.05) if args.quick else (10 * SLEEPERS, 2.0)
        result["sleeping_processes"] = sleeping(Processes(SLEEPERS), shards, seconds)
        share = result["sleeping_processes"]["efficiency"]
        print(f"{SLEEPERS} workers with sleeping shards (scheduler overhead only): {share:.3f}")
    config = {"items": sizes, "width": WIDTH, "codebooks": SIZES, "rows_per_shard": rows}
    if not args.quick or args.out:
        write_result("scale", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
