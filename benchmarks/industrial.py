"""The industrial table on made data: quality of ids, cost of every stage and its growth. No Recall: there are no users.

    python benchmarks/industrial.py [--quick] [--sizes 10000,100000] [--codes 256] [--depth 4] [--threads 1]

Vectors are made shard by shard from the seed (see _catalogue.py), written to a mapped file, and go through the stages
of a large catalogue: fit, encode, ids and trie. Times are processor seconds of one process.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _catalogue import SHARD, Catalogue
from common import gigabytes, machine, memory_peak, write_result

from capsid.encode.large_vectors import MappedVectors, open_vectors
from capsid.ids.collisions import Bucket
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.tokenize.base import Tokenizer
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans

QUALITY = ("collision_rate", "mean_length", "largest_bucket", "utilization", "gini")


def tokenizers(codes: int, depth: int) -> dict[str, Tokenizer]:
    """What is compared; all have the same codebooks."""
    sizes = (codes,) * depth
    return {"capsules": CapsuleTokenizer(codebooks=sizes), "residual k-means": ResidualKMeans(codebooks=sizes)}


def timed(costs: dict[str, float], stage: str, call: Callable[[], Any]) -> Any:
    """The answer of a call; its processor time is added to the costs."""
    start = time.process_time()
    answer = call()
    costs[stage] = costs.get(stage, 0.0) + time.process_time() - start
    return answer


def write_vectors(catalogue: Catalogue, path: Path) -> int:
    """All shards into one mapped file; returns how many rows are exact copies."""
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(catalogue.items, catalogue.dim))
    copies = 0
    for shard in range(catalogue.shards):
        vectors = catalogue.vectors(shard)
        out[shard * SHARD : shard * SHARD + len(vectors)] = vectors
        copies += catalogue.copied(shard)
    out.flush()
    return copies


def measure(name: str, tokenizer: Tokenizer, source: MappedVectors, copies: int) -> dict[str, Any]:
    """One row of the table: fit, encode, ids and trie of one tokenizer on one catalogue."""
    costs: dict[str, float] = {}
    timed(costs, "fit", lambda: tokenizer.fit(source.table()))
    parts = [
        timed(costs, "encode", lambda start=start: tokenizer.encode(source.table(start, start + SHARD)))
        for start in range(0, len(source), SHARD)
    ]
    codes = Ragged.join(parts)
    sizes = tokenizer.sizes
    ids = timed(costs, "ids", lambda: SemanticIds.assign(source.ids, codes, sizes, Bucket()))
    trie = timed(costs, "trie", lambda: Trie.build(ids.prefix_free))
    statistics = dataclasses.asdict(ids.statistics())
    return {
        "tokenizer": name,
        "items": len(source),
        # Copies have the id of their original whatever the tokenizer; the rest of the collisions is its own.
        "copies": copies / len(source),
        "collisions_beyond_copies": statistics["collision_rate"] - copies / len(source),
        **{key: statistics[key] for key in QUALITY},
        "cpu_seconds": costs,
        "cpu_microseconds_per_item": {stage: 1e6 * cost / len(source) for stage, cost in costs.items()},
        "trie_bytes": trie.nbytes,
        "process_peak_bytes": memory_peak(),
    }


def run(sizes: list[int], codes: int, depth: int, folder: Path) -> list[dict[str, Any]]:
    """Every tokenizer at every size, small ones first."""
    rows = []
    for items in sorted(sizes):
        path = folder / f"vectors-{items}.npy"
        made: dict[str, float] = {}
        catalogue = Catalogue(items)
        copies = timed(made, "make", lambda catalogue=catalogue, path=path: write_vectors(catalogue, path))
        source = open_vectors(path, cache=folder)
        for name, tokenizer in tokenizers(codes, depth).items():
            rows.append({**measure(name, tokenizer, source, copies), "make_cpu_seconds": made["make"]})
        path.unlink()
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("made data (planted tree, power-law leaves, anisotropic noise, 10 % exact copies); no Recall")
    for row in rows:
        cost = row["cpu_microseconds_per_item"]
        print(
            f"{row['items']:>11,} items  {row['tokenizer']:17s} collisions {row['collision_rate']:6.1%}"
            f" ({row['collisions_beyond_copies']:+.1%} beyond copies)  length {row['mean_length']:.2f}"
            f"  use {min(row['utilization']):.0%}  microseconds per item: "
            + ", ".join(f"{stage} {cost[stage]:.1f}" for stage in cost)
            + f"  trie {gigabytes(row['trie_bytes'])}  process {gigabytes(row['process_peak_bytes'])}"
        )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 and 4,000 items, 16 codes; writes only to --out")
    parser.add_argument("--sizes", default="10000,100000", help="numbers of items")
    parser.add_argument("--codes", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.quick:
        args.sizes, args.codes = "2000,4000", 16
    torch.set_num_threads(args.threads)
    facts = machine(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = run([int(size) for size in args.sizes.split(",")], args.codes, args.depth, Path(folder))
    show(rows)
    result = {"machine": facts, "rows": rows}
    if args.out or not args.quick:
        config = {name: getattr(args, name) for name in ("sizes", "codes", "depth", "threads", "quick")}
        made = {name: value for name, value in dataclasses.asdict(Catalogue(1)).items() if name != "items"}
        write_result("industrial", args.out, {**config, "catalogue": made}, result)
    return result


if __name__ == "__main__":
    main()
