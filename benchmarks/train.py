"""Training speed: a step of our loop against a transformers GPT-2 of the same shape on the same batches.

    python benchmarks/train.py [--quick] [--threads 2]

All read the same Beauty-like batches (synthetic ids, 3 x 256 codes and a suffix token, 64 sequences, near-equal lengths
together), with residual and embedding dropout 0.2, AdamW, clipping; their steps alternate in one process. Tokens are
real ones, padding not counted. GPT-2 is measured twice: with its defaults (its own activation, attention dropout 0.1),
and with our choices (exact GELU, no attention dropout, fused AdamW). The timeline generator, which all recipes with ids
have, is no network of GPT-2's shape: it learns from the same lessons with its own sizes. Ours are also measured with
losses over the children of a node. The script also reports the share of the measured sgemm speed that our step reaches.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from capsid.base.devices import keep_freed_memory
from capsid.base.vocabulary import Vocabulary
from capsid.data.planted import planted_codes
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, TermContext
from capsid.ids.collisions import Suffix
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Over, Trie
from capsid.ragged import Ragged
from capsid.train.batches import BatchPlan
from capsid.train.options import Training

sys.path.insert(0, str(Path(__file__).parent))
from common import machine, write_result

OURS, PLAIN, BENT = "capsid", "transformers GPT-2 as it comes", "transformers GPT-2 bent to our choices"
CHILDREN = ", over children"
TIMELINE = "timeline generator"
ITEMS, USERS, BATCH, DROPOUT = 12_101, 22_363, 64, 0.2


def made_lessons(count: int, seed: int = 0) -> tuple[SemanticIds, list[Lesson]]:
    rng = np.random.default_rng(seed)
    codes = Ragged.from_dense(np.asarray(planted_codes(ITEMS, (256, 256, 256), seed=seed), dtype=np.int32))
    ids = SemanticIds.assign(Vocabulary(map(str, range(ITEMS))), codes, (256, 256, 256), Suffix())
    # Beauty's training lengths: from 3 up, mean 6.9 items.
    lengths = np.minimum(3 + rng.geometric(1 / 4.9, size=USERS) - 1, 51)
    rows = Ragged.from_rows([rng.integers(0, ITEMS, n) for n in lengths], np.int64)
    plan = BatchPlan(lengths, BATCH, seed)
    return ids, [ids.lesson(rows.take(b), last=51) for b in plan.epoch(0)[:count]]


def our_step(ids: SemanticIds, kind: type[TransformerGenerator], over: Over) -> Callable[[Lesson], None]:
    options = Training()
    generator = kind(dropout=DROPOUT, embedding_dropout=DROPOUT, warm_start=False)
    generator.build(ids, np.ones(ITEMS), seed=0)
    network = generator.network.train()
    objective = Objective((NextToken(),), TermContext(ids, (Trie.build(ids.prefix_free),), over))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)

    def step(lesson: Lesson) -> None:
        loss = objective.loss(lesson, network)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), options.clip)
        optimizer.step()

    return step


def gpt2_step(ids: SemanticIds, *, bent: bool) -> Callable[[Lesson], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=ids.layout.vocabulary,
        n_positions=256,
        n_embd=128,
        n_layer=4,
        n_head=4,
        n_inner=512,
        activation_function="gelu" if bent else "gelu_new",
        resid_pdrop=DROPOUT,
        embd_pdrop=DROPOUT,
        attn_pdrop=0.0 if bent else 0.1,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=bent or None)

    def step(lesson: Lesson) -> None:
        batch = lesson.batch
        tokens = torch.from_numpy(batch.tokens_BL)
        labels = torch.where(torch.from_numpy(batch.positions_BL) >= 1, tokens, -100)
        mask = torch.arange(tokens.shape[1])[None] < torch.from_numpy(batch.lengths_B)[:, None]
        loss = model(input_ids=tokens, attention_mask=mask.long(), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def sgemm_gflops() -> float:
    """Best of many products of the shape that dominates a step."""
    a, b = torch.randn(2048, 512), torch.randn(512, 512)
    best = 1e9
    for _ in range(40):
        start = time.perf_counter()
        F.linear(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 2048 * 512 * 512 / best / 1e9


def flops_per_token(vocabulary: int) -> float:
    """Multiply-adds of the matrix products, forward and backward (three times forward)."""
    block = 3 * 128 * 128 + 128 * 128 + 2 * 128 * 512
    return 3 * 2 * (4 * block + 128 * vocabulary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few batches; writes only to --out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    count = 8 if arguments.quick else 60
    ids, lessons = made_lessons(count)
    keep_freed_memory()  # for all three alike: the loop calls it, and it helps GPT-2 as much
    steps = {
        OURS: our_step(ids, TransformerGenerator, "vocabulary"),
        OURS + CHILDREN: our_step(ids, TransformerGenerator, "children"),
        TIMELINE: our_step(ids, TimelineGenerator, "vocabulary"),
        TIMELINE + CHILDREN: our_step(ids, TimelineGenerator, "children"),
        PLAIN: gpt2_step(ids, bent=False),
        BENT: gpt2_step(ids, bent=True),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    gemm = []
    for number, lesson in enumerate([*lessons[:3], *lessons]):
        gemm.append(sgemm_gflops() if number % 10 == 0 else gemm[-1])
        for name, step in steps.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            step(lesson)
            if number >= 3:
                times[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - start_cpu)
    batches = [lesson.batch for lesson in lessons]
    tokens = np.array([int(b.lengths_B.sum()) for b in batches])
    padding = 1 - tokens.sum() / sum(b.tokens_BL.size for b in batches)
    speed = {name: float(np.median(tokens / np.array(t))) for name, t in times.items()}
    ratios = {n: float(np.median(np.array(t) / np.array(times[OURS]))) for n, t in times.items()}
    cpu_ratios = {n: float(np.median(np.array(t) / np.array(cpu[OURS]))) for n, t in cpu.items()}
    share = speed[OURS] * flops_per_token(ids.layout.vocabulary) / (max(gemm) * 1e9)
    for name, value in speed.items():
        line = f"{name:40s} {value:10,.0f} tokens/s"
        print(f"{line}  {ratios[name]:.2f} times our time, processor {cpu_ratios[name]:.2f}")
    print(f"padding {padding:.1%}  sgemm {max(gemm):.0f} GFLOP/s  share of sgemm {share:.0%}")
    result = {
        "machine": machine(arguments.threads),
        "tokens_per_second": speed,
        "times_our_time": ratios,
        "times_our_processor_time": cpu_ratios,
        "padding": float(padding),
        "sgemm_gflops": max(gemm),
        "share_of_sgemm": share,
    }
    config = {"threads": arguments.threads, "batches": count, "batch_size": BATCH, "dropout": DROPOUT}
    if arguments.out or not arguments.quick:
        write_result("train", arguments.out, config, result)


if __name__ == "__main__":
    main()
