"""Compares the capsule tokenizer with residual k-means, an RQ-VAE and faiss: fit time, speed, memory and growth.

    python benchmarks/tokenizer.py [--quick | --full] [--sizes 10000,100000] [--threads 2] [--out FILE]

Vectors are synthetic (sums of random centres at falling scales, with noise). In one process the variants take turns;
residual k-means and the RQ-VAE get the capsules' depths and codebooks, the RQ-VAE 300 steps of the capsules' batch.
Peak memory and growth are measured in separate processes that do only one thing, on a mapped file: growth fits from the
stream and encodes shard by shard. `--full` goes to 3 million items and takes long.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

from capsid.data.item_table import ItemTable
from capsid.encode.large_vectors import open_vectors
from capsid.scale.codes import encode_shards
from capsid.tokenize.capsules.settings import stage_one_training
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_terms import rqvae_training
from capsid.train.options import Training

sys.path.insert(0, str(Path(__file__).parent))
from common import gigabytes, machine, memory_now, memory_peak, side_by_side, write_result

OURS, KMEANS, VAE = "capsules", "residual k-means", "RQ-VAE"
STREAM = "stream"
FAISS_ONE, FAISS_DEFAULT = "faiss residual quantizer, beam 1", "faiss residual quantizer, default beam"
FULL = (10_000, 100_000, 1_000_000, 3_000_000)
RESTARTS = ResidualKMeans().restarts
QUICK = {"items": 1_500, "width": 16, "codebook": 16, "depths": 3, "steps": 20, "vae_steps": 20, "sizes": "1000,3000"}


class Steps:
    """Counts the steps of a fit, which early stopping may end before its time."""

    def __init__(self) -> None:
        self.count = 0

    def line(self, text: str) -> None:
        """Not a step."""

    def update(self, text: str) -> None:
        """The training loop says something after each step."""
        self.count += 1


class Held:
    """The most memory that could not be taken back while it watched: pages of a mapped file can, so they do not count.

    Looks every hundredth of a second, because the kernel keeps a peak only of both together. None where it cannot look.
    """

    def __enter__(self) -> Held:
        self.peak: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            try:
                found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
            except OSError:
                return
            self.peak = max(self.peak or 0, int(found[1]) * 1024) if found else None


def write_vectors(path: Path, items: int, width: int, *, seed: int = 0, block: int = 65_536) -> Path:
    """Made vectors of length one in a file, a block at a time."""
    rng = np.random.default_rng(seed)
    levels = [rng.normal(size=(64, width)).astype(np.float32) * 0.7**depth for depth in range(6)]
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(items, width))
    for start in range(0, items, block):
        rows = min(block, items - start)
        made = 0.15 * rng.standard_normal((rows, width), dtype=np.float32)
        for centres in levels:
            made += centres[rng.integers(0, len(centres), rows)]
        out[start : start + rows] = made / np.linalg.norm(made, axis=1, keepdims=True)
    out.flush()
    return path


def capsules(args: argparse.Namespace) -> CapsuleTokenizer:
    """Our tokenizer as the recipe has it, with the sizes and steps asked for."""
    return CapsuleTokenizer(
        codebooks=(args.codebook,) * args.depths, training=_training(stage_one_training(), args.steps)
    )


def rqvae(args: argparse.Namespace, steps: int) -> RQVAE:
    """The RQ-VAE as the recipe has it, with the sizes and steps asked for and the capsules' batch."""
    usual = replace(rqvae_training(), batch_size=stage_one_training().batch_size)
    return RQVAE(codebooks=(args.codebook,) * args.depths, training=_training(usual, steps))


def _training(usual: Training, steps: int) -> Training:
    return replace(usual, steps=steps, validate_every=min(usual.validate_every, max(1, steps // 2)))


def faiss_quantizer(args: argparse.Namespace, vectors_ND: np.ndarray, beam: int | None) -> Any:
    """As it comes but for the beam, which it trains with as well."""
    quantizer = faiss.ResidualQuantizer(vectors_ND.shape[1], args.depths, args.codebook.bit_length() - 1)
    quantizer.max_beam_size = beam or quantizer.max_beam_size
    quantizer.train(vectors_ND)
    return quantizer


def compare_fit(args: argparse.Namespace, table: ItemTable) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was fitted, and its seconds: each also as a multiple of residual k-means as the recipe has it."""
    fitted: dict[str, Any] = {}
    steps = Steps()
    sizes = (args.codebook,) * args.depths

    def ours() -> None:
        steps.count = 0
        fitted[OURS] = capsules(args).fit(table, progress=steps)

    def theirs(name: str, restarts: int) -> None:
        fitted[name] = ResidualKMeans(codebooks=sizes, restarts=restarts).fit(table)

    def network() -> None:
        fitted[VAE] = rqvae(args, args.vae_steps).fit(table)

    once = f"{KMEANS}, one start"
    variants = {OURS: ours, KMEANS: lambda: theirs(KMEANS, RESTARTS), once: lambda: theirs(once, 1), VAE: network}
    times = side_by_side(variants, args.repeat, warm=False)
    base = times[KMEANS]
    return fitted, {
        "steps": steps.count,
        "restarts": RESTARTS,
        "times": {name: t.summary() for name, t in times.items()},
        "over_residual_kmeans": {name: t.seconds / base.seconds for name, t in times.items()},
        "over_residual_kmeans_cpu": {name: t.cpu_seconds / base.cpu_seconds for name, t in times.items()},
    }


def compare_encode(args: argparse.Namespace, table: ItemTable, fitted: dict[str, Any]) -> dict[str, Any]:
    """Items a second, every variant on the same rows in memory, and what it leaves unexplained."""
    vectors_ND = np.array(table.vectors())
    held = table.with_block("item", vectors_ND)
    ours, means, learnt = (fitted[name] for name in (OURS, KMEANS, VAE))
    one, usual = (faiss_quantizer(args, vectors_ND, beam) for beam in (1, None))
    variants: dict[str, Callable[[], Any]] = {
        OURS: lambda: ours.encode(held),
        KMEANS: lambda: means.encode(held),
        VAE: lambda: learnt.encode(held),
        FAISS_ONE: lambda: one.compute_codes(vectors_ND),
        FAISS_DEFAULT: lambda: usual.compute_codes(vectors_ND),
    }
    times = side_by_side(variants, args.repeat)
    codes = ours.encode(held)
    return {
        "times": {name: t.summary() for name, t in times.items()},
        "items_per_second": {name: len(table) / t.seconds for name, t in times.items()},
        "speed_of_faiss": {name: times[FAISS_DEFAULT].seconds / t.seconds for name, t in times.items()},
        "speed_of_faiss_cpu": {name: times[FAISS_DEFAULT].cpu_seconds / t.cpu_seconds for name, t in times.items()},
        "beam": {FAISS_ONE: one.max_beam_size, FAISS_DEFAULT: usual.max_beam_size},
        # Ours ends ids early; the others use every depth, so this is no comparison at equal length.
        "mean_length": float(codes.lengths.mean()),
        "unexplained": {
            OURS: _left(vectors_ND, ours.decode(codes)),
            KMEANS: _left(vectors_ND, means.decode(means.encode(held))),
            VAE: _left(vectors_ND, learnt.decode(learnt.encode(held))),
            FAISS_ONE: _left(vectors_ND, one.decode(one.compute_codes(vectors_ND))),
            FAISS_DEFAULT: _left(vectors_ND, usual.decode(usual.compute_codes(vectors_ND))),
        },
    }


def _left(vectors_ND: np.ndarray, decoded_ND: np.ndarray) -> float:
    return float(np.linalg.norm(vectors_ND - decoded_ND, axis=1).mean())


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One job in this process: fit, then encode; seconds and peak memory of each."""
    source, sizes = open_vectors(args.folder / "vectors.npy"), (args.codebook,) * args.depths
    table, kind, before = source.table(), args.measure, memory_now()
    out = {"items": len(source), "matrix_bytes": source.vectors_ND.nbytes, "before_bytes": before}
    start, cpu = time.perf_counter(), time.process_time()
    with Held() as held:
        if kind in (OURS, STREAM):
            fitted: Any = capsules(args).fit(table)
        elif kind == KMEANS:
            fitted = ResidualKMeans(codebooks=sizes).fit(table)
        elif kind == VAE:
            fitted = rqvae(args, args.vae_steps).fit(table)
        else:
            fitted = faiss_quantizer(args, np.array(source.vectors_ND), 1 if kind == FAISS_ONE else None)
    out |= {"fit_seconds": time.perf_counter() - start, "fit_cpu_seconds": time.process_time() - cpu}
    out["fit_held_peak_bytes"] = held.peak
    start, cpu = time.perf_counter(), time.process_time()
    with Held() as held:
        if kind == STREAM:
            encode_shards(fitted, source, args.folder / "codes")
        elif kind in (OURS, KMEANS, VAE):
            fitted.encode(table)
        else:
            fitted.compute_codes(np.array(source.vectors_ND))
    out |= {"encode_seconds": time.perf_counter() - start, "encode_cpu_seconds": time.process_time() - cpu}
    return out | {"encode_held_peak_bytes": held.peak, "peak_bytes": memory_peak()}


def measured_apart(kind: str, items: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run one measurement in a fresh process on vectors made here."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        write_vectors(Path(name) / "vectors.npy", items, args.width)
        command = [sys.executable, __file__, "--measure", kind, "--folder", name]
        for option in ("items", "width", "codebook", "depths", "steps", "vae-steps", "threads"):
            command += [f"--{option}", str(getattr(args, option.replace("-", "_")))]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return json.loads(done.stdout)


def growth(args: argparse.Namespace, sizes: list[int]) -> list[dict[str, Any]]:
    """Fit from a mapped file and encode it in shards, ever more items."""
    out = []
    for items in sizes:
        measured = measured_apart(STREAM, items, args)
        measured["items_per_second"] = items / measured["encode_seconds"]
        measured["items_per_cpu_second"] = items / measured["encode_cpu_seconds"]
        out.append(measured)
        print(_growth_line(measured), file=sys.stderr)
    return out


def run(args: argparse.Namespace) -> dict[str, Any]:
    sizes = list(FULL) if args.full else [int(s) for s in args.sizes.split(",")]
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        table = open_vectors(write_vectors(Path(name) / "vectors.npy", args.items, args.width)).table()
        fitted, fit = compare_fit(args, table)
        out: dict[str, Any] = {"fit": fit, "encode": compare_encode(args, table, fitted)}
    kinds = (OURS, KMEANS, VAE, FAISS_ONE, FAISS_DEFAULT)
    out["memory"] = {kind: measured_apart(kind, args.items, args) for kind in kinds}
    out["growth"] = growth(args, sizes)
    return out


def show(result: dict[str, Any]) -> None:
    fit, encode = result["fit"], result["encode"]
    print(f"fit ({fit['steps']} steps of the capsules)")
    for name, ratio in fit["over_residual_kmeans"].items():
        cpu, seconds = fit["over_residual_kmeans_cpu"][name], fit["times"][name]["seconds"]
        print(f"  {name:40s} {seconds:8.2f} s  {ratio:6.2f} of residual k-means ({cpu:.2f} cpu)")
    print(f"encode (mean length {encode['mean_length']:.2f})")
    for name, speed in encode["items_per_second"].items():
        ratio, cpu = encode["speed_of_faiss"][name], encode["speed_of_faiss_cpu"][name]
        left = encode["unexplained"][name]
        print(
            f"  {name:40s} {speed:10,.0f} items/s  {ratio:6.2f} of faiss ({cpu:.2f} cpu)  {left:.3f} of the norm left"
        )
    print("peak memory of a process that fits and encodes (of it before it began: libraries)")
    for name, m in result["memory"].items():
        print(f"  {name:40s} {gigabytes(m['peak_bytes'])} ({gigabytes(m['before_bytes'])})")
    print("growth: fit from a mapped file, encode in shards")
    for measured in result["growth"]:
        print(_growth_line(measured))


def _growth_line(m: dict[str, Any]) -> str:
    return (
        f"  {m['items']:>9,} items ({gigabytes(m['matrix_bytes'])})  fit {m['fit_seconds']:8.1f} s"
        f"  encode {m['items_per_second']:10,.0f} items/s  peak {gigabytes(m['peak_bytes'])}"
        f", without mapped pages {gigabytes(max(m['fit_held_peak_bytes'] or 0, m['encode_held_peak_bytes'] or 0))}"
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--items", type=int, default=12_101, help="items where variants are compared; Beauty has 12,101")
    made.add_argument("--width", type=int, default=128)
    made.add_argument("--codebook", type=int, default=256, help="codes a depth, a power of two")
    made.add_argument("--depths", type=int, default=len(CapsuleTokenizer().codebooks))
    made.add_argument("--steps", type=int, default=stage_one_training().steps)
    made.add_argument("--vae-steps", type=int, default=300, help="training steps of the RQ-VAE")
    made.add_argument("--sizes", default="10000,100000", help="catalogues of the growth, with commas between")
    made.add_argument("--repeat", type=int, default=1)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--quick", action="store_true", help="tiny sizes; writes only to --out")
    made.add_argument("--full", action="store_true", help=f"growth to {FULL[-1]:,} items; needs 4 GB of disk")
    made.add_argument("--scratch", type=Path, help="where made vectors lie for a while")
    made.add_argument("--out", type=Path)
    made.add_argument("--measure", help=argparse.SUPPRESS)
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return made


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    args = parser().parse_args(arguments)
    if args.codebook & (args.codebook - 1):
        parser().error("--codebook must be a power of two: faiss counts bits")
    if args.quick:
        vars(args).update(QUICK)
    torch.set_num_threads(args.threads)
    faiss.omp_set_num_threads(args.threads)
    if args.measure:
        measured = measure(args)
        print(json.dumps(measured))
        return measured
    facts = machine(args.threads) | {"faiss": faiss.__version__}
    result = run(args)
    show(result)
    left_out = ("out", "folder", "measure", "scratch")
    config = {name: value for name, value in vars(args).items() if name not in left_out}
    if args.out or not args.quick:
        write_result("tokenizer", args.out, config, {"machine": facts} | result)
    return result


if __name__ == "__main__":
    main()
