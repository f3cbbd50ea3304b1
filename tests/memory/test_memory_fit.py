"""A memory is fitted after training: the network stays as it is, and no weights make held-out items more probable."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import small, world

from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split, leave_one_out, no_holdout
from capsid.decode.exact import exact_scores
from capsid.decode.ranked import Retriever
from capsid.errors import ConfigError
from capsid.evaluate.evaluator import metric_values
from capsid.fit.stages import with_memory
from capsid.generate.terms import TermContext
from capsid.memory.fit import MemoryFit, fit_weights
from capsid.memory.memory import FittedMemory
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.recommender import Recommender

TWO = ("memory=memory", "memory.last=2", "memory.neighbours=0")
NEAR = ("memory=memory", "memory.last=2", "memory.neighbours=4")
RECIPES = [
    ("capsid-bpe", ("over=children", *TWO)),
    ("capsid-bpe", ("over=children", *NEAR)),
    ("sasrec", ("over=vocabulary", *TWO)),
    ("capsid-dense", ("over=children", *TWO)),
    ("capsid-two", ("over=children", *NEAR)),
]
# A search of two ids mixes two lists, so it has no probabilities of its own.
ONE_ID = RECIPES[:4]


def fitted(name: str, *settings: str) -> Recommender:
    return Recommender(small(name, 30).with_settings(settings)).fit(world())


def memory_of(recommender: Recommender) -> FittedMemory:
    assert recommender.fitted.memory is not None
    return recommender.fitted.memory


@pytest.mark.parametrize(("name", "settings"), RECIPES)
def test_the_network_is_that_of_a_fit_without_memory(name: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    plain, after = fitted(name, settings[0], "memory=null"), fitted(name, *settings)
    without, state = plain.fitted.generator.state(), after.fitted.generator.state()
    assert plain.fitted.memory is None
    assert all(torch.equal(state[key], tensor) for key, tensor in without.items())
    assert state.keys() == without.keys()
    assert all(weight != 0 for weight in memory_of(after).weights)
    data = world()
    histories = [data.items.ids(data.sequences[user][:3]) for user in range(4)]
    after.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    answers = [[a.scores for a in r.recommend_many(histories, 9)] for r in (after, loaded, plain)]
    assert answers[0] == answers[1] != answers[2]


def fits_of(recommender: Recommender, cases: Cases) -> tuple[MemoryFit, ...]:
    found, transitions = recommender.fitted, memory_of(recommender).transitions
    context = TermContext(found.tokenizer.ids, found.tries, recommender.recipe.over)
    return fit_weights(found.generator, transitions, context, cases, Ragged.from_rows([]), found.dense)


def loss_of(recommender: Recommender, memory: FittedMemory, cases: Cases) -> float:
    """The slow twin: the mean loss of a token, from what a search with this memory says of whole items."""
    model, targets = dataclasses.replace(recommender.fitted, memory=memory).model, cases.targets
    total = exact_scores(model, cases.histories).numpy()[np.arange(len(cases)), targets].sum()
    return -float(total) / float(recommender.fitted.tokenizer.ids.prefix_free.take(targets).lengths.sum())


@pytest.mark.parametrize(("name", "settings"), ONE_ID)
def test_no_other_weights_make_the_held_out_items_more_probable(name: str, settings: tuple[str, ...]) -> None:
    recommender = fitted(name, *settings)
    cases = leave_one_out(world()).valid
    best, *others = fits = fits_of(recommender, cases)
    kept = memory_of(recommender)
    assert kept.weights in [pytest.approx(one.memory.weights, abs=1e-4) for one in fits], "the fit did the same"
    assert all(best.after <= other.after for other in others)
    assert best.after < best.before
    for one in fits:
        assert loss_of(recommender, one.memory, cases) == pytest.approx(one.after, abs=1e-4)
    weights = np.array(best.memory.weights)
    moves = 0.5 * np.eye(len(weights))
    for other in (weights * 0, weights * 0.5, weights * 2, *(weights + moves), *(weights - moves)):
        moved = dataclasses.replace(best.memory, weights=tuple(other))
        assert loss_of(recommender, moved, cases) > best.after - 1e-5


def test_of_the_weights_for_all_temperatures_those_that_rank_best_are_kept() -> None:
    # The items of this world are few, so Recall@10 is the same with most weights.
    recommender = fitted("capsid-bpe", "over=children", "schedule.0.training.select=ndcg@10", *NEAR)
    cases, training = leave_one_out(world()).valid, recommender.recipe.schedule[-1].training
    values = []
    for one in fits_of(recommender, cases):
        model = dataclasses.replace(recommender.fitted, memory=one.memory).model
        retriever, filtered = Retriever(model, recommender.recipe.decoder), training.select_filtered
        found = metric_values(retriever, cases, training.select, filter_history=filtered, part=(0, 1))
        values.append((float(found.mean()), one.memory.weights))
    best, weights = max(values, key=lambda value: value[0])
    assert memory_of(recommender).weights == weights
    assert best > min(value for value, _ in values), "all weights rank alike, so nothing is tested"


def test_a_fit_with_another_memory_gets_this_one() -> None:
    """Whatever memory a fit has, only its network counts: so runs can share one."""
    data = world()
    wanted, other = (fitted("capsid-bpe", "over=children", *NEAR, *more) for more in ((), ("memory.last=1",)))
    split = leave_one_out(data)
    table = ItemTable.from_training(data, split.train)
    found = with_memory(other.fitted, wanted.recipe, table, split, seed=wanted.seed, progress=silent)
    assert found.memory is not None
    assert found.memory.weights == memory_of(wanted).weights
    state, again = memory_of(wanted).transitions.state(), found.memory.transitions.state()
    assert {name: array.tolist() for name, array in state.items()} == {name: a.tolist() for name, a in again.items()}
    none = dataclasses.replace(wanted.recipe, memory=None)
    assert with_memory(found, none, table, split, seed=0, progress=silent).memory is None


def test_neighbours_of_a_method_without_vectors_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs item vectors"):
        fitted("sasrec", *NEAR)


def test_a_new_item_is_recommended_after_items_that_it_is_like() -> None:
    data = world()
    recommender = fitted("capsid-bpe", "over=children", *NEAR)
    strong = dataclasses.replace(memory_of(recommender), weights=(0.0, 0.0, 50.0, 0.0))
    recommender.fitted_ = dataclasses.replace(recommender.fitted, memory=strong)
    like = data.items.ids([5])[0]
    before = recommender.recommend([like], 3).items
    recommender.add_items({"item_id": ["twin"], **{c: [data.attributes[c][5]] for c in data.attributes.columns}})
    after = recommender.recommend([like], 3).items
    assert "twin" in after
    assert "twin" not in before
    assert like in recommender.recommend(["twin"], 3).items


def test_validation_items_are_not_counted_and_test_items_are_not_seen() -> None:
    data = world()
    split = leave_one_out(data)
    recipe = small("sasrec", 30).with_settings(TWO)
    ours = Recommender(recipe).fit(data, split=split)
    shuffled = Cases(split.test.users, split.test.histories, np.roll(split.test.targets, 1))
    other = Recommender(recipe).fit(data, split=Split(split.kind, split.train, split.valid, shuffled))
    assert memory_of(other).weights == memory_of(ours).weights
    pairs = sum(max(len(row) - 1, 0) for row in split.train)
    assert int(memory_of(ours).transitions.counts[0].sum()) == pairs


def test_without_held_out_items_training_items_are_left_out_of_the_counts_for_themselves() -> None:
    data = world()
    recipe = small("sasrec", 30).with_settings([*TWO, "memory.last=1"])
    found = Recommender(recipe).fit(data, split=no_holdout(data))
    # Counted for themselves, all targets would be followers, and the weight would explode.
    assert 0 < abs(memory_of(found).weights[0]) < 5
