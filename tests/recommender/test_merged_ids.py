"""Merged ids all the way: the full recipe, without its merges, with a suffix, re-tokenised, killed on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from small_recipes import small, tiny_world, world
from test_retokenise import RECIPE, same
from worlds import EVERY_STEP, Killed, Killer, Watcher

from capsid.errors import ConfigError
from capsid.recipes import RECIPES
from capsid.recommender import Recommender
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE

FEW = SemanticBPE(size=12, min_count=3, theta=(0.5, -1.0))


def test_settings() -> None:
    recipe = RECIPES["capsid-bpe"]
    other = recipe.with_settings(["merges.size=512", "merges.alpha=1,1"]).merges
    assert other == dataclasses.replace(recipe.merges, size=512, alpha=(1.0, 1.0))
    # Without merges and at its dropout, nothing but the texts tells it from `capsid`.
    off = recipe.with_settings(["merges=null", "generator.dropout=0.2", "generator.embedding_dropout=0.2"])
    assert off.merges is None
    texts = {n: getattr(off, n) for n in ("name", "about", "paper", "deviations")}
    assert off == dataclasses.replace(RECIPES["capsid"], **texts)
    with pytest.raises(ConfigError, match=r"merges\.size must be at least 1, got 0"):
        recipe.with_settings(["merges.size=0"])
    with pytest.raises(ConfigError, match="merges cannot be 'yes'"):
        recipe.with_settings(["merges=yes"])
    assert RECIPES["capsid"].with_settings(["merges=semantic-bpe"]).merges == SemanticBPE()


def test_the_whole_way(tmp_path: Path) -> None:
    watcher = Watcher()
    whole = Recommender(small("capsid-bpe", steps=10)).fit(world(), progress=watcher)
    ids = whole.fitted.tokenizer.ids
    merges = len(ids.layout.merges)
    assert merges > 0
    told = next(line for line in watcher.lines if line.startswith("ids: "))
    assert f"({merges:,} merged, {ids.tokens.lengths.mean():.2f} tokens per item)" in told
    everything = whole.recommend(world().items.ids(world().sequences[0][:3]), 72, filter_history=False)
    assert sorted(everything.items) == sorted(world().items), "every item can be reached"
    without = Recommender(small("capsid-bpe", steps=10).with_settings(["merges=null"])).fit(world())
    assert without.fitted.tokenizer.ids.codes == ids.codes, "merging comes after the codes and changes none"
    assert "merged" not in next(line for line in watcher.lines if line.startswith("capsules: "))
    recipe = small("capsid-bpe", steps=10)
    for words in ("merges: ", "generator: step 5"):
        with pytest.raises(Killed):
            Recommender(recipe).fit(world(), work=tmp_path, run=EVERY_STEP, progress=Killer(words))
    resumed = Recommender(recipe).fit(world(), work=tmp_path, run=EVERY_STEP)
    assert same(resumed.fitted, whole.fitted)


def test_suffix_and_retokenising_keep_the_merges() -> None:
    recipe = dataclasses.replace(RECIPE, merges=FEW)
    schedule = (recipe.schedule[0], dataclasses.replace(recipe.schedule[1], retokenize=False))
    fits = [Recommender(r, seed=2).fit(world()) for r in (recipe, dataclasses.replace(recipe, schedule=schedule))]
    new, old = (f.fitted.tokenizer.ids for f in fits)
    assert new.layout == old.layout
    assert len(new.layout.merges) > 0
    assert new.codes != old.codes
    assert new.layout.codes(new.tokens) == new.codes
    assert (new.tokens.values >= new.layout.merges.first).any(), "the new codes are merged by the old table"
    assert fits[0].fitted.model.trie.rows() == new.prefix_free
    assert sorted(fits[0].recommend(["i3"], 72, filter_history=False).items) == sorted(world().items)


def test_a_world_too_small_for_merges() -> None:
    recipe = small("capsid-bpe", steps=4).with_settings(["merges.min_count=1000"])
    fitted = Recommender(recipe).fit(tiny_world()).fitted
    assert len(fitted.tokenizer.ids.layout.merges) == 0
    assert np.array_equal(fitted.tokenizer.ids.tokens.values, fitted.tokenizer.ids.unmerged.values)
