"""A run with a memory of transitions, from fit to new items: counts of training only, kept with the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_recipes import small, world

from capsid.data.item_table import ItemTable
from capsid.data.split import leave_one_out
from capsid.memory.memory import Transitions
from capsid.recommender import Recommender


@pytest.mark.parametrize("settings", [("capsid-bpe", "over=children"), ("sasrec", "over=vocabulary")])
def test_fitted_saved_loaded_and_with_new_items(settings: tuple[str, str], tmp_path: Path) -> None:
    name, over = settings
    data = world()
    recipe = small(name, 30).with_settings(["memory=memory", "memory.last=2", "memory.neighbours=0", over])
    fitted = Recommender(recipe).fit(data)
    # Held-out items must not be counted: nobody would know them before they are bought.
    training = ItemTable.from_training(data, leave_one_out(data).train).sequences
    wanted = Transitions.count(training, len(data.items), 2).state()
    memory = fitted.fitted.memory
    assert memory is not None
    found = memory.transitions.state()
    assert {key: array.tolist() for key, array in found.items()} == {key: a.tolist() for key, a in wanted.items()}
    assert all(weight != 0 for weight in memory.weights)
    histories = [data.items.ids(data.sequences[user][:3]) for user in range(4)]
    fitted.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    lists = [[answer.scores for answer in r.recommend_many(histories, 9)] for r in (fitted, loaded)]
    assert lists[0] == lists[1]
    if name == "capsid-bpe":
        loaded.add_items({"item_id": ["twin"], **{c: [data.attributes[c][5]] for c in data.attributes.columns}})
        assert loaded.recommend(["twin", *histories[0]], 3).personal
        assert loaded.recommend([*histories[0], "twin"], 3).personal
