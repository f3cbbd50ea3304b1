"""The size of the CapsID paper: 35.8 million made items encoded in parts, their ids and trie, and search in it.

    python benchmarks/paper_size.py [--quick] [--items 35800000] [--sample 1048576] [--parts 4] [--work DIR]

Vectors are made shard by shard from the seed (see _catalogue.py). The tokenizer is fitted on the first `--sample` rows,
with ids of one length, so that an id does not depend on the other items; the parts are then encoded one after the
other, each by `--workers` processes. The worker's memory is measured twice: with this tokenizer, and with one that
also holds the prefixes that the whole catalogue shares, as a fit on all of it would. The searched model has weights
that nobody trained, so its lists mean nothing. With --work a stopped benchmark resumes and the vectors are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from _catalogue import Catalogue
from _commands import Steps, measured
from common import gigabytes, machine, memory_held, memory_peak, write_result
from end_to_end import size_of
from industrial import write_vectors
from scale import SHARDS, in_process

from capsid.base.vocabulary import Vocabulary
from capsid.decode.beam import BeamSearch
from capsid.decode.model import FittedModel
from capsid.generate.generator import TimelineGenerator
from capsid.ids.collisions import Bucket
from capsid.ids.order import SharedPrefixes
from capsid.ids.reading import ItemByItem
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.stored_ids import MappedIds
from capsid.ids.trie import Trie
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.scale.jobs import EncodeJob, job_text
from capsid.tokenize.item_tokenizer import ItemTokenizer

ROWS_PER_SHARD = 65_536
HISTORY, LISTED = 20, 10
# A worker's memory must not grow with the shards that it makes, so it is measured over several.
WORKER_SHARDS = 16


def fixed_length(codes: int, depth: int) -> list[str]:
    """Settings of ids that all have `depth` codes."""
    books = ",".join([str(codes)] * depth)
    values = {"codebooks": books, "max_sharing": 0, "confidence": 1.0}
    return [f"--set=tokenizer.{name}={value}" for name, value in values.items()]


def made_vectors(folder: Path, items: int, sample: int) -> dict[str, Any]:
    """All vectors and a file of the first ones; made unless they are there."""
    began = time.process_time()
    if not (folder / "made.json").exists():
        copies = write_vectors(Catalogue(items), folder / "v.npy")
        made = {"items": items, "copies": copies / items, "cpu_seconds": time.process_time() - began}
        (folder / "made.json").write_text(json.dumps(made))
    if not (folder / "sample.npy").exists():
        np.save(folder / "sample.npy", np.load(folder / "v.npy", mmap_mode="r")[:sample])
    made = json.loads((folder / "made.json").read_text())
    assert made["items"] == items, f"{folder} holds {made['items']} items"
    return made


def with_prefixes(folder: Path, codes: int, depth: int) -> dict[str, Any]:
    """A tokenizer as a fit on all items would leave it: with the prefixes that several of their ids share."""
    every = pl.scan_parquet(folder / "codes" / "codes-*.parquet").select("codes")
    # A few ids are shorter: their confidence is 1.
    whole = every.filter(pl.col("codes").list.len() == depth).select(pl.col("codes").list.to_array(depth)).collect()
    codes_NL = whole["codes"].to_numpy()
    shared = SharedPrefixes.count(codes_NL, (codes,) * depth, 1)
    fitted = ItemTokenizer.from_pretrained(folder / "tok")
    fitted.tokenizer = dataclasses.replace(fitted.tokenizer, max_sharing=1, confidence=0.0)
    state = fitted.tokenizer_.state() | {f"crowded/{d}": keys for d, keys in enumerate(shared.keys)}
    fitted.tokenizer_ = dataclasses.replace(fitted.tokenizer).load_state(state)
    fitted.save_pretrained(folder / "tok-prefixes")
    return {
        "shorter_ids": int(every.select(pl.len()).collect().item()) - len(whole),
        "prefixes": sum(map(len, shared.keys)),
        "file_bytes": (folder / "tok-prefixes/tokenizer.npz").stat().st_size,
    }


def worker(folder: Path, tokenizer: str) -> dict[str, Any]:
    """What a worker holds that encodes the last shards, one after the other."""
    job = EncodeJob.prepare(folder / tokenizer, folder / "v.npy", folder / "last", ROWS_PER_SHARD, silent)
    count = job.open().count
    numbers = range(max(0, count - WORKER_SHARDS), count)
    found = in_process(SHARDS, job_text(job), *numbers)
    shutil.rmtree(folder / "last")
    return {"shards": len(numbers), **found}


def search(catalogue: Path, users: int, beam: int) -> dict[str, Any]:
    """Latency and memory of a process that maps the trie and ranks items for random histories."""
    torch.set_num_threads(1)
    about = json.loads((catalogue / "shards.json").read_text())
    before = {"held_bytes": memory_held(), "peak_bytes": memory_peak()}
    trie = Trie.map(catalogue / "trie")
    sizes, rng = tuple(about["sizes"]), np.random.default_rng(0)
    # Weights depend on the layout alone, so a few items are enough to make them.
    few = Ragged.from_dense(np.stack([np.arange(min(sizes), dtype=np.int32)] * len(sizes), 1))
    small = SemanticIds.assign(Vocabulary(map(str, range(len(few)))), few, sizes, Bucket())
    generator = TimelineGenerator(history=HISTORY).build(small, np.ones(len(small)), seed=0)
    ids = MappedIds(small.layout, trie, ItemByItem())
    reader, ranker = FittedModel(generator, ids, (trie,), HISTORY, "children"), BeamSearch(width=beam)
    histories = Ragged.from_dense(rng.integers(0, len(trie), (users, HISTORY)))
    seconds, cpu = [], time.process_time()
    for user in range(users):
        start = time.perf_counter()
        found = ranker.rank(reader, histories.take(np.array([user])), LISTED)
        seconds.append(time.perf_counter() - start)
        assert (found.items_UK >= 0).all(), "a list is not full"
    cpu = time.process_time() - cpu
    start = time.process_time()
    ranker.rank(reader, histories, LISTED)
    batch = time.process_time() - start
    return {
        "users": users,
        "beam": beam,
        "nodes": trie.nodes,
        "trie_bytes": trie.nbytes,
        "seconds_median": float(np.median(seconds)),
        "seconds_p99": float(np.quantile(seconds, 0.99)),
        "cpu_milliseconds_alone": 1e3 * cpu / users,
        "cpu_milliseconds_in_batch": 1e3 * batch / users,
        "before": before,
        "held_bytes": memory_held(),
        "peak_bytes": memory_peak(),
    }


def run(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All steps; what they write is deleted at the end."""
    steps = Steps(folder, "paper-size")
    command = steps.run
    made = made_vectors(folder, args.items, args.sample)
    written = ("--out=tok", "--no-vectors", *fixed_length(args.codes, args.depth))
    command("fit", "vectors", "fit", "capsid", "--vectors=sample.npy", *written)
    two = ("--vectors=v.npy", "--out=codes", "--engine=processes", f"--workers={args.workers}")
    for part in range(1, args.parts + 1):
        command(f"encode {part}/{args.parts}", "vectors", "encode", "tok", *two, f"--part={part}/{args.parts}")
    settled = json.loads(command("ids", "vectors", "ids", "tok", "--codes=codes", "--out=catalogue", "--json"))
    asked = [sys.executable, __file__, "--search", "catalogue", "--users", str(args.users), "--beam", str(args.beam)]
    searched = json.loads(measured(asked, folder, "search").printed)
    print(f"search: {searched}", flush=True)
    memory = {"fixed_length": worker(folder, "tok")}
    memory["with_prefixes"] = with_prefixes(folder, args.codes, args.depth) | worker(folder, "tok-prefixes")
    for name, found in memory.items():
        print(
            f"worker, {name}: peak {gigabytes(found['peak_bytes'])}, held {gigabytes(found['held_bytes'])}", flush=True
        )
    result = {
        "made": made,
        "settled": {key: value for key, value in settled.items() if key != "folder"},
        "search": searched,
        "worker_memory": memory,
        "disk_bytes": {part: size_of(folder / part) for part in ("tok", "codes", "catalogue")},
        **steps.costs(),
    }
    for name in ("tok", "tok-prefixes", "codes", "catalogue", "home"):
        shutil.rmtree(folder / name, ignore_errors=True)
    steps.file.unlink()
    return result


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5,000 items, 16 x 3 codes; writes only to --out")
    sizes = {
        "items": 35_800_000,
        "sample": 1_048_576,
        "parts": 4,
        "workers": 2,
        "codes": 256,
        "depth": 4,
        "users": 64,
        "beam": 50,
    }
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--search", type=Path, help="only search in this folder of ids, and print JSON")
    parser.add_argument("--work", type=Path, help="where vectors are made, and found again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.search:
        found = search(args.search, args.users, args.beam)
        print(json.dumps(found))
        return found
    if args.quick:
        args.items, args.sample, args.parts, args.codes, args.depth, args.users = 5_000, 2_000, 2, 16, 3, 4
    facts = machine(1)
    with contextlib.ExitStack() as stack:
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        result = {"machine": facts, **run(work.absolute(), args)}
    if args.out or not args.quick:
        config = {name: getattr(args, name) for name in sizes}
        write_result("paper_size", args.out, {**config, "rows_per_shard": ROWS_PER_SHARD}, result)
    return result


if __name__ == "__main__":
    main()
