"""What is said of routing, against the network's own words and definitions written out item by item."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.data.planted import planted_vectors
from capsid.errors import ArtifactError, ConfigError
from capsid.evaluate.capsule_report import (
    Drift,
    Shift,
    TitleWords,
    capsules,
    drift,
    ks_distance,
    routing_convergence,
    routing_quality,
    two_facets,
)
from capsid.evaluate.tokenizer_quality import tokenizer_quality
from capsid.ids.semantic_ids import SemanticIds
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.train.options import Training

# Not of norm 1: capsules work on directions, and so must the numbers.
VECTORS = 3 * planted_vectors(noise=1.0)
ITEMS = Vocabulary(f"i{i}" for i in range(len(VECTORS)))


def table(vectors: np.ndarray) -> ItemTable:
    items = Vocabulary(f"i{i}" for i in range(len(vectors)))
    bare = ItemTable.new_items(items, pl.DataFrame({"title": ["x"] * len(items)}), ("title",))
    return bare.with_block("item", vectors)


@pytest.fixture(scope="module")
def tokenizer() -> CapsuleTokenizer:
    training = Training(steps=20, batch_size=64, ema=0.0, validate_every=10)
    settings = CapsuleTokenizer(codebooks=(8, 4, 4), dim=16, confidence=0.6, max_sharing=8, training=training)
    return settings.fit(table(VECTORS))


def test_the_report_of_a_routing_tokenizer(tokenizer: CapsuleTokenizer) -> None:
    codes = tokenizer.encode(table(VECTORS))
    ids = SemanticIds.assign(ITEMS, codes, tokenizer.sizes)
    found = tokenizer_quality(ids, VECTORS, tokenizer.decode, tokenizer)
    seen = tokenizer.trace_vectors(VECTORS)
    assert found.stop_causes is not None
    assert set(found.stop_causes) == {"confidence", "residual", "cap", "prefix"}
    assert sum(found.stop_causes.values()) == pytest.approx(1)
    lengths = codes.lengths
    assert len(set(lengths.tolist())) > 1
    for depth in range(lengths.max()):
        reach = [n for n in range(len(VECTORS)) if lengths[n] > depth]
        ends = [min(depth, int(length) - 1) for length in lengths]
        assert found.winner_mass[depth] == pytest.approx(np.mean([seen.mass[n, depth] for n in reach]), abs=1e-6)
        assert found.confidences[depth] == pytest.approx(np.mean([seen.confidence[n, depth] for n in reach]), abs=1e-6)
        assert found.norm_increasing_share[depth] == pytest.approx(np.mean([seen.grew[n, depth] for n in reach]))
        soft = np.mean([seen.soft[n, end] for n, end in enumerate(ends)])
        assert found.reconstruction.soft[depth] == pytest.approx(soft, abs=1e-6)
    # The hard error is what `decode` leaves of the items' directions.
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    left = np.linalg.norm(unit - tokenizer.decode(codes), axis=1).mean()
    assert found.reconstruction.hard[-1] == pytest.approx(left, abs=1e-5)
    assert found.to_dict()["routing_convergence"]["rounds"] == (1, 2, 3)


def test_prefixes_are_named_only_where_they_are_counted(tokenizer: CapsuleTokenizer) -> None:
    plain = copy.copy(tokenizer)
    plain.max_sharing = 0
    assert set(routing_quality(plain, VECTORS).stop_causes) == {"confidence", "residual", "cap"}


def test_without_the_tokenizer_routing_is_unknown(tokenizer: CapsuleTokenizer) -> None:
    ids = SemanticIds.assign(ITEMS, tokenizer.encode(table(VECTORS)), tokenizer.sizes)
    found = tokenizer_quality(ids, VECTORS, tokenizer.decode)
    assert (found.stop_causes, found.winner_mass, found.confidences, found.routing_convergence) == (None,) * 4
    assert found.reconstruction.soft is None
    # As before, the hard error is then in the space of the vectors as they are.
    left = np.linalg.norm(VECTORS - tokenizer.decode(ids.codes), axis=1).mean()
    assert found.reconstruction.hard[-1] == pytest.approx(left, abs=1e-5)
    for depth, counts in enumerate(ids.use_of_codes()):
        have = [row[depth] for row in ids.codes if len(row) > depth]
        assert counts.tolist() == [have.count(code) for code in range(tokenizer.codebooks[depth])]


def test_convergence_is_that_of_a_network_with_fewer_rounds(tokenizer: CapsuleTokenizer) -> None:
    lengths = tokenizer.stop(tokenizer.trace_vectors(VECTORS)).lengths
    found = routing_convergence(tokenizer.network_, VECTORS, lengths)
    assert (found.items, found.rounds) == (len(VECTORS), (1, 2, 3))
    final = tokenizer.trace_vectors(VECTORS)
    other = copy.deepcopy(tokenizer)
    for i, rounds in enumerate(found.rounds):
        # At depth 1 a network with fewer rounds everywhere sees the same residual.
        first = other.network_.depths[0]
        first.form = replace(first.form, agreements=rounds)
        seen = other.trace_vectors(VECTORS)
        assert found.winner_mass[i][0] == pytest.approx(seen.mass[:, 0].mean(), abs=1e-5)
        assert found.same_token[i][0] == pytest.approx((seen.codes[:, 0] == final.codes[:, 0]).mean(), abs=1e-5)
    assert found.winner_mass[-1] == pytest.approx(routing_quality(tokenizer, VECTORS).winner_mass, abs=1e-5)
    assert set(found.same_token[-1]) == {1.0}
    assert found.winner_mass[0][0] < found.winner_mass[1][0] < found.winner_mass[2][0]
    # Nothing of the tokenizer changed.
    assert {capsules.form.agreements for capsules in tokenizer.network_.depths} == {3}


def test_the_first_round_to_the_letter_says_nothing(tokenizer: CapsuleTokenizer) -> None:
    literal = copy.deepcopy(tokenizer)
    for layer in literal.network_.depths:
        layer.form = replace(layer.form, agreements=layer.form.agreements - 1)
    seen = literal.trace_vectors(VECTORS)
    lengths = np.full(len(VECTORS), 2)
    lengths[::3] = 3
    found = routing_convergence(literal.network_, VECTORS, lengths)
    # Equal weights, of which the first wins.
    assert found.winner_mass[0] == pytest.approx((1 / 8, 1 / 4, 1 / 4))
    share = [(seen.codes[lengths > depth, depth] == 0).mean() for depth in range(3)]
    assert found.same_token[0] == pytest.approx(share, abs=1e-6)


def test_convergence_of_many_items_is_told_of_a_sample(tokenizer: CapsuleTokenizer) -> None:
    lengths = tokenizer.stop(tokenizer.trace_vectors(VECTORS)).lengths
    whole = routing_convergence(tokenizer.network_, VECTORS, lengths)
    part = routing_convergence(tokenizer.network_, VECTORS, lengths, most=100)
    assert part.items == 100
    assert part.winner_mass[-1][0] == pytest.approx(whole.winner_mass[-1][0], abs=0.1)


def test_the_items_of_the_fit_do_not_drift_and_others_do(tokenizer: CapsuleTokenizer) -> None:
    same = drift(tokenizer.reference_, tokenizer.trace_vectors(VECTORS))
    assert same.items == len(VECTORS)
    assert len(same.shifts) == 6
    assert same.worst.ks < 0.03
    assert not same.large
    assert "no drift" in same.sentence()
    strangers = np.random.default_rng(0).normal(size=(60, VECTORS.shape[1])).astype(np.float32)
    seen = tokenizer.trace_vectors(strangers)
    other = drift(tokenizer.reference_, seen)
    assert other.large
    assert "DRIFT" in other.sentence()
    third = next(s for s in other.shifts if (s.name, s.depth) == ("hard residual", 3))
    assert third.new["50%"] == pytest.approx(np.median(seen.hard[:, 2]))
    assert third.fitted["50%"] == pytest.approx(tokenizer.reference_[1, 2, 50])
    assert third.median_shift > 0
    few = drift(tokenizer.reference_, tokenizer.trace_vectors(strangers[:29]))
    assert not few.large
    assert "too few" in few.sentence()
    assert other.to_dict()["shifts"][0]["name"] == "confidence"


def test_drift_of_nothing_and_of_another_depth(tokenizer: CapsuleTokenizer) -> None:
    none = drift(tokenizer.reference_, tokenizer.trace_vectors(VECTORS[:0]))
    assert (none.items, none.large, none.sentence()) == (0, False, "no new items")
    with pytest.raises(ArtifactError, match="do not fit 3 depths"):
        drift(tokenizer.reference_[:, :2], tokenizer.trace_vectors(VECTORS[:5]))


def test_a_small_sample_must_be_further_away_than_chance() -> None:
    middle = {"50%": 0.5}

    def of(items: int, ks: float) -> bool:
        return Drift(items, (Shift("confidence", 1, ks, middle, middle),)).large

    assert (of(1_000, 0.21), of(1_000, 0.19), of(30, 0.21), of(30, 0.4), of(29, 1.0)) == (
        True,
        False,
        False,
        True,
        False,
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_ks_is_the_largest_gap_at_any_point(known: list[int], new: list[int]) -> None:
    gaps = [abs(np.mean([v <= x for v in known]) - np.mean([v <= x for v in new])) for x in range(10)]
    assert ks_distance(np.array(known, dtype=float), np.array(new, dtype=float)) == pytest.approx(max(gaps))


def test_shared_words_are_over_represented_ones() -> None:
    titles = ["Travel pot 12 oz", "The travel mug", "Travel pan of steel", "Steel nail", "The nail", "Oil the 500"]
    words = TitleWords(titles * 5)
    rows = [0, 1, 2, 6, 7, 8]
    # "travel" is in all of them; "pot", "mug", "pan" in two each; "the", "oz" and numbers tell nothing.
    assert words.shared(rows) == ("travel", "mug", "pan", "pot")
    assert words.shared(rows, 1) == ("travel",)
    assert words.shared([3]) == ()
    assert words.shared(range(30)) == ()
    # Items that were added later have no title here.
    assert words.shared([0, 6, 99]) == words.shared([0, 6])


def test_a_capsule_is_known_by_those_who_carry_it_most_firmly(tokenizer: CapsuleTokenizer) -> None:
    ids = SemanticIds.assign(ITEMS, tokenizer.encode(table(VECTORS)), tokenizer.sizes)
    dense = ids.codes.dense()
    words = TitleWords([f"facet{'abcdefgh'[code]} thing" for code in dense[:, 0]])
    mass = tokenizer.trace_vectors(VECTORS).mass
    wanted = [(0, 3), (1, 2), (0, 3)]
    found = capsules(tokenizer, VECTORS, ids.codes, words, wanted)
    assert set(found) == set(wanted)
    for depth, code in found:
        members = [n for n in range(len(ITEMS)) if dense[n, depth] == code]
        firmest = sorted(members, key=lambda n, depth=depth: (-mass[n, depth], n))
        assert found[depth, code].items == len(members)
        assert found[depth, code].nearest == tuple(firmest[:3])
        left_out = capsules(tokenizer, VECTORS, ids.codes, words, [(depth, code)], without=firmest[0])
        assert left_out[depth, code].nearest == tuple(firmest[1:4])
    assert found[0, 3].words == ("facetd",)


@given(st.integers(0, 1_000), st.integers(1, 40))
def test_two_facets_hold_most_and_come_by_their_second_weight(seed: int, count: int) -> None:
    weights = np.sort(np.random.default_rng(seed).dirichlet([0.5] * 4, size=(30, 2)), axis=2)[:, :, ::-1]
    trace = SimpleNamespace(strongest=np.argsort(weights, axis=2), strongest_weight=weights)
    lengths = np.random.default_rng(seed).integers(1, 3, size=30)
    found = two_facets(trace, lengths, depth=1, count=count)
    able = [n for n in range(30) if lengths[n] > 1 and weights[n, 1, :2].sum() >= 0.5]
    assert [f.row for f in found] == sorted(able, key=lambda n: (-weights[n, 1, 1], n))[:count]
    for facet in found:
        assert facet.weights == tuple(weights[facet.row, 1, :2])
        assert facet.codes == tuple(trace.strongest[facet.row, 1, :2])


def test_one_capsule_has_no_second_facet() -> None:
    trace = SimpleNamespace(strongest=np.zeros((3, 1, 1)), strongest_weight=np.ones((3, 1, 1)))
    with pytest.raises(ConfigError, match="two capsules"):
        two_facets(trace, np.ones(3), depth=0, count=3)
