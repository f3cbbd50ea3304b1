"""The timeline network: packed rows, padded batches and cached steps are one function, and time goes one way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from worlds import first_scores, make_ids, next_scores, random_codes, random_generator, random_histories, reader_of

from capsid.base.blocks.layers import Block, Layer, SasRecBlock
from capsid.decode.beam import BeamSearch
from capsid.decode.exact import exact_scores
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.timeline import READINGS
from capsid.ids.reading import TokenBatch
from capsid.ragged import Ragged

IDS = make_ids(random_codes(3, items=15, sizes=(4, 3, 3), variable=True), (4, 3, 3))
LENGTHS = [1, 4, 6, 2, 9]
READS = st.sampled_from(list(READINGS))


def timeline(seed: int = 0, **fields: float) -> TransformerGenerator:
    return random_generator(IDS, seed, kind=TimelineGenerator, **fields)


def slow_block(block: Layer, x_LD: Tensor, empty: int) -> Tensor:
    """Attention position by position and head by head, with what every distance adds.

    SASRec's blocks also see `empty` positions of zeros, as if the history had begun with them.
    """
    if isinstance(block, SasRecBlock):
        return block(torch.cat([torch.zeros(empty, x_LD.shape[1]), x_LD])[None])[0][0, empty:]
    if isinstance(block, Block):
        q, k, v = (t[0] for t in block._project(x_LD[None]))
    else:
        v = block.value(block.norm_attention(x_LD)).view(len(x_LD), block.heads, -1)
        q = k = torch.zeros_like(v)
    mixed = torch.zeros_like(v)
    for here in range(len(x_LD)):
        for head in range(block.heads):
            scores = k[: here + 1, head] @ q[here, head] / q.shape[-1] ** 0.5
            if hasattr(block, "distances"):
                added = block.distances.by_distance[head]
                scores = scores + torch.stack([added[here - there] for there in range(here + 1)])
            mixed[here, head] = scores.softmax(0) @ v[: here + 1, head]
    return block._finish(x_LD, mixed.flatten(1))


def slow_hidden(generator: TransformerGenerator, history: list[int], own: list[int], beyond: int = 0) -> Tensor:
    """One user, one next item, no packing and no cache: rows that predict the tokens after `own[:0]`, `own[:1]` ...

    The sequence has `beyond` more positions after this history, which take places from its empty ones.
    """
    network = generator.network
    with torch.no_grad():
        rows = [network.token(torch.from_numpy(IDS.prefix_free[i].astype(np.int64))).sum(0) for i in history]
        x = torch.stack(rows)
        if network.place is not None:
            x = x + network.place(torch.arange(len(rows)))
        for block in network.blocks:
            x = slow_block(block, x, network.space.positions - len(history) - beyond)
        taken = network.token(torch.tensor(own, dtype=torch.long)) + network.depth(torch.arange(len(own)))
        y = torch.cat([x[None, -1:], taken[None]], dim=1)
        for block in network.depth_blocks:
            y, _ = block(y)
    return y[0]


def completing(history: list[int], own: list[int]) -> set[int]:
    """Tokens that after `own` complete an item of the history."""
    ids = [IDS.prefix_free[item].tolist() for item in history]
    return {tokens[-1] for tokens in ids if tokens[:-1] == own}


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), layers=st.integers(1, 2), depth_layers=st.integers(1, 2), reads=READS)
def test_cached_steps_are_the_slow_forward(seed: int, layers: int, depth_layers: int, reads: str) -> None:
    generator = timeline(seed, layers=layers, depth_layers=depth_layers, reads=reads)
    rng = np.random.default_rng(seed)
    histories = random_histories(seed, len(IDS), LENGTHS)
    # Everybody comes back for one item.
    histories = Ragged.from_rows([[*history, history[-1]] for history in histories])
    state, logits = first_scores(generator, IDS.read(histories, last=6))
    beams: list[list[list[int]]] = [[[]] for _ in histories]
    seen = logits[:, None]
    for width in (3, 5, 0):
        for user, own in enumerate(beams):
            for beam, path in enumerate(own):
                history = histories[user][-6:].tolist()
                hidden = slow_hidden(generator, history, path)[-1]
                alone = F.linear(
                    generator.network.score_rows(hidden), generator.network.token.vectors().score_VS
                ).detach()
                for token in completing(history, path):
                    alone[token] += generator.network.repeats.value().detach()
                torch.testing.assert_close(seen[user, beam], alone, rtol=1e-4, atol=1e-4)
        if width:
            parents = rng.integers(0, len(beams[0]), (len(histories), width))
            tokens = rng.integers(1, IDS.layout.vocabulary, (len(histories), width))
            # Half of the beams go where an item of the history goes, so that some are completed.
            for user, beam in np.argwhere(rng.random(tokens.shape) < 0.5):
                item = IDS.prefix_free[rng.choice(histories[user][-6:])]
                tokens[user, beam] = item[min(len(beams[0][0]), len(item) - 1)]
            state, seen = next_scores(generator, state, torch.from_numpy(parents), torch.from_numpy(tokens))
            beams = [[[*beams[u][p], int(t)] for p, t in zip(parents[u], tokens[u])] for u in range(len(histories))]


@given(
    sequences=st.lists(st.lists(st.integers(0, 14), min_size=2, max_size=7), min_size=1, max_size=5),
    reads=READS,
)
def test_predictions_are_the_slow_forward_of_every_next_item(sequences: list[list[int]], reads: str) -> None:
    generator = timeline(1, history=6, reads=reads)
    found = generator.network.predict(IDS.lesson(Ragged.from_rows(sequences), last=7))
    targets, hidden, added = [], [], []
    for row in sequences:
        for place in range(1, len(row)):
            tokens = IDS.prefix_free[row[place]].tolist()
            for depth in range(len(tokens)):
                added += [(len(targets) + depth, token) for token in sorted(completing(row[:place], tokens[:depth]))]
            targets += tokens
            hidden.append(slow_hidden(generator, row[:place], tokens[:-1], beyond=len(row) - 1 - place))
    assert found.targets_N.tolist() == targets
    assert list(zip(found.added.rows_E.tolist(), found.added.tokens_E.tolist())) == added
    torch.testing.assert_close(found.hidden_ND, torch.cat(hidden), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reads", READINGS)
def test_a_lesson_of_last_items_is_the_end_of_the_whole_lesson(reads: str) -> None:
    """In training the one is read without padding and the other with it; both drop the same elements."""
    generator = timeline(2, history=9, reads=reads)
    generator.network.train()
    lesson = IDS.lesson(random_histories(2, len(IDS), [3, 10, 2, 5]), last=10)
    torch.manual_seed(3)
    whole = generator.network.predict(lesson)
    torch.manual_seed(3)
    ends = generator.network.predict(lesson.latest())
    last = np.cumsum(np.bincount(lesson.row_M)) - 1
    torch.testing.assert_close(ends.starts_MD, whole.starts_MD[last], rtol=1e-4, atol=1e-4)


def test_a_beam_as_wide_as_the_catalogue_is_exact() -> None:
    generator = timeline(4)
    reader, histories = reader_of(generator, IDS), random_histories(4, len(IDS), LENGTHS)
    wide = BeamSearch(width=len(IDS)).leaves(reader, histories, 5)
    exact_UN = exact_scores(reader, histories).numpy()
    by_leaf_UF = np.stack([np.sort(np.unique(row.round(4)))[::-1][:5] for row in exact_UN])
    np.testing.assert_allclose(wide.scores_UF, by_leaf_UF, atol=2e-4)


def test_a_later_item_does_not_change_earlier_predictions() -> None:
    generator = timeline(2)
    rows = [[3, 1, 4, 1, 5], [3, 1, 4, 9, 2]]
    a, b = (generator.network.predict(IDS.lesson(Ragged.from_rows([r]), last=6)).hidden_ND for r in rows)
    same = sum(len(IDS.prefix_free[i]) for i in rows[0][1:3])
    torch.testing.assert_close(a[:same], b[:same], rtol=1e-5, atol=1e-5)
    assert (a[same + 1] - b[same + 1]).abs().max() > 1e-3


@pytest.mark.parametrize("reads", list(READINGS))
def test_the_order_of_the_history_matters(reads: str) -> None:
    generator = timeline(3, reads=reads)
    forth, back = (IDS.read(Ragged.from_rows([r]), last=6) for r in ([1, 2, 3], [2, 1, 3]))
    assert (generator.start(forth)[1] - generator.start(back)[1]).abs().max() > 1e-3


def test_fresh_heads_reach_differently_far() -> None:
    network = (
        TimelineGenerator(layers=1, heads=3, width=6, feedforward=6, history=4).build(IDS, np.ones(15), seed=0).network
    )
    (block,) = network.blocks
    assert block.distances.by_distance.tolist() == [[0, -1, -2, -3, -4], [0, -0.5, -1, -1.5, -2], [0] * 5]
    assert network.place is None


def test_mixing_weighs_by_distance_and_not_by_what_items_are() -> None:
    (block,) = timeline(6, layers=1, reads="mixing").network.blocks
    x_LD = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    for other in (x_LD, x_LD * 3 + 1):
        value = block.value(block.norm_attention(other)).detach()
        means = block.distances(4).softmax(-1) @ value.view(4, 2, 8).transpose(0, 1)
        torch.testing.assert_close(block(other[None])[0][0], block._finish(other, means.transpose(0, 1).flatten(1)))


def test_how_a_history_is_read_is_one_of_four() -> None:
    with pytest.raises(ConfigError, match="reads must be one of places, distances, mixing, sasrec, got 'both'"):
        TimelineGenerator(reads="both")


def test_depth_layers_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="depth_layers must be from 1 to 1000, got 0"):
        TimelineGenerator(depth_layers=0)


def test_a_state_is_read_back_by_its_own_kind_only() -> None:
    generator = timeline(5)
    again = TimelineGenerator(layers=2, heads=2, width=16, feedforward=24, history=6)
    batch: TokenBatch = IDS.read(random_histories(0, len(IDS), [3, 5]), last=6)
    again.load_state(IDS, generator.state())
    torch.testing.assert_close(again.start(batch)[1], generator.start(batch)[1], rtol=0, atol=0)
    flat = TransformerGenerator(**{f.name: getattr(again, f.name) for f in dataclasses.fields(TransformerGenerator)})
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        flat.load_state(IDS, generator.state())
