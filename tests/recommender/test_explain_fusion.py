"""Explaining a search that is fused with item vectors: the same answer, and both parts of every score."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import small, world

from capsid.decode.beam import BeamSearch
from capsid.explain.search import Explanation
from capsid.ragged import Ragged
from capsid.recommender import Recommender

ITEMS = list(world().items)
HISTORIES = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=6, unique=True)


@cache
def fitted() -> Recommender:
    """Few codes, so that items share ids."""
    return Recommender(small("cobra", steps=30).with_settings(["tokenizer.codebooks=4,4"])).fit(world())


def with_decoder(*decoder: str) -> Recommender:
    """The same weights with other settings of the ranker."""
    other = Recommender(fitted().recipe.with_settings(f"decoder.{text}" for text in decoder))
    other.fitted_, other.catalogue_ = fitted().fitted, fitted().catalogue_
    return other


def leaves(told: Explanation, *fates: str) -> set[tuple[int, ...]]:
    """Finished ids with these fates."""
    ids = {tuple(int(t) for t in row) for row in fitted().fitted.tokenizer.ids.prefix_free}
    return {p.tokens for step in told.steps for p in step.prefixes if p.fate in fates and p.tokens in ids}


@settings(max_examples=12)
@given(history=HISTORIES, k=st.integers(1, 9), width=st.sampled_from([1, 3, 20]), prefix=st.booleans())
def test_the_answer_is_the_same_and_its_scores_are_the_sums_of_their_parts(
    history: list[str], k: int, width: int, prefix: bool
) -> None:
    recommender = with_decoder(f"width={width}")
    wanted = recommender.recommend(history, k)
    forced = fitted().explain(history, 1, influence=False).paths[0][:1] if prefix else ()
    told = recommender.explain(history, k, prefix=forced, influence=False)
    if not prefix:
        assert told.recommendation == wanted
    assert len(told.parts) == len(told.paths) == len(told.recommendation)
    scores = [part.ids + part.vectors for part in told.parts]
    np.testing.assert_allclose(told.recommendation.scores, scores, atol=1e-5)
    assert all(part.ids <= 1e-6 and part.vectors <= 1e-6 and abs(part.cosine) <= 1 + 1e-5 for part in told.parts)
    # Items of one id share the ids' part, and their vectors tell them apart.
    shared: dict[tuple[int, ...], set[float]] = {}
    for path, part in zip(told.paths, told.parts):
        shared.setdefault(path, set()).add(part.ids)
    assert all(len(found) == 1 for found in shared.values())
    assert leaves(told, "result") == set(told.paths)
    assert len(leaves(told, "result", "kept")) <= max(width, k)
    assert all(path[: len(forced)] == forced for path in told.paths)


@pytest.mark.parametrize("among", ["found", "id"])
def test_softmaxes_are_over_ids_and_over_items_of_an_id_or_all_items(among: str) -> None:
    told = with_decoder(f"among={among}").explain(ITEMS[3:6], 72, filter_history=False, influence=False)
    assert len(told.paths) == 72
    of_ids = dict(zip(told.paths, (part.ids for part in told.parts)))
    assert sum(np.exp(list(of_ids.values()))) == pytest.approx(1, abs=1e-5)
    scale = fitted().recipe.decoder.dense_temperature  # type: ignore[attr-defined]
    for path in {*told.paths} if among == "id" else {()}:
        own = [part for own, part in zip(told.paths, told.parts) if own[: len(path)] == path]
        assert sum(np.exp([part.vectors for part in own])) == pytest.approx(1, abs=1e-5)
        shift = [part.vectors - scale * part.cosine for part in own]
        assert max(shift) - min(shift) < 1e-3, "one number is subtracted from all cosines that are compared"
    assert leaves(told, "kept") == set()


def test_ids_that_lose_by_their_vectors_are_kept_and_no_result() -> None:
    told = fitted().explain(ITEMS[3:6], 2, influence=False)
    assert leaves(told, "kept"), "ids that were found, whose items are not among the two best"
    assert not leaves(told, "kept") & set(told.paths)


@pytest.mark.parametrize("among", ["found", "id"])
def test_influence_is_the_fall_of_both_parts(among: str) -> None:
    history = ITEMS[3:7]
    recommender = with_decoder(f"among={among}")
    told = recommender.explain(history, 5, filter_history=False)
    assert sorted(i.item for i in told.influences) == sorted(history)

    def weights(given: list[str]) -> dict[str, float]:
        """The beam's own scores, and cosines before a softmax over all items or after one over those of an id."""
        everything = recommender.explain(given, 72, filter_history=False, influence=False)
        plain = dataclasses.replace(fitted().retriever, ranker=BeamSearch(width=100))
        numbers = [np.array([ITEMS.index(item) for item in given])]
        ranked = plain.ranker.rank(plain.model, Ragged.from_rows(numbers, np.int64), 72)
        beams = {ITEMS[i]: float(s) for i, s in zip(ranked.items_UK[0], ranked.scores_UK[0])}
        scale = fitted().recipe.decoder.dense_temperature  # type: ignore[attr-defined]
        dense = {
            i: part.vectors if among == "id" else scale * part.cosine
            for i, part in zip(everything.recommendation.items, everything.parts)
        }
        return {i: beams[i] + dense[i] for i in beams}

    whole = weights(history)
    for influence in told.influences:
        without = weights([i for i in history if i != influence.item])
        falls = [whole[i] - without[i] for i in told.recommendation.items]
        np.testing.assert_allclose(influence.results, falls, atol=1e-3)
        tokens = [sum(steps) for steps in influence.steps]
        np.testing.assert_allclose(influence.results, np.add(tokens, influence.vectors), atol=1e-5)
        assert any(abs(fall) > 1e-6 for fall in influence.vectors)


def test_plain_values_and_a_picture() -> None:
    told = fitted().explain(ITEMS[:3], 4)
    found = json.loads(json.dumps(told.to_dict()))
    assert set(found["parts"][0]) == {"ids", "vectors", "cosine"}
    assert told.to_svg().startswith("<svg")
    assert fitted().explain([], 4).parts == ()
