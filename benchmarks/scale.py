"""What a worker holds in memory, for catalogues of several sizes.

    python benchmarks/scale.py [--quick] [--items N,M] [--skip encode,rank] [--out FILE]

A worker encodes one shard of a synthetic catalogue in its own process; the tokenizer's folder holds the ids of all
items. Another one ranks items for one shard of users with a synthetic run, beside a process that loads the whole run
and does the same. benchmarks/engines.py measures the engines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _made_run import make_run
from common import gigabytes, machine, write_result

from capsid.encode.large_vectors import open_vectors
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.scale.jobs import EncodeJob, RankJob, job_text
from capsid.scale.ranked import USERS_PER_SHARD
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans

WIDTH, SIZES, SAMPLE = 64, (256, 256, 256), 5_000

SHARDS = """
from capsid.scale.jobs import run_shard
for number in sys.argv[2:]:
    answer = run_shard(sys.argv[1], int(number))
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
        found = in_process(SHARDS, job_text(job), items // rows_per_shard - 1)
        tok = sum(p.stat().st_size for p in (folder / "tok").iterdir())
        return {"items": items, "tokenizer_folder_bytes": tok, **found}


def in_process(work: str, *arguments: object) -> dict[str, Any]:
    """What a process of its own holds at the end of this work, and at most."""
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
        mapped, whole = in_process(SHARDS, job_text(job), 0), in_process(WHOLE, run, USERS_PER_SHARD)
        loaded = {f"whole_{name}": whole[name] for name in ("peak_bytes", "held_bytes")}
        return {"items": items, "users": users, "run_bytes": size, **mapped, **loaded}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small catalogues; writes only to --out")
    parser.add_argument("--items", default="100000,1000000", help="sizes of the catalogues for the worker's memory")
    parser.add_argument("--skip", default="", help="encode or rank, or both with a comma")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    sizes = [2_000, 20_000] if args.quick else [int(n) for n in args.items.split(",")]
    rows, skip = 1_000 if args.quick else 16_384, set(args.skip.split(","))
    result: dict[str, Any] = {"machine": machine(1)}
    if "encode" not in skip:
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
    config = {"items": sizes, "width": WIDTH, "codebooks": SIZES, "rows_per_shard": rows}
    if not args.quick or args.out:
        write_result("scale", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
