"""The masked generator: it does not see what it predicts, ignores padding, and learns a deterministic world."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from worlds import first_scores, make_ids, objective_of, random_generator, random_histories, retriever_of

from capsid.base.blocks.layers import Block, BlockShape
from capsid.base.run_options import CheckpointFile
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.fit import fit_generator
from capsid.generate.generator import MaskedGenerator, TransformerGenerator
from capsid.generate.timeline import MaskedTransformer
from capsid.ragged import Ragged
from capsid.train.options import Training

ITEMS = 15
IDS = make_ids([[i] for i in range(ITEMS)], (ITEMS,))
LENGTHS = [1, 4, 6, 2, 9]
FIRST = int(IDS.prefix_free[0][0])


def masked(seed: int = 0, **fields: float) -> TransformerGenerator:
    return random_generator(IDS, seed, kind=MaskedGenerator, **fields)


def network_of(generator: TransformerGenerator) -> MaskedTransformer:
    assert isinstance(generator.network, MaskedTransformer)
    return generator.network


def slow_logits(generator: TransformerGenerator, history: list[int]) -> Tensor:
    """torch's own pre-norm encoder with the same weights over the history and a mask, one user, no padding."""
    network = network_of(generator)
    shape = network.shape
    layer = nn.TransformerEncoderLayer(
        shape.width, shape.heads, shape.feedforward, 0.0, "gelu", batch_first=True, norm_first=True
    )
    rows = [network.token.weight[FIRST + i] for i in history] + [network.mask[0]]
    x = (torch.stack(rows) + network.place.weight[: len(rows)])[None]
    for block in network.blocks:
        assert isinstance(block, Block)
        names = {
            "self_attn.in_proj_weight": block.qkv.weight,
            "self_attn.in_proj_bias": block.qkv.bias,
            "self_attn.out_proj.weight": block.out.weight,
            "self_attn.out_proj.bias": block.out.bias,
            "linear1.weight": block.up.weight,
            "linear1.bias": block.up.bias,
            "linear2.weight": block.down.weight,
            "linear2.bias": block.down.bias,
            "norm1.weight": block.norm_attention.weight,
            "norm1.bias": block.norm_attention.bias,
            "norm2.weight": block.norm_feedforward.weight,
            "norm2.bias": block.norm_feedforward.bias,
        }
        layer.load_state_dict(names)
        layer.train()  # The fast path of evaluation has other rounding.
        x = layer(x)
    return network.norm(x[0, -1]) @ network.token.weight.T


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1])
def test_start_is_torchs_encoder_over_history_and_mask(seed: int) -> None:
    """In a batch of unequal lengths: padding changes nothing."""
    generator = masked(seed)
    histories = random_histories(seed, ITEMS, LENGTHS)
    _, logits_UV = first_scores(generator, IDS.read(histories, last=6))
    for user, history in enumerate(histories):
        wanted = slow_logits(generator, history[-6:].tolist())
        torch.testing.assert_close(logits_UV[user], wanted, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_alone_or_in_company() -> None:
    generator = masked(2)
    histories = random_histories(2, ITEMS, LENGTHS)
    _, together = first_scores(generator, IDS.read(histories, last=6))
    for user in range(len(histories)):
        _, alone = first_scores(generator, IDS.read(histories.take(np.array([user])), last=6))
        torch.testing.assert_close(together[user], alone[0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), length=st.integers(1, 5), more=st.integers(1, 4))
def test_a_block_that_looks_both_ways_does_not_see_padding(seed: int, length: int, more: int) -> None:
    shape = BlockShape(layers=1, heads=2, width=8, feedforward=12, history=6, dropout=0.0)
    source = torch.Generator().manual_seed(seed)
    block = Block(shape).eval()
    real = torch.randn(2, length, 8, generator=source)
    padding = torch.arange(length + more).expand(2, -1) >= length
    outs = [
        block(torch.cat([real, 100 * torch.randn(2, more, 8, generator=source)], 1), padding)[0][:, :length]
        for _ in range(2)
    ]
    torch.testing.assert_close(outs[0], outs[1])
    torch.testing.assert_close(outs[0], block(real, padding[:, :length])[0])
    if length > 1:  # Without the mask the same block is causal: the first row is that of the first item alone.
        torch.testing.assert_close(block(real)[0][:, :1], block(real[:, :1])[0])
        assert (outs[0][:, 0] - block(real)[0][:, 0]).abs().max() > 1e-4, "with it the first row sees the others"


def test_at_least_one_item_is_masked_and_only_real_ones() -> None:
    network = network_of(masked(3, history=9, mask=0.0, only_last=0.0)).train()
    lesson = IDS.lesson(random_histories(3, ITEMS, [2, 3, 9, 5]), last=10)
    for _ in range(20):
        found = network.predict(lesson)
        assert len(found.targets_N) == 4, "just one of every sequence"
        assert all(int(t) in row.tolist() for t, row in zip(found.targets_N, lesson.batch.tokens_BL))
        assert (found.targets_N >= FIRST).all()


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_the_share_that_is_masked(share: float) -> None:
    torch.manual_seed(0)
    network = network_of(masked(3, history=9, mask=share, only_last=0.0)).train()
    rows = Ragged.from_rows([list(range(10))] * 300, np.int64)
    counts = np.bincount(network.predict(IDS.lesson(rows, last=10)).targets_N.numpy() - FIRST, minlength=10)
    # At least one: a sequence with none by chance has one all the same.
    wanted = 300 * (share + (1 - share) ** 10 / 10)
    assert np.abs(counts - wanted).max() < 5 * np.sqrt(wanted)


def test_some_sequences_hide_their_last_item_alone() -> None:
    torch.manual_seed(1)
    network = network_of(masked(3, history=9, mask=0.5, only_last=0.4)).train()
    real_BL = torch.ones(500, 8, dtype=torch.bool)
    hidden_BL = network._choose(real_BL, torch.full((500,), 8))
    alone = (hidden_BL.sum(1) == 1) & hidden_BL[:, -1]
    assert 0.34 < float(alone.float().mean()) < 0.46
    network.eval()
    last_BL = network._choose(real_BL, torch.arange(500) % 8 + 1)
    assert torch.equal(last_BL.nonzero()[:, 1], torch.arange(500) % 8), "outside training it is always the last"


def test_masked_items_are_not_seen() -> None:
    """Another item behind the mask gives the same rows, in training too; a seen one does not."""
    network = network_of(masked(4, dropout=0.0, embedding_dropout=0.0))
    rows = [[3, 1, 4, 11], [3, 1, 4, 9], [3, 2, 4, 9]]
    a, b, c = (network.predict(IDS.lesson(Ragged.from_rows([r]), last=6)) for r in rows)
    assert (a.targets_N - FIRST).tolist() == [11]
    torch.testing.assert_close(a.hidden_ND, b.hidden_ND)
    assert (b.hidden_ND - c.hidden_ND).abs().max() > 1e-3
    network.train()
    network.share = 1.0
    network.only_last = 0.0
    hidden = [network.predict(IDS.lesson(Ragged.from_rows([r]), last=6)).hidden_ND for r in rows]
    torch.testing.assert_close(hidden[0], hidden[2])


def test_predicting_the_last_is_what_start_does() -> None:
    generator = masked(5)
    network = network_of(generator)
    sequences = random_histories(5, ITEMS, [2, 4, 7])
    found = network.predict(IDS.lesson(sequences, last=7))
    histories = Ragged.from_rows([row[:-1] for row in sequences], np.int64)
    _, logits_UV = first_scores(generator, IDS.read(histories, last=6))
    torch.testing.assert_close(found.scores_NV, logits_UV, rtol=1e-4, atol=1e-4)
    assert found.targets_N.tolist() == [FIRST + int(row[-1]) for row in sequences]


def test_nudges_reach_what_is_seen_and_not_what_is_hidden() -> None:
    network = network_of(masked(6))
    lesson = IDS.lesson(Ragged.from_rows([[1, 2, 3], [4, 5]]), last=6)
    nudges = torch.zeros(5, 16, requires_grad=True)
    found = network.predict(lesson, nudges)
    torch.testing.assert_close(found.hidden_ND, network.predict(lesson).hidden_ND)
    (found.hidden_ND**2).sum().backward()
    assert nudges.grad is not None
    assert (nudges.grad.abs().sum(1) > 0).tolist() == [True, True, False, True, False]


def cycle(users: int) -> Ragged:
    """Everybody goes round the catalogue from another start: the next item is certain."""
    return Ragged.from_rows([[(u + i) % ITEMS for i in range(6)] for u in range(users)], np.int64)


def small(**fields: float) -> MaskedGenerator:
    given = {"layers": 1, "heads": 2, "width": 32, "feedforward": 64, "history": 5, "only_last": 0.3, **fields}
    return MaskedGenerator(dropout=0.0, embedding_dropout=0.0, **given)  # type: ignore[arg-type]


def test_a_certain_world_is_learnt() -> None:
    generator = small().build(IDS, np.ones(ITEMS), seed=0)
    options = Training(steps=200, batch_size=15, learning_rate=0.01, validate_every=500, ema=0.0)
    fit_generator(generator, IDS, cycle(ITEMS), objective_of(IDS), options, seed=0)
    starts = Ragged.from_rows([[(u + i) % ITEMS for i in range(5)] for u in range(ITEMS)], np.int64)
    ranked = retriever_of(generator, IDS, history=5).rank(starts, 1, filter_history=False)
    assert ranked.items_UK[:, 0].tolist() == [(u + 5) % ITEMS for u in range(ITEMS)]


class Killed(Exception):
    pass


def test_killed_and_resumed_with_the_same_bits(tmp_path: Path) -> None:
    """What is masked is drawn from the random numbers that a checkpoint keeps."""
    options = Training(steps=12, batch_size=4, validate_every=4)

    class Killer:
        def line(self, text: str) -> None:
            pass

        def update(self, text: str) -> None:
            if "step 7/12" in text:
                raise Killed

    def run(**more: object) -> dict[str, Tensor]:
        generator = small().build(IDS, np.ones(ITEMS), seed=0)
        fit_generator(generator, IDS, cycle(ITEMS), objective_of(IDS), options, seed=0, **more)  # type: ignore[arg-type]
        return generator.state()

    whole = run()
    with pytest.raises(Killed):
        run(checkpoint=CheckpointFile(tmp_path / "c", 0.0), progress=Killer())
    resumed = run(checkpoint=CheckpointFile(tmp_path / "c", 0.0))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_ids_of_more_tokens_are_refused() -> None:
    pairs = make_ids([[0, 0], [0, 1]], (1, 2))
    with pytest.raises(ConfigError, match="one-token ids"):
        MaskedGenerator().build(pairs, np.ones(2), seed=0)
    generator = masked()
    state, _ = first_scores(generator, IDS.read(random_histories(0, ITEMS, [2]), last=6))
    with pytest.raises(ConfigError, match="one token per item"):
        generator.step(state, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long))


@pytest.mark.parametrize("field", ["mask", "only_last"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_impossible_shares(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"masked.{field} must be .*from 0 to 1"):
        MaskedGenerator(**{field: value})


def test_a_state_is_read_back_by_its_own_kind_only() -> None:
    generator = masked(5)
    again = MaskedGenerator(layers=2, heads=2, width=16, feedforward=24, history=6)
    again.load_state(IDS, generator.state())
    batch = IDS.read(random_histories(0, ITEMS, [3, 5]), last=6)
    torch.testing.assert_close(again.start(batch)[1], generator.start(batch)[1], rtol=0, atol=0)
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        TransformerGenerator(layers=2, heads=2, width=16, feedforward=24, history=6).load_state(IDS, generator.state())


def test_places_are_counted_from_the_end_that_is_named() -> None:
    """The mask stands where the next item would, after the last place; in training the last item stands there."""
    generator = masked(3, positions_from="end", input_scale=2.0)
    network = network_of(generator)
    _, logits = first_scores(generator, IDS.read(Ragged.from_rows([[1, 2], [4, 5, 6]]), last=6))
    (gradient,) = torch.autograd.grad(logits[0].square().sum(), network.place.weight)
    assert gradient.abs().sum(1).nonzero()[:, 0].tolist() == [4, 5, 6]
    found = network.predict(IDS.lesson(Ragged.from_rows([[1, 2, 9], [4, 5, 6, 9]]), last=7))
    trained = found.scores_NV
    torch.testing.assert_close(trained, logits)
