"""Users per second of our beam search, compared with transformers' `generate` and with variants of our own loop.

    python benchmarks/decode.py [--quick] [--run RUN] [--users 64] [--beam 50] [--repeat 5] [--threads 2] [--full]

All variants have the same weights and must find the same items. They take turns in one process; medians and ratios of
medians are reported. Without --run, weights and ids are made up in the shape of Beauty (see _made.py). The second part
grows the catalogue from 12 thousand to 10 million synthetic ids (35.8 million with --full) under one model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _made import BEAUTY_ITEMS, World, growth_world, large_trie, made_world, world_of_run
from _twins import DictTrie, OwnCopies, Transformers
from common import Times, gigabytes, machine, memory_now, side_by_side, write_result

from capsid.decode.beam import BeamSearch
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedLeaves
from capsid.ids.reading import TokenBatch
from capsid.ids.trie import Children, Trie

OURS, COPIES, DICTS, THEIRS = "capsid", "own keys and values a beam", "dict trie", "transformers generate"
GROWTH = (12_101, 100_000, 1_000_000, 10_000_000, 35_800_000)
GROWTH_SIZES = (256, 256, 256, 256)
TOLERANCE = 1e-3
Found = tuple[np.ndarray, np.ndarray]


def variants(world: World, batch: TokenBatch, width: int, k: int) -> dict[str, Callable[[], Found]]:
    """The same question asked four ways; each answers with items and scores."""
    search, network = BeamSearch(width=width), world.generator.network
    copies, dicts, theirs = OwnCopies(network), DictTrie(world.trie), Transformers(network, world.ids.prefix_free)

    def ask(model: Any, trie: Any) -> Callable[[], Found]:
        def call() -> Found:
            found = search.leaves(FittedModel(model, world.ids, (trie,), world.generator.history), world.histories, k)
            return world.trie.items[world.trie.low[found.leaves_UF]], found.scores_UF

        return call

    return {
        OURS: ask(world.generator, world.trie),
        COPIES: ask(copies, world.trie),
        DICTS: ask(world.generator, dicts),
        THEIRS: lambda: theirs.search(batch, width=width, k=k),
    }


def logits_differ(world: World, batch: TokenBatch) -> float:
    """Largest difference of plain logits after the histories: are the weights really the same?"""
    with torch.inference_mode():
        ours = world.generator.scores(*world.generator.start(batch))[:, 0]
        return float((Transformers(world.generator.network, world.ids.prefix_free).logits(batch) - ours).abs().max())


def equality(ours: Found, other: Found) -> dict[str, float]:
    """Share of users with the same items in the same order, and the largest difference of a score at its place."""
    same = (ours[0] == other[0]).all(axis=1)
    return {"users_equal": float(same.mean()), "largest_score_difference": float(np.abs(ours[1] - other[1]).max())}


def compare(world: World, *, width: int, k: int, repeat: int) -> dict[str, Any]:
    """Check that all variants agree, then time them."""
    batch = world.batch()
    difference = logits_differ(world, batch)
    assert difference < TOLERANCE, f"logits differ by {difference}: these are not the same weights"
    calls = variants(world, batch, width, k)
    found = {name: call() for name, call in calls.items()}
    agree = {name: equality(found[OURS], f) for name, f in found.items() if name != OURS}
    for name, how in agree.items():
        # Two ways to round may swap two items of almost equal score; no score may be another one.
        assert how["largest_score_difference"] < TOLERANCE, f"{name} finds other scores: {how}"
        assert how["users_equal"] >= 0.95, f"{name} finds other items: {how}"
    # Their search takes a minute where ours takes a second, so our own variants have more turns without it.
    own = side_by_side({n: calls[n] for n in (OURS, COPIES, DICTS)}, 3 * repeat, warm=False)
    both = side_by_side({n: calls[n] for n in (OURS, THEIRS)}, repeat, warm=False)
    times, users = {**own, THEIRS: both[THEIRS]}, len(batch)
    return {
        "users_per_second": {n: users / t.seconds for n, t in times.items()},
        "users_per_cpu_second": {n: users / t.cpu_seconds for n, t in times.items()},
        "times_slower_than_ours": {n: _ratio(times[n], (both if n == THEIRS else own)[OURS]) for n in agree},
        "agreement": agree,
        "largest_logit_difference": difference,
        "times": {n: t.summary() for n, t in times.items()} | {f"{OURS} beside {THEIRS}": both[OURS].summary()},
        "history_tokens": {"real": int(batch.lengths_B.sum()), "with_padding": int(batch.tokens_BL.size)},
    }


def _ratio(slow: Times, fast: Times) -> dict[str, float]:
    return {"wall": slow.seconds / fast.seconds, "cpu": slow.cpu_seconds / fast.cpu_seconds}


class Watched:
    """A trie that adds up the time spent in it."""

    def __init__(self, trie: Trie) -> None:
        self.trie, self.seconds, self.searches = trie, 0.0, 0

    def searched(self, search: BeamSearch, world: World, k: int) -> RankedLeaves:
        self.searches += 1
        reader = FittedModel(world.generator, world.ids, (self,), world.generator.history)  # type: ignore[arg-type]
        return search.leaves(reader, world.histories, k)

    def children(self, nodes: np.ndarray) -> Children:
        start = time.process_time()
        try:
            return self.trie.children(nodes)
        finally:
            self.seconds += time.process_time() - start

    def is_leaf(self, nodes: np.ndarray) -> np.ndarray:
        start = time.process_time()
        try:
            return self.trie.is_leaf(nodes)
        finally:
            self.seconds += time.process_time() - start


def growth(sizes: tuple[int, ...], *, users: int, width: int, k: int, repeat: int) -> list[dict[str, Any]]:
    """One model, ever larger catalogues: time of a step, time inside the trie, memory."""
    world = growth_world(users, GROWTH_SIZES)
    search = BeamSearch(width=width)
    rows, tries, calls = [], {}, {}
    for items in sizes:
        before, start = memory_now(), time.perf_counter()
        trie = large_trie(items, GROWTH_SIZES)
        seconds = time.perf_counter() - start
        tries[str(items)] = watched = Watched(trie)
        calls[str(items)] = lambda watched=watched: watched.searched(search, world, k)
        memory = {"trie_bytes": trie.nbytes, "process_bytes": memory_now(), "grown_bytes": memory_now() - before}
        rows.append({"items": items, "nodes": trie.nodes, "make_and_build_seconds": seconds, **memory})
    steps = {name: call().steps for name, call in calls.items()}
    for watched in tries.values():
        watched.seconds, watched.searches = 0.0, 0
    times = side_by_side(calls, repeat, warm=False)
    for row in rows:
        name = str(row["items"])
        row["steps"] = steps[name]
        row["seconds_per_step"] = times[name].seconds / steps[name]
        row["cpu_seconds_per_step"] = times[name].cpu_seconds / steps[name]
        row["trie_cpu_seconds_per_step"] = tries[name].seconds / tries[name].searches / steps[name]
        row["users_per_second"] = users / times[name].seconds
    return rows


def show(result: dict[str, Any]) -> None:
    compared = result["compare"]
    for name, speed in compared["users_per_second"].items():
        slower = compared["times_slower_than_ours"].get(name, {"wall": 1.0, "cpu": 1.0})
        equal = compared["agreement"].get(name, {"users_equal": 1.0})["users_equal"]
        print(
            f"{name:28s} {speed:8.1f} users/s   {slower['wall']:6.2f} times our time ({slower['cpu']:.2f} cpu)"
            f"   {equal:.1%} of the users equal"
        )
    for row in result["growth"]:
        print(
            f"{row['items']:>11,} items  {1e3 * row['seconds_per_step']:7.1f} ms a step"
            f" ({1e3 * row['cpu_seconds_per_step']:.1f} cpu, {1e3 * row['trie_cpu_seconds_per_step']:.2f} in the trie)"
            f"  trie {gigabytes(row['trie_bytes'])}  process {gigabytes(row['process_bytes'])}"
        )


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 users, beam 20, small catalogues; writes only to --out")
    parser.add_argument("--run", type=Path, help="a fitted run with ids of one length, for its weights and test users")
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--beam", type=int, default=50)
    parser.add_argument("-k", "--k", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--items", type=int, default=BEAUTY_ITEMS, help="size of the made catalogue")
    parser.add_argument("--full", action="store_true", help="grow to 35.8 million items; takes minutes and a few GB")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    sizes: tuple[int, ...] = GROWTH if args.full else GROWTH[:-1]
    if args.quick:
        args.users, args.beam, args.repeat, sizes = (
            min(args.users, 8),
            min(args.beam, 20),
            min(args.repeat, 2),
            GROWTH[:2],
        )
    torch.set_num_threads(args.threads)
    facts = machine(args.threads)
    world = world_of_run(args.run, args.users) if args.run else made_world(args.users, items=args.items)
    result = {
        "machine": facts,
        "compare": compare(world, width=args.beam, k=args.k, repeat=args.repeat),
        "growth": growth(sizes, users=args.users, width=args.beam, k=args.k, repeat=args.repeat),
    }
    show(result)
    config = {"world": world.name, "items": len(world.trie), "growth_sizes": GROWTH_SIZES}
    config |= {name: getattr(args, name) for name in ("users", "beam", "k", "repeat", "threads", "quick")}
    if args.out or not args.quick:
        write_result("decode", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
