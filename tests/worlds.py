"""Small worlds with known answers, for the tests of all rooms: random ids, random models, a model that is a table."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from capsid.base.run_options import CheckpointFile, RunOptions
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.decode.beam import BeamSearch
from capsid.decode.model import FittedModel
from capsid.decode.ranked import Retriever
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.network import CausalTransformer
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, Term, TermContext
from capsid.ids.collisions import CollisionPolicy, Hashed, Suffix
from capsid.ids.merges import MergeTable, PieceTable
from capsid.ids.reading import Lesson, TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Over, Trie
from capsid.ragged import Ragged
from capsid.tokenize.item_tokenizer import ItemTokenizer


def make_ids(
    codes: Sequence[Sequence[int]], sizes: Sequence[int], collisions: CollisionPolicy | None = None
) -> SemanticIds:
    """Ids of items a0, a1, ... from their codes."""
    items = Vocabulary(f"a{i}" for i in range(len(codes)))
    return SemanticIds.assign(items, Ragged.from_rows(codes), sizes, collisions)


def pieces_of(codes: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> SemanticIds:
    """Ids of three depths of four codes (tokens 2 to 13) and eight hashes (14 to 21), with merges in any order."""
    ids = make_ids(codes, (4, 4, 4), Hashed(capacity=8))
    return ids.with_merges(PieceTable.of_pairs(22, pairs, [1.0] * len(pairs)))


def random_codes(
    seed: int, *, items: int, sizes: Sequence[int], variable: bool = False, distinct: bool = True
) -> list[list[int]]:
    """Rows of codes; `variable` ones end anywhere, so that some are prefixes of others."""
    rng = np.random.default_rng(seed)
    rows: list[list[int]] = []
    while len(rows) < items:
        length = int(rng.integers(1, len(sizes) + 1)) if variable else len(sizes)
        row = [int(rng.integers(0, s)) for s in sizes[:length]]
        if not distinct or row not in rows:
            rows.append(row)
    return rows


ID_FORMS = ("fixed", "variable", "bucket", "suffix", "merged")


def ids_of_form(seed: int, form: str) -> SemanticIds:
    """20 items of each form of id: of one length, some that continue others, shared, with suffixes, with merges."""
    if form == "suffix":
        return make_ids(random_codes(seed, items=20, sizes=(3, 2), distinct=False), (3, 2), Suffix())
    codes = random_codes(seed, items=20, sizes=(4, 3, 3), variable=form != "fixed", distinct=form != "bucket")
    ids = make_ids(codes, (4, 3, 3))
    # Tokens 2 to 5 are the codes of the first depth, 6 to 8 those of the second.
    return ids.with_merges(MergeTable(12, (2, 3), (6, 7), (0.9, 0.8), (1, 1))) if form == "merged" else ids


def ragged_codes(
    *, depths: int = 4, size: int = 4, most: int = 25, absent: bool = False
) -> st.SearchStrategy[list[list[int]]]:
    """Rows of one to `depths` codes, with repeats and prefixes of each other; with `absent` some are -1."""
    row = st.lists(st.integers(-1 if absent else 0, size - 1), min_size=1, max_size=depths)
    return st.lists(row.map(lambda r: [*r[:-1], max(r[-1], 0)]), min_size=1, max_size=most)


def shared_prefixes(codes: Sequence[Sequence[int]], max_sharing: int, of: str = "codes") -> set[tuple[int, ...]]:
    """Prefixes of more than `max_sharing` different full codes (or items), counted one by one; none where it is 0."""
    rows = [tuple(int(c) for c in row) for row in codes]
    counted = set(rows) if of == "codes" else rows
    counts = Counter(row[:depth] for row in counted for depth in range(1, len(row) + 1))
    return {prefix for prefix, count in counts.items() if max_sharing and count > max_sharing}


# Makers of every generator of ids with several tokens.
MakeGenerator = Callable[..., TransformerGenerator]
GENERATORS: dict[str, MakeGenerator] = {
    "transformer": TransformerGenerator,
    "timeline": TimelineGenerator,
    "encoder-decoder": partial(EncoderDecoderGenerator, head_width=6, depth_layers=2),
    "encoder-decoder of one target": partial(EncoderDecoderGenerator, head_width=6, depth_layers=2, targets="last"),
}


def whole_rows(network: CausalTransformer, tokens_BL: Tensor, positions_BL: Tensor, depths_BL: Tensor) -> Tensor:
    """Last hidden rows of padded sequences, before the last norm: the slow twin of reading them without padding."""
    enter_VD = network.token.vectors().enter_VD
    x_BLD = F.embedding(tokens_BL, enter_VD) + network.place(positions_BL) + network.depth(depths_BL)
    for block in network.blocks:
        x_BLD, _ = block(x_BLD)
    return x_BLD


def random_generator(
    ids: SemanticIds,
    seed: int = 0,
    *,
    kind: MakeGenerator = TransformerGenerator,
    scale: float = 12.0,
    **fields: Any,
) -> TransformerGenerator:
    """An untrained Transformer whose weights are large enough for its distributions to be far from flat."""
    settings = {"layers": 2, "heads": 2, "width": 16, "feedforward": 24, "history": 6, "initial": "small", **fields}
    generator = kind(**settings).build(ids, np.ones(len(ids)), seed=seed)
    with torch.no_grad():
        for parameter in generator.network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)
            else:
                source = torch.Generator().manual_seed(seed)
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=source))
    return generator


def random_histories(seed: int, items: int, lengths: Sequence[int]) -> Ragged:
    """Histories of the given lengths without repeats (as far as the catalogue goes)."""
    rng = np.random.default_rng(seed)
    return Ragged.from_rows([rng.permutation(items)[:n] for n in lengths], np.int64)


def make_table(vectors: np.ndarray, *, names: list[str] | None = None) -> ItemTable:
    """Items with a title and a vector each, and a shape that follows from the vector."""
    items = Vocabulary(names or [f"i{n}" for n in range(len(vectors))])
    shapes = ["round" if vector[0] > 0 else "square" for vector in vectors]
    frame = pl.DataFrame(
        {"title": [f"title {i}" for i in items], "shape": shapes}, schema={"title": pl.String, "shape": pl.String}
    )
    return ItemTable.new_items(items, frame, ("title",)).with_block("item", vectors.astype(np.float32))


class TableModel:
    """Answers the decoder's protocol from a function of (user, prefix): the probabilities of all tokens."""

    def __init__(self, vocabulary: int, probabilities: Callable[[int, tuple[int, ...]], dict[int, float]]) -> None:
        self.vocabulary = vocabulary
        self.probabilities = probabilities
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def start(
        self, histories: TokenBatch, inputs_RD: Tensor | None = None
    ) -> tuple[list[list[tuple[int, ...]]], Tensor]:
        state = [[()] for _ in range(len(histories))]
        return state, torch.zeros(len(histories), 1, 0)

    def step(
        self, state: list[list[tuple[int, ...]]], parents_UW: Tensor, tokens_UW: Tensor
    ) -> tuple[list[list[tuple[int, ...]]], Tensor]:
        grown = [
            [(*state[u][p], t) for p, t in zip(parents, tokens)]
            for u, (parents, tokens) in enumerate(zip(parents_UW.tolist(), tokens_UW.tolist()))
        ]
        return grown, torch.zeros(*tokens_UW.shape, 0)

    def scores_of(self, state: list[list[tuple[int, ...]]], rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        return self.scores(state, rows_UWD).flatten(0, 1)[row_E, token_E]

    def scores(self, state: list[list[tuple[int, ...]]], rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        out = torch.full((len(state), len(state[0]) if state else 1, self.vocabulary), -torch.inf)
        for u, beams in enumerate(state):
            for w, prefix in enumerate(beams):
                self.asked.append((u, prefix))
                for token, p in self.probabilities(u, prefix).items():
                    out[u, w, token] = float(np.log(p))
        # A row without any entry (a dead beam asks for padding) must not become NaN.
        out = torch.where(torch.isinf(out).all(-1, keepdim=True), torch.zeros(()), out)
        return out if row_R is None else out.flatten(0, 1)[row_R]


def retriever_of(
    model: object,
    ids: SemanticIds,
    *,
    width: int = 10_000,
    history: int = 6,
    priority: np.ndarray | None = None,
    over: Over = "vocabulary",
) -> Retriever:
    """A retriever over these ids, by default with a beam wider than any catalogue here."""
    return Retriever(reader_of(model, ids, history=history, priority=priority, over=over), BeamSearch(width=width))


def reader_of(
    model: object,
    ids: SemanticIds,
    *,
    history: int = 6,
    priority: np.ndarray | None = None,
    over: Over = "vocabulary",
) -> FittedModel:
    """A model with these ids and their trie."""
    return FittedModel(model, ids, tuple(Trie.build(own.prefix_free, priority) for own in ids.systems), history, over)  # type: ignore[arg-type]


def objective_of(
    ids: SemanticIds, *terms: Term, over: Over = "vocabulary", tokenizer: ItemTokenizer | None = None
) -> Objective:
    """Terms bound to these ids; the next token's loss where none is given."""
    context = TermContext(ids, (Trie.build(ids.prefix_free),), over, tokenizer)
    return Objective(terms or (NextToken(),), context)


def loss_of(
    term: Term, ids: SemanticIds, generator: TransformerGenerator, lesson: Lesson, over: Over = "vocabulary"
) -> Tensor:
    """One term's loss on a lesson."""
    return objective_of(ids, term, over=over).loss(lesson, generator.network)


def first_scores(generator: TransformerGenerator, batch: TokenBatch) -> tuple[object, Tensor]:
    """State, and the scores of all first tokens after every history. Shape: (U, V)."""
    state, rows_U1D = generator.start(batch)
    return state, generator.scores(state, rows_U1D)[:, 0]


def next_scores(
    generator: TransformerGenerator, state: object, parents_UW: Tensor, tokens_UW: Tensor
) -> tuple[object, Tensor]:
    """State, and the scores of all tokens after every beam took one. Shape: (U, W, V)."""
    stepped, rows_UWD = generator.step(state, parents_UW, tokens_UW)  # type: ignore[arg-type]
    return stepped, generator.scores(stepped, rows_UWD)


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """No file may grow beyond `limit` bytes: writing fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# So that a run that is killed at any step has lost nothing.
EVERY_STEP = RunOptions(checkpoint_every=0.0)


class Killed(Exception):
    """A process that was ended from outside."""


class Killer:
    """A progress that ends the run when it is told a text with these words in it."""

    def __init__(self, words: str) -> None:
        self.words = words

    def line(self, text: str) -> None:
        self.update(text)

    def update(self, text: str) -> None:
        if self.words in text:
            raise Killed(text)


class Watcher:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.updates: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def update(self, text: str) -> None:
        self.updates.append(text)


def assert_resumes(tokenizer: Any, table: ItemTable, whole: dict[str, np.ndarray], word: str, folder: Path) -> None:
    """A fit that is killed when it says `word` and started again ends with the arrays of the unbroken fit, `whole`."""
    checkpoint = CheckpointFile(folder / "checkpoint", 0.0)
    with pytest.raises(Killed):
        tokenizer.fit(table, seed=4, checkpoint=checkpoint, progress=Killer(word))
    resumed = tokenizer.fit(table, seed=4, checkpoint=checkpoint).state()
    assert resumed.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
