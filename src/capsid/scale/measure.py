"""Measures the rates of `capsid.scale.plan` on this machine: small jobs of every stage, in processor time.

Costs that depend on the number of codes are measured at two sizes and split into their parts. Takes half a minute of
one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.data.planted import planted_codes
from capsid.data.streaming import import_tables
from capsid.decode.beam import BeamSearch
from capsid.decode.model import FittedModel
from capsid.encode.text import MINILM, load_model
from capsid.errors import ConfigError
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.generate.generator import NetworkGenerator, TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, TermContext
from capsid.ids.collisions import Bucket
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.scale.plan import Growth, Rates
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer

DEPTH, DIM = 4, 128
SIZES = (64, 256)
HISTORY = 20


def measured(*, rows: int = 4_096, interactions: int = 100_000, items: int = 20_000, users: int = 16) -> Rates:
    """The rates of this machine with the threads that torch uses now."""
    tokenizers = [_tokenizer(rows, codes) for codes in SIZES]
    trained, ranked = {}, {}
    for kind in (TimelineGenerator, EncoderDecoderGenerator):
        worlds = [_Model(kind(history=HISTORY), codes, items, users) for codes in SIZES]
        trained[kind] = _with_scores([world.train() for world in worlds])
        ranked[kind] = _with_scores([world.rank() for world in worlds])
    return Rates(
        prepare=_prepare(interactions),
        text=_text(),
        fit=Growth(codes=tokenizers[-1][0] / (SIZES[-1] * DEPTH)),
        encode=_with_codes([encode for _, encode in tokenizers]),
        ids=Growth(each=_seconds(lambda: Trie.build(_made_ids(items, 256).prefix_free), 1) / items),
        train=trained[TimelineGenerator],
        train_t5=trained[EncoderDecoderGenerator],
        rank=ranked[TimelineGenerator],
        rank_t5=ranked[EncoderDecoderGenerator],
    )


def _with_codes(costs: list[float]) -> Growth:
    """A part that each item has, and one that grows with the codes."""
    slope = max((costs[1] - costs[0]) / (SIZES[1] - SIZES[0]) / DEPTH, 0.0)
    return Growth(each=max(costs[1] - slope * SIZES[1] * DEPTH, 0.0), codes=slope)


def _with_scores(costs: list[float]) -> Growth:
    """A part that each token has, and one that grows with the vocabulary that it is scored against."""
    slope = max((costs[1] - costs[0]) / (SIZES[1] - SIZES[0]) / DEPTH**2, 0.0)
    return Growth(depth=max(costs[1] - slope * SIZES[1] * DEPTH**2, 0.0) / DEPTH, scores=slope)


def _seconds(call: Callable[[], object], repeat: int = 2) -> float:
    """The least processor time of some calls, after one that is not counted."""
    call()
    times = []
    for _ in range(repeat):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def _prepare(count: int) -> float:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "user": np.char.add("u", rng.integers(0, count // 20, count).astype(str)),
            "item": np.char.add("i", rng.integers(0, count // 10, count).astype(str)),
            "timestamp": rng.integers(0, 10**9, count),
        }
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tables").mkdir()
        frame.write_parquet(folder / "tables" / "interactions.parquet")
        return _seconds(lambda: import_tables(folder / "tables", folder / "out", k=2), 1) / count


def _text(count: int = 64, words: int = 20) -> float:
    """With MiniLM where it is installed; otherwise the stored rate."""
    try:
        model = load_model(MINILM)
    except ConfigError:
        return Rates().text
    vocabulary = ("red", "blue", "small", "large", "cotton", "shirt", "shoe", "lamp", "book", "game", "table", "cream")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(vocabulary, words)) for _ in range(count)]
    return _seconds(lambda: model.encode(texts, batch_size=count, show_progress_bar=False), 1) / count


def _tokenizer(rows: int, codes: int) -> tuple[float, float]:
    """Seconds per row to fit, without the pass that encodes all of them, and to encode."""
    vectors = np.random.default_rng(0).standard_normal((rows, DIM), dtype=np.float32)
    table = ItemTable.new_items(Vocabulary(map(str, range(rows))), pl.DataFrame(), ()).with_block("item", vectors)
    start = time.process_time()
    # Ids of full length: in a large catalogue few prefixes are unique early.
    tokenizer = CapsuleTokenizer(codebooks=(codes,) * DEPTH, confidence=1.0, max_sharing=0).fit(table)
    fit = time.process_time() - start
    encode = _seconds(lambda: tokenizer.encode(table), 1)
    return max(fit - encode, 0.0) / rows, encode / rows


def _made_ids(items: int, codes: int) -> SemanticIds:
    rows = Ragged.from_dense(planted_codes(items, (codes,) * DEPTH).astype(np.int32))
    return SemanticIds.assign(Vocabulary(map(str, range(items))), rows, (codes,) * DEPTH, Bucket())


class _Model:
    """A generator at default sizes over made ids, and histories of 20 items."""

    def __init__(self, generator: NetworkGenerator, codes: int, items: int, users: int) -> None:
        self.ids = _made_ids(min(items, codes**2), codes)
        self.generator = generator.build(self.ids, np.ones(len(self.ids)), seed=0)
        self.trie = Trie.build(self.ids.prefix_free)
        rng = np.random.default_rng(0)
        self.histories = Ragged.from_dense(rng.integers(0, len(self.ids), (users, HISTORY)))

    def train(self) -> float:
        """Seconds per interaction: forward, backward and an optimiser step."""
        network = self.generator.network.train()
        objective = Objective((NextToken(),), TermContext(self.ids, (self.trie,)))
        optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4)

        def step() -> None:
            lesson = self.ids.lesson(self.histories, last=HISTORY + 1)
            objective.loss(lesson, network).backward()
            optimiser.step()
            optimiser.zero_grad()

        seconds = _seconds(step)
        network.eval()
        return seconds / self.histories.values.size

    def rank(self) -> float:
        """Seconds per user."""
        model = FittedModel(self.generator, self.ids, (self.trie,), HISTORY)
        return _seconds(lambda: BeamSearch(width=50).rank(model, self.histories, 10)) / len(self.histories)
