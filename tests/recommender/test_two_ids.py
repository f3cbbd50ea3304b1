"""Two ids per item through a whole recipe: fit, resume, save, new items, filters, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from small_recipes import small, world

from capsid.cli.tokenizer_shown import item_text, report_rows
from capsid.decode.mixed import Mixed
from capsid.decode.model import FittedModel
from capsid.errors import ConfigError
from capsid.evaluate.evaluator import first_code_ranks
from capsid.explain.items import OpenTokenizer
from capsid.fit.export import export_onnx
from capsid.recipe import Recipe
from capsid.recommender import Recommender

# What other recipes with two ids may have.
COMPOSED = ("memory.last=2", "memory.neighbours=0", "generator.compose=true")


def recipe(*settings: str) -> Recipe:
    return small("capsid-two", 20).with_settings((*COMPOSED, *settings))


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    return Recommender(recipe(), seed=0).fit(world())


def lists(recommender: Recommender) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
    histories = [world().items.ids(row[:-2]) for row in world().sequences][:5]
    return [(tuple(r.items), tuple(r.scores)) for r in recommender.recommend_many(histories, 8)]


def test_it_recommends_by_both_ids(fitted: Recommender) -> None:
    ids = fitted.fitted.tokenizer.ids
    assert ids.others[0].layout.sizes == (24,)
    assert fitted.fitted.generator.network.space.vocabulary == ids.others[0].layout.end
    history = world().items.ids(world().sequences[0][:-2])
    found = fitted.recommend(history, 8)
    assert not set(found.items) & set(history)
    assert found.seen is not None
    assert 0 < found.seen <= 1 + 1e-6
    alone = dataclasses.replace(fitted.retriever, ranker=Mixed(weights=(1.0, 0.0)))
    one = alone.rank(world().sequences.take(np.arange(5)), 8, filter_history=True)
    both = fitted.retriever.rank(world().sequences.take(np.arange(5)), 8, filter_history=True)
    assert (one.scores_UK != both.scores_UK).any()


def test_saved_and_loaded_it_answers_the_same(fitted: Recommender, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "run")
    again = Recommender.from_pretrained(tmp_path / "run")
    assert lists(again) == lists(fitted)
    assert again.fitted.tokenizer.ids.others[0] == fitted.fitted.tokenizer.ids.others[0]


def test_a_stopped_fit_resumes_to_the_same(fitted: Recommender, tmp_path: Path) -> None:
    first = Recommender(recipe(), seed=0).fit(world(), work=tmp_path)
    again = Recommender(recipe(), seed=0).fit(world(), work=tmp_path)
    assert lists(first) == lists(again) == lists(fitted)


def test_new_items_get_both_ids(fitted: Recommender, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "run")
    grown = Recommender.from_pretrained(tmp_path / "run")
    before = grown.fitted.tokenizer.ids
    title = world().title(3)
    assert grown.add_items({"item_id": ["new"], "title": [title]}) == ["new"]
    ids = grown.fitted.tokenizer.ids
    old = np.arange(len(before))
    assert ids.tokens.take(old) == before.tokens
    assert ids.others[0].tokens.take(old) == before.others[0].tokens
    assert len(ids) == len(ids.others[0]) == len(before) + 1
    assert grown.fitted.tries[1].holds(ids.others[0].prefix_free)
    history = world().items.ids(world().sequences[0][:-2])
    assert grown.recommend(history, 1, allow=["new"]).items == ("new",)
    grown.save_pretrained(tmp_path / "grown")
    again = Recommender.from_pretrained(tmp_path / "grown")
    assert again.recommend(history, 5).items == grown.recommend(history, 5).items


def test_filters_hold_for_both_ids(fitted: Recommender) -> None:
    history = world().items.ids(world().sequences[0][:-2])
    deny = list(fitted.recommend(history, 3).items)
    kept = fitted.recommend(history, 8, deny=deny)
    assert not set(kept.items) & {*deny, *history}
    only = world().items.ids(np.arange(10, 14))
    assert set(fitted.recommend(history, 8, allow=only, filter_history=False).items) == set(only)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["over=vocabulary"], "several ids per item need over=children, got over=vocabulary"),
        (["generator=transformer"], "do not work with generator=transformer"),
        (["decoder.weights=0.5,0.25,0.25"], "one weight for each id of an item, 2, got 3"),
        (["schedule.0.adapt=routing-adapters"], "do not work with the term 'dense' or with a phase that adapts codes"),
    ],
)
def test_what_does_not_fit_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small("capsid-two").with_settings(settings)


def test_another_second_id_and_the_search_of_the_first_alone() -> None:
    other = ("other_ids.0.tokenizer=frequency", "other_ids.0.collisions=bucket", "decoder=beam")
    found = Recommender(recipe(*other)).fit(world())
    assert len(found.fitted.tokenizer.ids.systems) == 2
    assert len(found.recommend(world().items.ids([1, 2]), 4).items) == 4


def test_it_cannot_be_exported_or_explained_step_by_step(fitted: Recommender, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several ids per item, which cannot be exported"):
        export_onnx(fitted, tmp_path / "onnx")
    with pytest.raises(ConfigError, match="'mixed' does not search step by step"):
        fitted.explain(world().items.ids([1, 2]))


def test_both_ids_are_shown(fitted: Recommender) -> None:
    tokenizer, item = fitted.fitted.tokenizer, world().items[3]
    opened = OpenTokenizer(tokenizer, [world().title(n) for n in range(len(world().items))])
    ids = tokenizer.ids.others[0]
    wanted = {"codes": tuple(ids.codes[3].tolist()), "tokens": tuple(ids.tokens[3].tolist())}
    assert opened.lines([item])[0].to_dict()["others"] == (wanted,)
    assert opened.inspect(item).to_dict()["others"] == (wanted,)
    assert f"id 2    {wanted['codes'][0]} (tokens {wanted['tokens'][0]} {wanted['tokens'][1]})" in item_text(
        opened.inspect(item)
    )
    quality = opened.quality()
    assert quality.others[0].collision_rate == ids.statistics().collision_rate > 0
    assert quality.others[0].intra_code_similarity is not None
    shown = dict(map(tuple, report_rows(quality.to_dict())))
    assert shown["id 2: largest bucket"] == "1"
    assert "others" not in shown


def test_items_of_one_id_have_no_second() -> None:
    plain = Recommender(small("capsid", 1)).fit(world()).fitted.tokenizer
    opened = OpenTokenizer(plain, [])
    assert "others" not in opened.lines([world().items[0]])[0].to_dict()
    assert opened.quality().others == ()


def test_validation_reads_the_root_once(fitted: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = fitted.catalogue_.split.valid
    wanted = first_code_ranks(
        fitted.retriever.model, fitted.retriever.model.root_scores(cases.histories), cases.targets
    )
    monkeypatch.setattr(FittedModel, "root_scores", lambda *_: pytest.fail("scored again"))
    np.testing.assert_array_equal(fitted.evaluate("valid").values["first_code_rank"], wanted)
