"""A memory of transitions that is fitted after training: the network stays what it is without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import small, world

from capsid.data.item_table import ItemTable
from capsid.data.split import Cases, Split, leave_one_out, no_holdout
from capsid.decode.exact import exact_scores
from capsid.errors import ArtifactError, ConfigError
from capsid.evaluate.evaluator import metric_values
from capsid.fitting.remembering import with_memory
from capsid.generate.memory import REACH
from capsid.generate.next_token import NextToken
from capsid.generate.settled_memory import SettledMemory, memory_of, settle_memory
from capsid.generate.terms import NOTHING, Step, TermContext
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.recommender import Recommender

RECIPES = [
    ("capsid-bpe", ("over=children",)),
    ("capsid-bpe", ("over=children", "generator.neighbours=4")),
    ("sasrec", ("over=vocabulary",)),
    ("capsid-dense", ("over=children",)),
    ("capsid-two", ("over=children", "generator.neighbours=4")),
]
# A search of two ids mixes two lists, so it has no probabilities of its own.
ONE_ID = RECIPES[:4]
AFTER = ("generator.memory=2", "generator.memory_after=true")
NONE = ("generator.memory=0", "generator.neighbours=0")


def fitted(name: str, *settings: str) -> Recommender:
    return Recommender(small(name, 30).with_settings(settings)).fit(world())


@pytest.mark.parametrize(("name", "settings"), RECIPES)
def test_the_network_is_that_of_a_fit_without_memory(name: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    plain, after = fitted(name, settings[0], *NONE), fitted(name, *settings, *AFTER)
    without, state = plain.fitted.generator.state(), after.fitted.generator.state()
    assert state.keys() - without.keys() == {"memory.weight", "memory.temperature"}
    for key, tensor in without.items():
        assert torch.equal(state[key], tensor), key
    assert (state["memory.weight"] != 0).all()
    data = world()
    histories = [data.items.ids(data.sequences[user][:3]) for user in range(4)]
    after.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    answers = [[a.scores for a in r.recommend_many(histories, 9)] for r in (after, loaded, plain)]
    assert answers[0] == answers[1] != answers[2]


def context_of(recommender: Recommender) -> TermContext:
    found = recommender.fitted
    return TermContext(found.tokenizer.ids, found.tries, recommender.recipe.over)


def settled_by(recommender: Recommender, cases: Cases) -> tuple[SettledMemory, ...]:
    found = recommender.fitted
    return settle_memory(found.generator, context_of(recommender), cases, Ragged.from_rows([]), found.dense)


def loss_of(recommender: Recommender, cases: Cases, temperature: float) -> float:
    """The slow twin: one case at a time, with the search's own reading of the history's followers."""
    found, context = recommender.fitted, context_of(recommender)
    term, total, tokens = NextToken(temperature=temperature).bind(context), 0.0, 0
    for history, target in zip(cases.histories, cases.targets):
        piece = Ragged.from_rows([[*history, target]])
        lesson = context.ids.lesson(piece, last=found.generator.history + 1, counted=False).latest()
        with torch.no_grad():
            read_RD = None if found.dense is None else found.dense.inputs(lesson.batch)
            step = Step(lesson, found.generator.network, found.generator.network.predict(lesson, read_RD))
            total += float(term.loss(step, NOTHING)) * len(lesson.tokens.values)
        tokens += len(lesson.tokens.values)
    return total / tokens


@pytest.mark.parametrize(("name", "settings"), RECIPES)
def test_no_other_weights_make_the_held_out_items_more_probable(name: str, settings: tuple[str, ...]) -> None:
    recommender = fitted(name, *settings, *AFTER)
    cases = leave_one_out(world()).valid
    memory = memory_of(recommender.fitted.generator)
    kept = tuple((REACH * memory.weight.detach()).tolist())
    settled, *others = settled_by(recommender, cases)
    assert kept in [pytest.approx(one.weights, abs=1e-4) for one in (settled, *others)], "the fit did the same"
    assert all(settled.after <= other.after for other in others)
    assert settled.after < settled.before
    assert loss_of(recommender, cases, settled.temperature) == pytest.approx(settled.after, abs=1e-4)
    best = memory.weight.detach().clone()
    moves = 0.05 * torch.eye(len(best))
    for other in (best * 0, best * 0.5, best * 2, *(best + move for move in moves), *(best - move for move in moves)):
        with torch.no_grad():
            memory.weight.copy_(other)
        assert loss_of(recommender, cases, settled.temperature) > settled.after - 1e-5


@pytest.mark.parametrize(("name", "settings"), ONE_ID)
def test_a_search_has_the_probabilities_of_the_fit(name: str, settings: tuple[str, ...]) -> None:
    """Scores are divided by the temperature of the fit, with and without bonuses, at every token."""
    recommender = fitted(name, *settings, *AFTER)
    generator, cases = recommender.fitted.generator, leave_one_out(world()).valid
    for settled in settled_by(recommender, cases):
        settled.give(memory_of(generator))
        scores = exact_scores(recommender.retriever.model, cases.histories).numpy()
        own = scores[np.arange(len(cases)), cases.targets]
        tokens = recommender.fitted.tokenizer.ids.prefix_free.take(cases.targets).lengths.sum()
        assert -float(own.sum()) / tokens == pytest.approx(settled.after, abs=1e-4)


def test_weights_that_are_older_than_temperatures_have_none() -> None:
    recommender = fitted("sasrec", "over=vocabulary", *AFTER)
    generator = recommender.fitted.generator
    state = {name: tensor for name, tensor in generator.state().items() if name != "memory.temperature"}
    generator.load_state(recommender.fitted.tokenizer.ids, state)
    assert memory_of(generator).temperature == 1
    assert torch.equal(memory_of(generator).weight, state["memory.weight"])
    for broken in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArtifactError, match=r"not above 0|finite"):
            generator.load_state(
                recommender.fitted.tokenizer.ids, {**state, "memory.temperature": torch.tensor(broken)}
            )


def test_of_the_weights_for_all_temperatures_those_that_rank_best_are_kept() -> None:
    # The items of this world are few, so Recall@10 is the same with most weights.
    select = "schedule.0.training.select=ndcg@10"
    recommender = fitted("capsid-bpe", "over=children", "generator.neighbours=4", select, *AFTER)
    generator, cases = recommender.fitted.generator, leave_one_out(world()).valid
    kept, training = memory_of(generator).weight.detach().clone(), recommender.recipe.schedule[-1].training
    values = []
    for settled in settled_by(recommender, cases):
        settled.give(memory_of(generator))
        found = metric_values(
            recommender.retriever, cases, training.select, filter_history=training.select_filtered, part=(0, 1)
        )
        values.append((float(found.mean()), memory_of(generator).weight.detach().clone()))
    best, weights = max(values, key=lambda value: value[0])
    assert torch.equal(kept, weights)
    assert best > min(value for value, _ in values), "all weights rank alike, so nothing is tested"


def test_a_fit_with_another_memory_gets_this_one() -> None:
    """Whatever memory a fit has, only its network counts: so runs can share one."""
    data, settings = world(), ("over=children", "generator.neighbours=4", *AFTER)
    wanted, other = fitted("capsid-bpe", *settings), fitted("capsid-bpe", settings[0], "generator.memory=1", AFTER[1])
    split = leave_one_out(data)
    table = ItemTable.from_training(data, split.train)
    found = with_memory(other.fitted, wanted.recipe, table, split, seed=wanted.seed, progress=silent)
    for key, tensor in wanted.fitted.generator.state().items():
        assert torch.equal(found.generator.state()[key], tensor), key
    state, again = (f.tokenizer.ids.transitions.state() for f in (wanted.fitted, found))
    assert {name: array.tolist() for name, array in state.items()} == {name: a.tolist() for name, a in again.items()}


def test_neighbours_of_a_method_without_vectors_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs item vectors"):
        fitted("sasrec", "generator.neighbours=4", *AFTER)


def test_a_new_item_is_recommended_after_items_that_it_is_like() -> None:
    data = world()
    recommender = fitted("capsid-bpe", "over=children", "generator.neighbours=4", *AFTER)
    with torch.no_grad():
        memory_of(recommender.fitted.generator).weight.copy_(torch.tensor([0.0, 0.0, 5.0, 0.0]))
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
    recipe = small("sasrec", 30).with_settings(["generator.memory=2", "generator.memory_after=true"])
    ours = Recommender(recipe).fit(data, split=split)
    shuffled = Cases(split.test.users, split.test.histories, np.roll(split.test.targets, 1))
    other = Recommender(recipe).fit(data, split=Split(split.kind, split.train, split.valid, shuffled))
    for key, tensor in ours.fitted.generator.state().items():
        assert torch.equal(other.fitted.generator.state()[key], tensor), key
    counted = ours.fitted.tokenizer.ids.transitions
    assert counted is not None
    pairs = sum(max(len(row) - 1, 0) for row in split.train)
    assert sum(int(c.sum()) for c in counted.counts[:1]) == pairs


def test_without_held_out_items_training_items_are_left_out_of_the_counts_for_themselves() -> None:
    data = world()
    recipe = small("sasrec", 30).with_settings(["generator.memory=1", "generator.memory_after=true"])
    found = Recommender(recipe).fit(data, split=no_holdout(data))
    weight = memory_of(found.fitted.generator).weight.item()
    # Counted for themselves, all targets would be followers, and the weight would explode.
    assert 0 < abs(10 * weight) < 5
