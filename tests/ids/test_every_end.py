"""An end token on every id: the paper's trie. Ids, beams and lookups stay what they were, one token longer."""

from __future__ import annotations

import numpy as np
import pytest
from small_recipes import small, world
from worlds import make_ids

from capsid.ids.layout import END
from capsid.ids.reading import ItemByItem
from capsid.recommender import Recommender


def test_every_id_ends_with_an_end_token() -> None:
    ids = make_ids([[0, 1], [0, 1, 2], [3]], (4, 4, 4))
    every = ids.with_reading(ItemByItem(every_end=True))
    assert [row[-1] for row in every.prefix_free] == [END] * 3
    assert [row[:-1].tolist() for row in every.prefix_free] == [row.tolist() for row in every.tokens]
    # Without it, only the id from which another goes on.
    assert [int(row[-1] == END) for row in ids.prefix_free] == [1, 0, 0]
    for item, tokens in zip(ids.items, every.prefix_free):
        assert every.lookup(tokens.tolist()) == [item]
        assert every.lookup(tokens[:-1].tolist()) == [item]


@pytest.mark.parametrize("generator", ["transformer", "timeline"])
def test_a_recipe_with_end_tokens_fits_searches_and_is_stored(generator: str, tmp_path: object) -> None:
    settings = ("reading.every_end=true", f"generator={generator}", "generator.width=32", "generator.layers=1")
    recipe = small("capsid", 20).with_settings(settings)
    fitted = Recommender(recipe, seed=0).fit(world())
    history = list(world().items.ids(world().sequences[0][:4]))
    wide = fitted.recommend(history, 20)
    assert len(wide.items) == len(set(wide.items)) == 20
    assert np.all(np.diff(wide.scores) <= 0)
    fitted.save_pretrained(f"{tmp_path}/run")
    again = Recommender.from_pretrained(f"{tmp_path}/run").recommend(history, 20)
    assert again.items == wide.items
