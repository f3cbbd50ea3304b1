"""Explaining is answering, watched: same results, every weighed prefix has one true fate."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import small, world

from capsid.answering import Query
from capsid.decode.exact import ExactScoring
from capsid.decode.watch import FATES
from capsid.errors import ConfigError, DataError
from capsid.explain.search import Explanation, explain
from capsid.recommender import Recommender

ITEMS = list(world().items)
HISTORIES = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=7, unique=True)


@cache
def fitted(name: str = "capsid") -> Recommender:
    return Recommender(small(name)).fit(world())


def narrow(width: int) -> Recommender:
    """The same model with another beam."""
    other = Recommender(fitted().recipe.with_settings([f"decoder.width={width}"]))
    other.fitted_, other.catalogue_ = fitted().fitted, fitted().catalogue_
    return other


@settings(max_examples=25)
@given(
    history=HISTORIES,
    k=st.integers(1, 12),
    width=st.sampled_from([1, 3, 20, 200]),
    deny=st.lists(st.sampled_from(ITEMS), max_size=9),
    retired=st.sets(st.sampled_from(ITEMS), max_size=9),
)
def test_same_results_and_one_true_fate_each(
    history: list[str], k: int, width: int, deny: list[str], retired: set[str]
) -> None:
    recommender = narrow(width)
    recommender.retire(retired)
    told = recommender.explain(history, k, deny=deny, influence=False)
    found = recommender.recommend(history, k, deny=deny)
    assert told.recommendation == found
    assert len(told.paths) == len(found)
    forbidden = {*history, *deny, *retired}
    kept: dict[int, set[tuple[int, ...]]] = {-1: {()}}
    for step in told.steps:
        assert set(step.counts) == set(FATES)
        survivors = [p for p in step.prefixes if p.fate == "kept"]
        assert len(survivors) == step.counts["kept"] <= max(width, k)
        kept[step.depth] = {p.tokens for p in survivors}
        for p in step.prefixes:
            below = {i for i in ITEMS if ids_of(recommender, i)[: len(p.tokens)] == p.tokens}
            assert p.items == len(below)
            assert (p.fate == "filter") == (not below - forbidden)
            assert p.tokens[:-1] in kept[step.depth - 1], "children of what was kept, and of nothing else"
            assert p.fate != "result" or p.tokens in told.paths
        worst = min((p.score for p in survivors), default=np.inf)
        cut = [p.score for p in step.prefixes if p.fate == "width"]
        assert max(cut, default=-np.inf) <= worst
        assert not cut or step.counts["kept"] == max(width, k)
    assert {p.tokens for s in told.steps for p in s.prefixes if p.fate == "result"} == set(told.paths)


def ids_of(recommender: Recommender, item: str) -> tuple[int, ...]:
    ids = recommender.fitted.tokenizer.ids
    return tuple(int(t) for t in ids.prefix_free[ids.items.number(item)])


def test_a_wide_beam_cuts_nothing_by_width_and_everything_is_counted() -> None:
    told = narrow(500).explain(ITEMS[:2], 72, filter_history=False, influence=False)
    assert all(step.counts["width"] == step.counts["bound"] == step.counts["filter"] == 0 for step in told.steps)
    nodes = sum(sum(step.counts.values()) for step in told.steps)
    assert nodes == fitted().fitted.model.trie.nodes - 1


@given(history=HISTORIES)
@settings(max_examples=10)
def test_a_forced_prefix(history: list[str]) -> None:
    recommender = fitted()
    whole = recommender.explain(history, 72, influence=False)
    prefix = whole.paths[-1][:1]
    told = recommender.explain(history, 72, prefix=prefix, influence=False)
    assert told.prefix == prefix
    wanted = [i for i, path in zip(whole.recommendation.items, whole.paths) if path[:1] == prefix]
    assert list(told.recommendation.items) == wanted
    scores = dict(zip(whole.recommendation.items, whole.recommendation.scores))
    np.testing.assert_allclose(told.recommendation.scores, [scores[i] for i in wanted], atol=1e-5)
    first = {p.tokens: p.fate for p in told.steps[0].prefixes}
    assert {t for t, fate in first.items() if fate != "filter"} == {prefix}


def test_influence_is_the_fall_without_the_item() -> None:
    recommender, history = fitted(), ITEMS[3:7]
    told = recommender.explain(history, 5, filter_history=False)
    assert sorted(i.item for i in told.influences) == sorted(history)
    means = [abs(i.mean) for i in told.influences]
    assert means == sorted(means, reverse=True)
    for influence in told.influences:
        left = [i for i in history if i != influence.item]
        without = recommender.recommend(left, 72, filter_history=False)
        scores = dict(zip(without.items, without.scores))
        falls = [s - scores[i] for i, s in zip(told.recommendation.items, told.recommendation.scores)]
        np.testing.assert_allclose(influence.results, falls, atol=1e-4)
        np.testing.assert_allclose([sum(steps) for steps in influence.steps], falls, atol=1e-4)
        assert [len(steps) for steps in influence.steps] == [len(path) for path in told.paths]
    assert recommender.explain(history[:1], 3).influences == ()


def pictures() -> list[Explanation]:
    recommender = fitted()
    empty = recommender.explain([], 3)
    return [recommender.explain(ITEMS[:4], 6), recommender.explain(ITEMS[:4], 3, prefix=[]), empty]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_plain_values_and_a_picture(number: int) -> None:
    told = pictures()[number]
    again = json.loads(json.dumps(told.to_dict()))
    assert again["recommendation"]["items"] == list(told.recommendation.items)
    root = ElementTree.fromstring(told.to_svg())
    texts = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
    for influence in told.influences[:10]:
        assert influence.title in texts
    assert root.attrib["role"] == "img"
    assert "http" not in told.to_svg().replace("http://www.w3.org/2000/svg", "")
    assert told._repr_svg_() == told.to_svg()


def test_titles_cannot_break_the_picture() -> None:
    recommender = Recommender(fitted().recipe)
    recommender.fitted_, recommender.catalogue_ = fitted().fitted, fitted().catalogue_
    names = ["x", "y", "z"]
    titles = ['<script>"&\x00\x1b', "W" * 300, "漢字" * 100]
    recommender.add_items({"item_id": names, "title": titles, "categories": [["amber 0"]] * 3})
    svg = recommender.explain([*names, ITEMS[0]], 80, filter_history=False).to_svg()
    assert "<script" not in svg
    texts = [t.text or "" for t in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert max(len(text) for text in texts if "漢" in text) <= 22
    assert max(len(text) for text in texts if "WWW" in text) <= 26


def test_the_picture_says_which_prefixes_were_cut_and_ranks_results() -> None:
    told = narrow(4).explain(ITEMS[:4], 3)
    svg = told.to_svg()
    for why in ("width", "filter"):
        assert any(step.counts[why] for step in told.steps)
        assert f"by {why}" in svg
    for rank, title in enumerate(told.recommendation.titles, 1):
        assert f">{rank}. {title}" in svg
    drawn = [float(y) for y in re.findall(r'<svg x="16" y="(\d+)"', svg)]
    assert drawn == sorted(set(drawn))


def test_what_cannot_be_explained() -> None:
    with pytest.raises(DataError, match=r"no id begins with the tokens \[9999\]"):
        fitted().explain(ITEMS[:2], prefix=[9999])
    answerer = fitted().answerer
    exact = dataclasses.replace(answerer, retriever=dataclasses.replace(answerer.retriever, ranker=ExactScoring()))
    with pytest.raises(ConfigError, match="does not search step by step"):
        explain(exact, Query(tuple(ITEMS[:2])))
