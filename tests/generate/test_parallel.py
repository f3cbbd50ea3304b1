"""Parallel codes: probabilities against a product by hand, fast scoring against the slow one, and a planted world."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_recipes import small, world

from capsid.decode.exact import ParallelScoring, exact_scores
from capsid.errors import ConfigError
from capsid.generate.parallel import ParallelTransformer
from capsid.ids.trie import ROOT
from capsid.recipes import RECIPES
from capsid.recommender import Recommender

SIZES = ["tokenizer.codebooks=8,8,8,8", "tokenizer.dims=8"]


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    return Recommender(small("rpg", 150).with_settings(SIZES)).fit(world())


def test_it_learns_the_planted_world(fitted: Recommender) -> None:
    popular = Recommender(RECIPES["popularity"]).fit(world()).evaluate().metrics["recall@10"]
    assert fitted.evaluate().metrics["recall@10"] > 2 * popular


def test_fast_scores_are_those_of_exact_scoring(fitted: Recommender) -> None:
    reader, histories = fitted.retriever.model, world().sequences.first(5).take(np.arange(7))
    fast = ParallelScoring().scores(reader, histories)
    np.testing.assert_allclose(fast.numpy(), exact_scores(reader, histories).numpy(), atol=1e-4)


def test_the_probability_of_an_item_is_the_product_of_its_codes(fitted: Recommender) -> None:
    network = fitted.fitted.generator.network
    assert isinstance(network, ParallelTransformer)
    reader, histories = fitted.retriever.model, world().sequences.first(4).take(np.arange(3))
    layout = fitted.fitted.tokenizer.ids.layout
    with torch.inference_mode():
        state, _ = reader.start(histories)
        heads = [network.norm(network._head(d, state.read_U1D)) for d in range(layout.depths)]
        table = [torch.nn.functional.linear(rows, state.vectors.score_VS)[:, 0] for rows in heads]
    rows = fitted.fitted.tokenizer.ids.prefix_free
    ends = [*layout.bases.tolist(), layout.end]
    for item in (0, 5, 40):
        wanted = sum(
            table[d][:, ends[d] : ends[d + 1]].log_softmax(-1)[:, int(token) - ends[d]]
            for d, token in enumerate(rows[item])
        )
        np.testing.assert_allclose(
            ParallelScoring().scores(reader, histories)[:, item].numpy(), wanted.numpy(), atol=1e-4
        )


def test_a_wide_beam_finds_what_all_scores_find(fitted: Recommender) -> None:
    histories = [world().items.ids(row[:5]) for row in world().sequences][:6]
    whole = fitted.recommend_many(histories, 10)
    beam = Recommender(fitted.recipe.with_settings(["decoder=beam", f"decoder.width={len(world().items)}"]))
    beam.fitted_, beam.catalogue_ = fitted.fitted, fitted.catalogue_
    for first, second in zip(whole, beam.recommend_many(histories, 10)):
        np.testing.assert_allclose(first.scores, second.scores, atol=1e-4)


def test_codes_of_other_depths_are_impossible(fitted: Recommender) -> None:
    reader = fitted.retriever.model
    state, rows = reader.start(world().sequences.first(3).take(np.arange(2)))
    open_V = reader.network.scores(state, rows)[0, 0].log_softmax(-1).exp() > 1e-9
    assert set(np.flatnonzero(open_V.numpy())) <= set(range(*fitted.fitted.tokenizer.ids.layout.bases[:2].tolist()))
    assert reader.trie.children(np.array([ROOT])).token.max() < fitted.fitted.tokenizer.ids.layout.bases[1]


def test_parts_that_do_not_fit_together() -> None:
    rpg = RECIPES["rpg"]
    for wrong in (
        dataclasses.replace(rpg, objective=RECIPES["tiger"].objective),
        dataclasses.replace(RECIPES["tiger"], objective=rpg.objective),
        dataclasses.replace(RECIPES["tiger"], decoder=ParallelScoring()),
    ):
        with pytest.raises(ConfigError):
            wrong.check_together()
    with pytest.raises(ConfigError, match="one code per depth"):
        Recommender(small("rpg", 5).with_settings([*SIZES, "merges=semantic-bpe"])).fit(world())
