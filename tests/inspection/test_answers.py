"""What a tokenizer answers in Python: values, and the same as plain dictionaries."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import pytest
from small_recipes import small, world

from capsid.errors import ConfigError
from capsid.evaluate import capsule_report
from capsid.evaluate.capsule_report import spread
from capsid.evaluate.merge_report import token_carriers
from capsid.explain.answers import Titled
from capsid.explain.items import OpenTokenizer
from capsid.tokenize.item_tokenizer import ItemTokenizer


@cache
def opened(name: str) -> OpenTokenizer:
    recipe, dataset = small(name), world()
    parts = ItemTokenizer(
        encoder=recipe.encoder, tokenizer=recipe.tokenizer, collisions=recipe.collisions, merges=recipe.merges
    )
    return OpenTokenizer(parts.fit(dataset), [dataset.title(n) for n in range(len(dataset.items))])


def test_an_item_of_a_tokenizer_that_neither_routes_nor_merges() -> None:
    ids = opened("rq-kmeans")
    item = ids.items[3]
    about = ids.inspect(item)
    assert about.tokens == ids.tokenizer.ids[item]
    assert (about.depths, about.stopped, about.subwords, about.unmerged) == (None,) * 4
    assert set(about.to_dict()) == {"item", "codes", "tokens", "confidences", "title", "prefixes"}
    for depth, prefix in enumerate(about.prefixes, 1):
        same = [n for n, row in enumerate(ids.tokenizer.ids.codes) if tuple(row[:depth]) == about.codes[:depth]]
        assert prefix.items == len(same)
        assert prefix.examples == tuple(Titled(ids.items[n], ids.title(n)) for n in same if n != 3)[:5]


def test_an_item_with_capsules_and_merges() -> None:
    ids = opened("capsid-bpe")
    number = int(ids.tokenizer.ids.unmerged.lengths.argmax())
    about = ids.inspect(ids.items[number])
    assert about.unmerged == tuple(ids.tokenizer.ids.unmerged[number].tolist())
    assert about.subwords is not None
    assert about.depths is not None
    assert about.stopped is not None
    assert tuple(code for s in about.subwords for code in s.codes) == about.codes
    assert tuple(level.code for level in about.depths) == about.codes
    assert tuple(level.confidence for level in about.depths) == about.confidences
    for level in about.depths:
        weights = [capsule.weight for capsule in level.capsules]
        assert weights == sorted(weights, reverse=True)
    assert about.stopped.depth == len(about.codes)
    assert json.loads(json.dumps(about.to_dict()))["depths"][0]["capsules"][0]["items"] >= 1


def test_lines_of_all_items_and_of_some_are_the_same() -> None:
    ids = opened("capsid-bpe")
    every = ids.lines(ids.items)
    assert ids.lines([ids.items[5], ids.items[2]]) == [every[5], every[2]]
    wanted = {name: value for name, value in dataclasses.asdict(every[5]).items() if name != "others"}
    assert every[5].to_dict() == wanted, "these items have one id"


def test_large_catalogues_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs vectors or titles rests on some items, what is counted on all."""
    ids = opened("capsid-bpe")
    every, some = ids.quality(), ids.quality(most=30)
    assert (every.sampled_items, some.sampled_items) == (None, 30)
    assert ids.quality(most=10_000) == every
    for name in ("items", "collision_rate", "utilization", "length_histogram", "merges"):
        assert getattr(some, name) == getattr(every, name)
    assert some.reconstruction != every.reconstruction
    assert some.mean_similarity == pytest.approx(every.mean_similarity, abs=0.1)
    rows = {ids.items[row] for row in spread(len(ids.items), 30)}
    assert len(rows) == 30
    facets = ids.facets(depth=1, count=99)
    assert ids.facets(depth=1, count=99, most=30).items == tuple(i for i in facets.items if i.item in rows)
    whole = ids.inspect(ids.items[0])
    monkeypatch.setattr(capsule_report, "MEMBERS", 2)
    monkeypatch.setattr(capsule_report, "BACKGROUND", 10)
    brief = OpenTokenizer(ids.tokenizer, ids.titles).inspect(ids.items[0])
    assert [[c.items for c in d.capsules] for d in brief.depths] == [
        [c.items for c in d.capsules] for d in whole.depths
    ]
    assert [max(len(c.nearest) for d in one.depths for c in d.capsules) for one in (whole, brief)] == [3, 2]


def test_the_items_of_a_subword_are_those_that_have_the_token() -> None:
    ids = opened("capsid-bpe")
    carriers, counts = token_carriers(ids.tokenizer.ids), ids.tokenizer.merges_.counts_
    for item in ids.items[:20]:
        for subword in ids.inspect(item).subwords:
            having = carriers[subword.token]
            assert (subword.items, subword.taken) == (len(having), counts[having].sum())


def test_facets_and_merges_are_values() -> None:
    ids = opened("capsid-bpe")
    found = ids.facets(depth=1, count=3)
    assert found.depth == 1
    assert found.to_dict()["items"] == tuple(dataclasses.asdict(item) for item in found.items)
    for item in found.items:
        assert len(item.facets) == 2
    merges = ids.merges(top=2)
    assert len(merges.merges) == min(2, merges.count)
    assert merges.tokens_an_item.before >= merges.tokens_an_item.after
    taken = [m.taken for m in merges.merges]
    assert taken == sorted(taken, reverse=True)


def test_what_a_tokenizer_cannot_tell() -> None:
    ids = opened("rq-kmeans")
    with pytest.raises(ConfigError, match="does not route"):
        ids.facets(depth=1, count=1)
    with pytest.raises(ConfigError, match="no merges"):
        ids.merges(top=1)
    assert ids.drift(list(ids.items)[:3]) is None
