"""Stage 2: the loss reaches routing and gate through inputs that keep their values, and ids follow within bounds."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import GENERATORS, MakeGenerator, make_table, objective_of

from capsid.data.planted import planted_vectors
from capsid.encode.text import HashingEncoder
from capsid.errors import ConfigError
from capsid.generate.backbone import Backbone, Predictions
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.routing_adapters import BoundAdapters, RoutingAdapters
from capsid.generate.terms import TermContext
from capsid.ids.collisions import Bucket, Suffix
from capsid.ids.reading import Lesson
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.recipe import Phase, Stretch
from capsid.tokenize.capsules.algorithm import algorithm_one
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.lookup import Atomic
from capsid.train.options import Training

VECTORS = planted_vectors(branching=(4, 3, 3), items_per_leaf=3)
TABLE = make_table(VECTORS)
SEQUENCES = Ragged.from_rows([[(5 * u + 3 * i) % len(VECTORS) for i in range(6)] for u in range(40)], np.int64)


@cache
def parts() -> tuple[CapsuleTokenizer, SemanticIds, SemanticBPE]:
    training = Training(steps=4, batch_size=32, ema=0.0, validate_every=4)
    tokenizer = CapsuleTokenizer(codebooks=(4, 4, 4), max_sharing=2, training=training).fit(TABLE, seed=0)
    ids = SemanticIds.assign(TABLE.items, tokenizer.encode(TABLE), tokenizer.sizes, Suffix())
    table = dataclasses.replace(TABLE, sequences=SEQUENCES)
    gate = Training(steps=30, batch_size=64, learning_rate=0.02, validate_every=30, ema=0.0)
    merges = SemanticBPE(size=6, min_count=2, alpha=(1.0, 1.0), training=gate).fit(ids, table, seed=0)
    assert len(merges.table_) >= 3
    return tokenizer, ids.with_merges(merges.table_), merges


def fitted() -> ItemTokenizer:
    """A tokenizer with merged ids and suffixes, a fresh one each time: terms change what they are given."""
    tokenizer, ids, merges = parts()
    out = ItemTokenizer(tokenizer=tokenizer, encoder=HashingEncoder(), merges=merges, collisions=Suffix())
    out.tokenizer_ = CapsuleTokenizer(codebooks=(4, 4, 4), max_sharing=2).load_state(tokenizer.state())
    out.ids_, out.merges_, out.blocks_ = ids, merges, {"item": VECTORS}
    return out


def bound(settings: RoutingAdapters, tokenizer: ItemTokenizer) -> BoundAdapters:
    """The adapters at work on this tokenizer."""
    term = settings.bind(TermContext(tokenizer.ids, (Trie.build(tokenizer.ids.prefix_free),), tokenizer=tokenizer))
    assert isinstance(term, BoundAdapters)
    return term


def generator(kind: MakeGenerator, ids: SemanticIds) -> TransformerGenerator:
    made = kind(layers=1, heads=2, width=8, feedforward=12, history=6, dropout=0.0, embedding_dropout=0.0)
    return made.build(ids, np.ones(len(ids)), seed=0)


class Fed:
    """A network that is given inputs beside its own."""

    def __init__(self, network: Backbone, inputs_RD: Tensor | None) -> None:
        self.network, self.inputs_RD, self.norm = network, inputs_RD, network.norm

    def predict(self, lesson: Lesson, _: Tensor | None, **others: object) -> Predictions:
        return self.network.predict(lesson, self.inputs_RD)


@pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)
def test_values_stay_and_gradients_reach_adapters_and_gate(kind: MakeGenerator) -> None:
    tokenizer = fitted()
    network = generator(kind, tokenizer.ids).network
    companion = bound(RoutingAdapters(rank=2), tokenizer)
    items = SEQUENCES.take(np.arange(8))
    lesson = tokenizer.ids.lesson(items, last=7)
    nudges = companion.routed(network.token.vectors().enter_VD, items).inputs_RD
    assert len(nudges) == int(lesson.batch.lengths_B.sum())
    assert float(nudges.detach().abs().max()) == 0.0
    plain, nudged = network.predict(lesson), network.predict(lesson, nudges)
    torch.testing.assert_close(plain.hidden_ND, nudged.hidden_ND, rtol=0, atol=0)
    objective_of(tokenizer.ids).loss(lesson, Fed(network, nudges)).backward()
    assert companion.gate is not None
    assert float(companion.gate.bias.grad.abs()) > 0
    assert all(float(a.up.grad.abs().max()) > 0 for a in companion.adapters)
    centres = [layer.centres for layer in tokenizer.tokenizer_.network_.depths]
    assert all(c.grad is None for c in centres), "centres are frozen"


@pytest.mark.parametrize("kind", GENERATORS.values(), ids=GENERATORS)
def test_the_generator_learns_the_same_with_and_without_a_companion(kind: MakeGenerator) -> None:
    tokenizer = fitted()
    batch_items = SEQUENCES.take(np.arange(5))
    lesson = tokenizer.ids.lesson(batch_items, last=7)
    grads = []
    for beside in (False, True):
        network = generator(kind, tokenizer.ids).network
        companion = bound(RoutingAdapters(), fitted())
        nudges = companion.routed(network.token.vectors().enter_VD, batch_items).inputs_RD if beside else None
        objective_of(tokenizer.ids).loss(lesson, Fed(network, nudges)).backward()
        grads.append(network.token.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-7)


def test_nudges_are_routed_mixtures_summed_over_a_tokens_codes() -> None:
    """The gradient of a random pull on every input, against a walk over items, tokens and codes."""
    tokenizer = fitted()
    ids, layout = tokenizer.ids, tokenizer.ids.layout
    rng = torch.Generator().manual_seed(1)
    table_VD = torch.randn(layout.vocabulary, 5, generator=rng)
    items = Ragged.from_rows([[3, 7, 3], [20, 0]], np.int64)
    companion = bound(RoutingAdapters(rank=2), tokenizer).eval()
    nudges = companion.routed(table_VD, items).inputs_RD
    pull = torch.randn(nudges.shape, generator=rng)
    (nudges * pull).sum().backward()
    gate = companion.gate
    assert gate is not None
    found = [a.up.grad.clone() for a in companion.adapters], gate.bias.grad.clone()
    companion.zero_grad()
    network = tokenizer.tokenizer_.network_
    slow, row = torch.zeros(()), 0
    logits = dict(zip(zip(layout.merges.left, layout.merges.right), gate._logit_C[gate._candidate_M]))
    for item in items.values:
        unit_BD = network.enter(torch.from_numpy(VECTORS[[item]]).float())
        depths = [step for _, step in algorithm_one(network.depths, unit_BD, lambda _d, rows, _s: rows < 0)]
        for token in ids.prefix_free[item].tolist():
            merge = token - layout.merges.first
            members = layout.merges.members[merge].tolist() if merge >= 0 else [token]
            for code in members:
                d = int(layout.depth_of[code])
                if 0 <= d < len(layout.sizes):
                    own = table_VD[layout.bases[d] : layout.bases[d] + layout.sizes[d]]
                    slow = slow + (depths[d].weights_BK[0] @ own * pull[row]).sum()
            if merge >= 0:
                left, right = layout.merges.left[merge], layout.merges.right[merge]
                way = table_VD[token] - table_VD[left] - table_VD[right]
                slow = slow + torch.sigmoid(logits[left, right] + gate.bias) * (way * pull[row]).sum()
            row += 1
    assert any(int(t) >= layout.merges.first for i in items.values for t in ids.prefix_free[i]), "no merged token"
    slow.backward()
    for fast, adapter in zip(found[0], companion.adapters):
        torch.testing.assert_close(fast, adapter.up.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found[1], gate.bias.grad, rtol=1e-4, atol=1e-6)


def test_spans_count_codes() -> None:
    layout = parts()[1].layout
    spans = layout.spans
    assert spans[:2].tolist() == [0, 0]
    assert (spans[2:14] == 1).all()
    assert (spans[layout.bases[-1] : layout.merges.first] == 0).all()
    assert spans[layout.merges.first :].tolist() == [len(m) for m in layout.merges.members]


def test_the_gate_can_be_left_alone() -> None:
    companion = bound(RoutingAdapters(gate_bias=False), fitted())
    assert companion.gate is None
    assert companion.bias == 0.0
    assert {n.split(".")[-1] for n, _ in companion.named_parameters()} == {"up", "down"}


def test_a_gate_without_adapters_learns_its_bias_and_changes_no_code() -> None:
    tokenizer, table = fitted(), dataclasses.replace(TABLE, sequences=SEQUENCES)
    companion = bound(RoutingAdapters(rank=0), tokenizer)
    assert {n for n, _ in companion.named_parameters()} == {"gate.bias"}
    codes = tokenizer.ids.codes
    assert companion.gate is not None
    with torch.no_grad():
        companion.gate.bias.fill_(-30.0)
    new = companion.settle(table, silent)
    assert new.tokenizer_.encode(TABLE) == tokenizer.tokenizer_.encode(TABLE)
    assert new.ids.codes == codes
    assert new.ids.statistics().mean_tokens > tokenizer.ids.statistics().mean_tokens, "merges were switched off"
    unmerged = ItemTokenizer(tokenizer=tokenizer.tokenizer, collisions=Suffix())
    unmerged.tokenizer_, unmerged.ids_, unmerged.merges_, unmerged.blocks_ = (
        tokenizer.tokenizer_,
        tokenizer.ids.with_merges(type(tokenizer.ids.layout.merges)()),
        None,
        tokenizer.blocks_,
    )
    with pytest.raises(ConfigError, match="rank must be at least 1 where there is no merge gate"):
        bound(RoutingAdapters(rank=0), unmerged)


def test_a_sample_of_the_items_is_routed_and_the_others_are_read_as_they_are() -> None:
    tokenizer = fitted()
    companion = bound(RoutingAdapters(items=3, gate_bias=False), tokenizer)
    token_VD = torch.randn(tokenizer.ids.layout.vocabulary, 5, generator=torch.Generator().manual_seed(1))
    items = Ragged.from_rows([list(range(12))], np.int64)
    reached = []
    for _ in range(2):
        inputs_RD = companion.routed(token_VD, items).inputs_RD
        assert inputs_RD is not None
        assert float(inputs_RD.detach().abs().max()) == 0.0
        ends = np.cumsum(tokenizer.ids.prefix_free.take(items.values).lengths)
        moved = []
        for begin, end in zip([0, *ends[:-1]], ends):
            grads = torch.autograd.grad(inputs_RD[begin:end].sum(), list(companion.parameters()), retain_graph=True)
            moved.append(any(float(g.abs().max()) > 0 for g in grads))
        reached.append(moved)
    assert [sum(moved) for moved in reached] == [3, 3]
    assert reached[0] != reached[1], "every step has a sample of its own"


def test_noise_is_drawn_in_training_only_and_repeats_after_a_resume() -> None:
    items, token_VD = SEQUENCES.take(np.arange(4)), torch.zeros(parts()[1].layout.vocabulary, 3)
    companion = bound(RoutingAdapters(), fitted())
    first, second = (float(companion.routed(token_VD, items).loss.detach()) for _ in range(2))  # type: ignore[arg-type]
    assert first != second
    state = copy.deepcopy(companion.state_dict())
    third = float(companion.routed(token_VD, items).loss.detach())  # type: ignore[arg-type]
    again = bound(RoutingAdapters(), fitted())
    again.load_state_dict(state)
    assert float(again.routed(token_VD, items).loss.detach()) == third  # type: ignore[arg-type]
    still = {float(companion.eval().routed(token_VD, items).loss.detach()) for _ in range(2)}  # type: ignore[arg-type]
    assert len(still) == 1


def test_a_negative_bias_lets_the_weakest_merges_rest_and_keeps_their_tokens() -> None:
    tokenizer = fitted()
    merges = tokenizer.merges_
    shifted = merges.shifted(-float(np.median(merges.candidates_.logit[merges.candidates_.merge >= 0])))
    before, after = merges.table_, shifted.table_
    assert (before.left, before.right, before.first) == (after.left, after.right, after.first)
    old = tokenizer.ids.with_merges(before).tokens
    new = tokenizer.ids.with_merges(after).tokens
    used = [set(t.values[t.values >= before.first].tolist()) for t in (old, new)]
    assert used[1] < used[0]
    assert after.undo(new) == before.undo(old)
    assert type(merges)(size=6).load_state(shifted.state()).table_ == after


def test_a_later_refresh_goes_on_from_the_bias_of_the_earlier_one() -> None:
    """The gate of the next stretch sees the decisions that the last one has made."""
    tokenizer, table = fitted(), dataclasses.replace(TABLE, sequences=SEQUENCES)
    logit, total = parts()[2].candidates_.logit, 0.0
    for learnt in (-0.5, -0.25, 0.125):
        companion = bound(RoutingAdapters(churn=1.0), tokenizer)
        assert companion.gate is not None
        np.testing.assert_allclose(companion.gate._logit_C.numpy(), logit + total, rtol=1e-5)
        with torch.no_grad():
            companion.gate.bias.fill_(learnt)
        tokenizer, total = companion.settle(table, silent), total + learnt
        assert isinstance(tokenizer.merges_, SemanticBPE)
        assert tokenizer.merges_.learnt_bias_ == total


def test_a_bias_that_tells_certain_merges_apart_keeps_their_order() -> None:
    merges = fitted().merges_
    pairs = merges.candidates_
    # All but certain, and so equal; the first in the table has the smallest logit.
    rows = np.argsort(np.where(pairs.merge >= 0, pairs.merge, len(pairs)))[: len(merges.table_)]
    pairs.logit[rows] = 45.0 + np.arange(len(rows))
    assert set(merges.table_.strength) == {1.0}
    for bias in (-10.0, -20.0, 5.0):
        after = merges.shifted(bias).table_
        assert (after.left, after.right) == (merges.table_.left, merges.table_.right)
        assert min(after.strength) == pytest.approx(1.0)


def test_a_phase_is_cut_into_adapting_stretches_and_a_rest_of_the_same_schedule() -> None:
    whole = Training(steps=90, warmup=0.1)
    phase = Phase(training=whole, adapt=RoutingAdapters(share=0.5, refreshes=3))
    cut = phase.stretches()
    assert [c.steps for c in cut] == [range(15), range(15, 30), range(30, 45), range(45, 90)]
    assert [c.part is not None and c.part.settles for c in cut] == [True, True, True, False]
    assert [c.name for c in cut] == ["generator with routing-adapters"] * 3 + ["generator"]
    assert {c.training for c in cut} == {whole}
    first = dataclasses.replace(phase, retokenize=True).stretches()
    assert [c.phase.retokenize for c in first] == [True, False, False, False]
    assert Phase().stretches() == (Stretch(Phase(), range(5_000)),)
    to_the_end = dataclasses.replace(phase, adapt=RoutingAdapters(share=1.0)).stretches()
    assert [c.steps for c in to_the_end] == [range(90)], "one optimiser trains everything"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": -1}, "rank must be at least 0, got -1"),
        ({"items": 0}, "items must be at least 1, got 0"),
        ({"refreshes": 0}, "refreshes must be at least 1, got 0"),
        ({"share": 1.5}, "share must be above 0 and at most 1, got 1.5"),
        ({"churn": 1.5}, "churn must be from 0 to 1, got 1.5"),
    ],
)
def test_bad_settings(fields: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RoutingAdapters(**fields)  # type: ignore[arg-type]


def test_a_tokenizer_without_routing_cannot_adapt() -> None:
    tokenizer = ItemTokenizer(tokenizer=Atomic(), collisions=Bucket()).fit(TABLE)
    with pytest.raises(ConfigError, match="no routing to adapt"):
        bound(RoutingAdapters(), tokenizer)


@pytest.mark.parametrize("clip", [1.0, 1e-3])
def test_adapters_do_not_change_the_generators_steps(clip: float) -> None:
    """Inputs keep their values and gradients are clipped by module: the generator's weights are equal to the bit."""
    states, moved = [], []
    for terms in ((NextToken(),), (RoutingAdapters(rank=2), NextToken())):
        tokenizer = fitted()
        made = generator(TimelineGenerator, tokenizer.ids)
        objective = objective_of(tokenizer.ids, *terms, tokenizer=tokenizer)
        options = Training(steps=5, batch_size=16, clip=clip, validate_every=5)
        fit_generator(made, tokenizer.ids, SEQUENCES, objective, options, seed=0)
        states.append(made.state())
        moved += [float(p.detach().abs().max()) for n, p in objective.named_parameters() if n.endswith("up")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert moved
    assert min(moved) > 0, "the adapters learnt"


def test_adapters_have_a_learning_rate_of_their_own() -> None:
    """Adam's first step is as long as the learning rate, whatever the gradient."""
    steps = []
    for rate in (1.0, 0.1):
        tokenizer = fitted()
        objective = objective_of(tokenizer.ids, RoutingAdapters(rank=2, rate=rate), NextToken(), tokenizer=tokenizer)
        made = generator(TimelineGenerator, tokenizer.ids)
        options = Training(steps=1, batch_size=16, warmup=0.0, ema=0.0, weight_decay=0.0, validate_every=1)
        fit_generator(made, tokenizer.ids, SEQUENCES, objective, options, seed=0)
        steps.append(max(float(p.detach().abs().max()) for n, p in objective.named_parameters() if n.endswith("up")))
    assert steps[1] == pytest.approx(0.1 * steps[0], rel=1e-3)
