"""What padding and untiled scores cost in a training step: our way against slow twins that give the same gradients.

    python benchmarks/train_steps.py [--quick] [--threads 1]

`sasrec`: the recipe's network and dropout on Beauty-like sequences (512 of all lengths, 12,101 items, 64 wide). Twins
read padded sequences, and have the scores of a few rows for all tokens at once instead of tiles. `merged ids`: the
timeline generator over ids of which most are one token (256 sequences of near-equal length, 10,000 first tokens); the
twin has no tiles. Steps of all variants alternate in one process; the script checks that their gradients agree, and
reports ratios of processor time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks import cross_entropy
from capsid.base.devices import keep_freed_memory
from capsid.base.vocabulary import Vocabulary
from capsid.generate.backbone import Backbone, Predictions
from capsid.generate.generator import TimelineGenerator
from capsid.generate.network import CausalTransformer
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, TermContext
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Over, Trie
from capsid.ragged import Ragged
from capsid.recipes import get_recipe
from capsid.train.batches import BatchPlan

sys.path.insert(0, str(Path(__file__).parent))
from common import machine, side_by_side, write_result

OURS, PADDED, UNTILED, BOTH = "ours", "padded sequences", "no tiles", "padded sequences, no tiles"
ITEMS, USERS, HISTORY, SINGLE = 12_101, 22_363, 50, 9_000


class Padded(CausalTransformer):
    """The same network on padded sequences."""

    def predict(self, lesson: Lesson, *_: Any, **__: Any) -> Predictions:
        """Hidden rows of the tokens before those that are predicted."""
        batch = lesson.batch
        tokens, positions, depths = (
            torch.as_tensor(a)[:, :-1] for a in (batch.tokens_BL, batch.positions_BL, batch.depths_BL)
        )
        read_B = batch.positions_B - 1
        from_end = (positions + torch.as_tensor(self.space.positions - read_B)[:, None]).clamp_max(self.space.positions)
        vectors = self.token.vectors()
        x_BLD = self._embed(vectors, tokens, from_end, depths)
        for block in self.blocks:
            x_BLD, _ = block(x_BLD, empty_B=torch.as_tensor(self.space.positions - read_B))
        place_M = torch.as_tensor(lesson.row_M * x_BLD.shape[1] + lesson.column_M - 1)
        return Predictions(x_BLD.flatten(0, 1)[place_M], lesson.tokens, vectors.score_VS, self.score_rows)


def sequences(seed: int = 0) -> Ragged:
    """Beauty's training lengths: from 3 up, mean 6.9 items."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(3 + rng.geometric(1 / 4.9, size=USERS) - 1, HISTORY + 1)
    return Ragged.from_rows([rng.integers(0, ITEMS, n) for n in lengths], np.int64)


def ids_of(codes: list[list[int]], sizes: tuple[int, ...]) -> SemanticIds:
    return SemanticIds.assign(Vocabulary(map(str, range(len(codes)))), Ragged.from_rows(codes, np.int32), sizes)


def lessons(ids: SemanticIds, batch: int, window: int, count: int) -> list[Lesson]:
    rows = sequences()
    plan = BatchPlan(rows.lengths, batch, 0, window)
    return [ids.lesson(rows.take(b), last=HISTORY + 1) for b in plan.epoch(0)[:count]]


@contextmanager
def untiled(on: bool) -> Iterator[None]:
    """Scores of about a million pairs at once, a few rows with all tokens, as before there were tiles."""
    names = {"TILE_ROWS": 1 << 40, "TILE_TOKENS": 1 << 40, "CHUNK_NUMBERS": 1 << 20}
    kept = {name: getattr(cross_entropy, name) for name in names}
    for name, value in names.items() if on else ():
        setattr(cross_entropy, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(cross_entropy, name, value)


def stepping(
    network: Backbone, objective: Objective, given: list[Lesson], *, tiles: bool
) -> Callable[[], list[Tensor]]:
    """Loss, gradients and an optimiser step that moves nothing, for every lesson; the gradients of the last one."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0, fused=True)

    def steps() -> list[Tensor]:
        torch.manual_seed(0)
        with untiled(not tiles):
            for lesson in given:
                optimizer.zero_grad(set_to_none=True)
                objective.loss(lesson, network).backward()
                optimizer.step()
        return [p.grad.clone() for p in network.parameters() if p.grad is not None]

    return steps


def sasrec_variants(count: int) -> dict[str, Callable[[], list[Tensor]]]:
    ids = ids_of([[i] for i in range(ITEMS)], (ITEMS,))
    generator = replace(get_recipe("sasrec").generator).build(ids, np.ones(ITEMS), seed=0)
    ours = generator.network.train()
    twin = Padded(generator, ours.space, sasrec=True).train()
    twin.load_state_dict(ours.state_dict())
    objective = bound(ids, "vocabulary")
    given = lessons(ids, 512, 1, count)
    return {
        OURS: stepping(ours, objective, given, tiles=True),
        PADDED: stepping(twin, objective, given, tiles=True),
        UNTILED: stepping(ours, objective, given, tiles=False),
        BOTH: stepping(twin, objective, given, tiles=False),
    }


def merged_variants(count: int) -> dict[str, Callable[[], list[Tensor]]]:
    rng = np.random.default_rng(0)
    longer = [[SINGLE + int(a), int(b), int(c)] for a, b, c in rng.integers(0, (1_000, 256, 256), (ITEMS - SINGLE, 3))]
    ids = ids_of([*([i] for i in range(SINGLE)), *longer], (SINGLE + 1_000, 256, 256))
    rates = {"dropout": 0.6, "embedding_dropout": 0.6, "hidden_dropout": 0.6}
    sizes = {"width": 64, "feedforward": 256, "cosine_temperature": 0.0, "input_scale": 8.0}
    network = TimelineGenerator(**sizes, **rates).build(ids, np.ones(ITEMS), seed=0).network.train()
    objective, given = bound(ids, "children"), lessons(ids, 256, 32, count)
    return {
        OURS: stepping(network, objective, given, tiles=True),
        UNTILED: stepping(network, objective, given, tiles=False),
    }


def bound(ids: SemanticIds, over: Over) -> Objective:
    return Objective((NextToken(),), TermContext(ids, (Trie.build(ids.prefix_free),), over))


def apart(variants: Mapping[str, Callable[[], list[Tensor]]]) -> float:
    """The largest difference of a variant's gradient from ours, relative to the largest number in that gradient."""
    expected = variants[OURS]()
    gaps = [
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))
        for name in variants
        for a, b in zip(variants[name](), expected)
    ]
    return max(gaps)


def measured(variants: Mapping[str, Callable[[], list[Tensor]]], repeat: int, steps: int) -> dict[str, Any]:
    gap = apart(variants)
    times = side_by_side(variants, repeat, warm=False)
    ratios = {name: float(np.median(np.array(times[OURS].cpu) / np.array(found.cpu))) for name, found in times.items()}
    for name, found in times.items():
        print(f"{name:32s} {found.cpu_seconds / steps:8.4f} s a step   ours takes {ratios[name]:.2f} of it")
    print(f"gradients differ by at most {gap:.1e} of their largest number")
    return {
        "cpu_seconds_per_step": {name: round(found.cpu_seconds / steps, 5) for name, found in times.items()},
        "ours_relative_to": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "largest_difference_of_gradients": gap,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one batch; writes only to --out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()
    steps, repeat = (1, 1) if chosen.quick else (3, 3)
    result = {
        "machine": machine(chosen.threads),
        "sasrec": measured(sasrec_variants(steps), repeat, steps),
        "merged ids": measured(merged_variants(3 * steps), repeat, 3 * steps),
    }
    config = {"threads": chosen.threads, "batches": steps, "repeats": repeat, "items": ITEMS, "users": USERS}
    if chosen.out or not chosen.quick:
        write_result("train_steps", chosen.out, config, result)
    return result


if __name__ == "__main__":
    main()
