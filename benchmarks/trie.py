"""Builds, stores and walks the trie of a catalogue of up to 35.8 million ids, compared with a trie of Python dicts.

    python benchmarks/trie.py [--quick] [--items N] [--full] [--out FILE]

Every measurement runs in a separate process that only loads the token rows and does one job, so that its peak memory is
its own. The dict trie gets as many items as it can hold (--dict-items); nothing is extrapolated. No model is involved.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import gigabytes, machine, memory_now, memory_peak, side_by_side, write_result

from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged

FULL = 35_800_000
SIZES = (256, 256, 256, 256)
WALKS = 200_000
MORE = 100
BATCH = 3_200  # 64 users with 50 beams: what one step of the search asks for


def measure_csr(folder: Path) -> dict[str, Any]:
    """Our trie: build, save, load mapped, walk."""
    rows, out = _load(folder)
    start, cpu = time.perf_counter(), time.process_time()
    trie = Trie.build(rows)
    out |= {"build_seconds": time.perf_counter() - start, "build_cpu_seconds": time.process_time() - cpu}
    out |= _memory(out["rows_bytes"]) | {"nodes": trie.nodes, "trie_bytes": trie.nbytes}
    start = time.perf_counter()
    trie.save(folder / "trie")
    out["save_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    mapped = Trie.load(folder / "trie", memory_map=True)
    mapped.children(np.array([ROOT]))
    out["load_mapped_seconds"] = time.perf_counter() - start
    out |= _measure_extend(trie, rows)
    paths = _paths(rows)
    return out | {"walks_per_second": _walk_csr(trie, paths), "expansions_per_second": _expand_csr(trie)}


def _measure_extend(trie: Trie, rows: Ragged) -> dict[str, float]:
    """Processor seconds to put 1 and 100 more items in, and to rebuild the larger trie."""
    more = Ragged.from_dense(rows.values.reshape(len(rows), -1)[:MORE] ^ 1)
    calls = {
        "extend_1_cpu_seconds": lambda: trie.extend(more.take(np.arange(1))),
        f"extend_{MORE}_cpu_seconds": lambda: trie.extend(more),
        "rebuild_cpu_seconds": lambda: Trie.build(rows.append(more)),
    }
    return {name: times.cpu_seconds for name, times in side_by_side(calls, repeat=3).items()}


def measure_dict(folder: Path) -> dict[str, Any]:
    """Nested dicts, token to child; the usual trie of constrained decoding in Python."""
    rows, out = _load(folder)
    start, cpu = time.perf_counter(), time.process_time()
    root: dict[int, Any] = {}
    gc.disable()  # to its advantage: millions of dicts would be looked through again and again
    for first in range(0, len(rows), BATCH):
        chunk = rows.values.reshape(len(rows), -1)[first : first + BATCH]
        for item, tokens in enumerate(chunk.tolist(), start=first):
            node = root
            for token in tokens[:-1]:
                node = node.setdefault(token, {})
            node[tokens[-1]] = item
    out |= {"build_seconds": time.perf_counter() - start, "build_cpu_seconds": time.process_time() - cpu}
    out |= _memory(out["rows_bytes"])
    out["trie_bytes"] = out["after_build_bytes"] - out["before_build_bytes"]
    paths = _paths(rows).tolist()
    start = time.process_time()
    for path in paths:
        node = root
        for token in path:
            node = node[token]
    return out | {"walks_per_second": len(paths) * len(SIZES) / (time.process_time() - start)}


def _load(folder: Path) -> tuple[Ragged, dict[str, Any]]:
    rows = Ragged(np.load(folder / "values.npy"), np.load(folder / "offsets.npy"))
    size = rows.values.nbytes + rows.offsets.nbytes
    return rows, {"items": len(rows), "rows_bytes": size, "before_build_bytes": memory_now()}


def _memory(rows_bytes: int) -> dict[str, int]:
    peak = memory_peak()
    return {"peak_bytes": peak, "peak_without_rows_bytes": peak - rows_bytes, "after_build_bytes": memory_now()}


def _paths(rows: Ragged) -> np.ndarray:
    """Token rows of random items."""
    chosen = np.random.default_rng(1).integers(0, len(rows), size=WALKS)
    return rows.values.reshape(len(rows), -1)[chosen]


def _walk_csr(trie: Trie, paths: np.ndarray) -> float:
    """Steps a second from node to child over a given token, in batches."""
    start = time.process_time()
    for first in range(0, len(paths), BATCH):
        batch = paths[first : first + BATCH]
        nodes = np.full(len(batch), ROOT, dtype=np.int64)
        for depth in range(batch.shape[1]):
            nodes = trie.walk(nodes, batch[:, depth])
        assert (nodes > 0).all()
    return len(paths) * paths.shape[1] / (time.process_time() - start)


def _expand_csr(trie: Trie) -> float:
    """Nodes a second whose children are all listed, in batches of random inner nodes (leaves have the last numbers)."""
    inner = np.random.default_rng(2).integers(0, trie.nodes - len(trie), size=WALKS)
    start = time.process_time()
    for first in range(0, len(inner), BATCH):
        trie.children(inner[first : first + BATCH])
    return len(inner) / (time.process_time() - start)


MEASURES = {"csr": measure_csr, "dict": measure_dict}


def measured_apart(kind: str, items: int) -> dict[str, Any]:
    """Run one measurement in a fresh process on rows made here."""
    from _made import made_rows  # late: the measured process must not carry torch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = made_rows(items, SIZES)
        np.save(folder / "values.npy", rows.values)
        np.save(folder / "offsets.npy", rows.offsets)
        del rows
        command = [sys.executable, __file__, "--measure", kind, "--folder", str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def run(items: int, dict_items: int) -> dict[str, Any]:
    """Ours at full size, and both at the size that dicts can hold."""
    out = {"csr": measured_apart("csr", items), "dict": measured_apart("dict", dict_items)}
    same = out["csr"] if items == dict_items else measured_apart("csr", dict_items)
    out["csr_at_dict_size"] = same
    # One thread each, so processor time is the fair clock on a machine that others use as well.
    names = ("build_cpu_seconds", "trie_bytes", "peak_without_rows_bytes")
    out["dict_over_csr"] = {n: out["dict"][n] / same[n] for n in names}
    out["csr_over_dict_walks"] = same["walks_per_second"] / out["dict"]["walks_per_second"]
    return out


def show(result: dict[str, Any]) -> None:
    for title in ("csr", "csr_at_dict_size", "dict"):
        r = result[title]
        print(
            f"{title:17s} {r['items']:>11,} items  build {r['build_seconds']:7.2f} s ({r['build_cpu_seconds']:.2f} cpu)"
            f"  trie {gigabytes(r['trie_bytes'])}"
            f"  peak {gigabytes(r['peak_bytes'])} ({gigabytes(r['peak_without_rows_bytes'])} without rows)"
            f"  {r['walks_per_second']:,.0f} walks/s"
        )
    r = result["csr"]
    print(
        f"csr: saved in {r['save_seconds']:.2f} s, mapped in {1e3 * r['load_mapped_seconds']:.1f} ms, "
        f"{r['expansions_per_second']:,.0f} nodes/s expanded"
    )
    print(
        f"csr: 1 item more in {1e3 * r['extend_1_cpu_seconds']:.1f} ms, {MORE} in"
        f" {1e3 * r[f'extend_{MORE}_cpu_seconds']:.1f} ms, rebuilt in {1e3 * r['rebuild_cpu_seconds']:.1f} ms (cpu)"
    )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dict-items", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="100 thousand items; writes only to --out")
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} items; takes minutes and a few GB")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", choices=tuple(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.measure:
        measured = MEASURES[args.measure](args.folder)
        print(json.dumps(measured))
        return measured
    items = 100_000 if args.quick else FULL if args.full else args.items
    dict_items = min(items, args.dict_items)
    facts = machine(threads=1)
    result = run(items, dict_items)
    show(result)
    config = {"items": items, "dict_items": dict_items, "sizes": SIZES, "quick": args.quick}
    if args.out or not args.quick:
        write_result("trie", args.out, config, {"machine": facts} | result)
    return result


if __name__ == "__main__":
    main()
