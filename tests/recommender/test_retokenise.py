"""A method of other people as a recipe: ids that are learnt again from what the generator has learnt.

Nothing here but values and two parts of its own, a tokenizer and a loss term: no trainer, loader or evaluator. It
proves that the parts suffice (a schedule of phases, re-tokenising between them, freezing, terms by phase), and that
such a run too survives being killed at any moment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_recipes import tiny_world, world
from torch import Tensor
from worlds import EVERY_STEP, Killed, Killer

from capsid.base.run_options import CheckpointFile
from capsid.base.storage.artifacts import open_folder
from capsid.data.item_table import ItemTable
from capsid.encode.text import HashingEncoder
from capsid.errors import ConfigError, DataError
from capsid.generate.generator import TransformerGenerator
from capsid.generate.next_token import NextToken
from capsid.generate.terms import BoundTerm, Prepared, Step, TermContext
from capsid.ids.collisions import Suffix
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.recipe import KINDS, Phase, Recipe
from capsid.recommender import Recommender
from capsid.stored import Fitted
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.train.options import Training


@dataclass(kw_only=True)
class Drifting:
    """Residual k-means on the items' vectors; revised, on these joined with what the generator learnt of the items."""

    kind: ClassVar[str] = "drifting"
    codebooks: tuple[int, ...] = (6, 6)
    trust: float = 5.0

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.codebooks

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Drifting:
        self.seed_ = seed
        self.inner_ = self._quantizer("item").fit(table, seed=seed, progress=progress)
        return self

    def revise(self, table: ItemTable) -> Drifting:
        self.inner_ = self._quantizer("both").fit(self._joined(table), seed=self.seed_)
        return self

    def encode(self, table: ItemTable) -> Ragged:
        return self.inner_.encode(self._joined(table) if self.inner_.block == "both" else table)

    def decode(self, codes: Ragged) -> np.ndarray:
        return self.inner_.decode(codes)

    def centres(self) -> None:
        return None

    def state(self) -> dict[str, np.ndarray]:
        return {**self.inner_.state(), "seed": np.array(self.seed_), "revised": np.array(self.inner_.block == "both")}

    def load_state(self, state: dict[str, np.ndarray]) -> Drifting:
        self.seed_ = int(state["seed"])
        self.inner_ = self._quantizer("both" if state["revised"] else "item")
        self.inner_.load_state({n: a for n, a in state.items() if n.startswith("centres")})
        return self

    def _quantizer(self, block: str) -> ResidualKMeans:
        return ResidualKMeans(codebooks=self.codebooks, restarts=1, block=block)

    def _joined(self, table: ItemTable) -> ItemTable:
        item, learnt = table.vectors("item"), table.vectors("learnt")
        scale = self.trust * np.linalg.norm(item) / np.linalg.norm(learnt)
        return table.with_block("both", np.hstack([item, scale * learnt]).astype(np.float32))


@dataclass(kw_only=True, frozen=True)
class SmallNorms:
    """Keeps the rows that predict short."""

    kind: ClassVar[str] = "small-norms"
    weight: float = 0.01

    def bind(self, context: TermContext) -> BoundTerm:
        return BoundNorms(self.weight)


class BoundNorms(BoundTerm):
    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        return step.predictions.hidden_ND.square().mean()


KINDS_OF_OURS = {"drifting": Drifting, "small-norms": SmallNorms}
TRAINING = Training(steps=12, batch_size=16, learning_rate=0.02, validate_every=6, ema=0.5, validation_users=30)
RECIPE = Recipe(
    name="drifting",
    about="ids that follow the generator",
    encoder=HashingEncoder(dim=16),
    tokenizer=Drifting(),
    collisions=Suffix(capacity=72),
    generator=TransformerGenerator(layers=1, heads=2, width=16, feedforward=24, history=8),
    objective=(NextToken(),),
    schedule=(
        Phase(name="first", training=TRAINING),
        Phase(
            name="second",
            training=TRAINING,
            retokenize=True,
            terms=(NextToken(label_smoothing=0.1), SmallNorms()),
            learns=("token.*", "norm.*"),
        ),
    ),
)


def fit(work: Path | None = None, progress: Progress = silent, recipe: Recipe = RECIPE) -> Recommender:
    return Recommender(recipe, seed=2).fit(world(), work=work, run=EVERY_STEP, progress=progress)


@pytest.fixture(scope="module")
def whole() -> Recommender:
    return fit()


def untimed(log: tuple[dict, ...]) -> list[dict]:
    """The log without what a clock said."""
    timed = ("seconds", "tokens_per_second")
    out = []
    for entry in log:
        curve = [{n: v for n, v in p.items() if n not in timed} for p in entry["curve"]]
        out.append({**{n: v for n, v in entry.items() if n not in timed}, "curve": curve})
    return out


def whole_and_resumed(recipe: Recipe, work: Path, killed_at: Sequence[str]) -> tuple[Fitted, Fitted]:
    """An unbroken fit, and one that was killed at each of these words and resumed; both must be the same."""
    whole = Recommender(recipe).fit(world()).fitted
    for words in killed_at:
        with pytest.raises(Killed):
            Recommender(recipe).fit(world(), work=work, run=EVERY_STEP, progress=Killer(words))
    resumed = Recommender(recipe).fit(world(), work=work, run=EVERY_STEP).fitted
    assert same(resumed, whole)
    return whole, resumed


def same(a: Fitted, b: Fitted) -> bool:
    """Ids, trie, weights and curves to the last bit."""
    left, right = a.generator.state(), b.generator.state()
    return (
        a.tokenizer.ids == b.tokenizer.ids
        and a.trie.rows() == b.trie.rows()
        and all(torch.equal(left[n], right[n]) for n in left)
        and untimed(a.log) == untimed(b.log)
    )


def test_the_recipe_is_a_value() -> None:
    assert Recipe.from_dict(RECIPE.to_dict(), KINDS_OF_OURS) == RECIPE
    with pytest.raises(ConfigError, match="unknown kind of part 'drifting'"):
        Recipe.from_dict(RECIPE.to_dict())
    assert not set(KINDS_OF_OURS) & set(KINDS)


def test_ids_really_change_and_everything_follows(whole: Recommender, tmp_path: Path) -> None:
    kept = fit(tmp_path)
    assert same(kept.fitted, whole.fitted)
    (run,) = tmp_path.iterdir()
    assert {"tokenizer", "tokenizer-1", "phase-0", "phase-1"} <= {p.name for p in run.iterdir()}
    first = ItemTokenizer.load(open_folder(run / "tokenizer", kind="stage"), KINDS_OF_OURS)
    new = whole.fitted.tokenizer.ids
    changed = sum(not np.array_equal(a, b) for a, b in zip(first.ids.codes, new.codes))
    assert changed > len(new) / 4
    assert first.ids.layout == new.layout, "the vocabulary stays the generator's"
    assert whole.fitted.model.trie.rows() == new.prefix_free, "the trie is of the new ids"
    assert [entry["phase"] for entry in whole.fitted.log] == ["first", "second"]


def test_all_recommendations_are_valid(whole: Recommender) -> None:
    everything = whole.recommend(["i3"], 72, filter_history=False)
    assert sorted(everything.items) == sorted(world().items)
    assert whole.evaluate().metrics["recall@10"] > 0


def test_a_phase_keeps_what_it_may_not_learn(tmp_path: Path) -> None:
    """The second phase may only move embeddings and the last norm."""
    fit(tmp_path)
    (run,) = tmp_path.iterdir()
    before, after = (load_file(run / f"phase-{n}" / "generator.safetensors") for n in (0, 1))
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {"token.weight", "norm.weight", "norm.bias"}


def test_a_phase_has_its_own_terms(whole: Recommender) -> None:
    first, second = RECIPE.schedule
    common = fit(recipe=dataclasses.replace(RECIPE, schedule=(first, dataclasses.replace(second, terms=()))))
    assert common.fitted.tokenizer.ids == whole.fitted.tokenizer.ids, "the first phase is the same"
    assert not same(common.fitted, whole.fitted)


@pytest.mark.parametrize(
    "words",
    [
        "vectors: 72 items",
        "residual k-means: depth 2",
        "first: step 5/",
        "first: step 6/12  loss",
        "first: best at step",
        "new codes for",
        "second: step 1/",
        "second: step 9/",
        "second: best at step",
    ],
)
def test_killed_anywhere_and_resumed_with_the_same_bits(whole: Recommender, tmp_path: Path, words: str) -> None:
    with pytest.raises(Killed):
        fit(tmp_path, Killer(words))
    assert same(fit(tmp_path).fitted, whole.fitted)


def test_killed_again_and_again(whole: Recommender, tmp_path: Path) -> None:
    for words in ("first: step 3/", "first: step 9/", "new codes for", "second: step 2/", "second: step 11/"):
        with pytest.raises(Killed):
            fit(tmp_path, Killer(words))
    assert same(fit(tmp_path).fitted, whole.fitted)
    # All is done: nothing is trained any more.
    assert same(fit(tmp_path, Killer("step 1/")).fitted, whole.fitted)


def test_save_and_load(whole: Recommender, tmp_path: Path) -> None:
    whole.save_pretrained(tmp_path / "run")
    with pytest.raises(ConfigError, match="unknown kind of part 'drifting'"):
        Recommender.from_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run", kinds=KINDS_OF_OURS)
    assert same(loaded.fitted, whole.fitted)
    assert loaded.recommend(["i3", "i4"], 9) == whole.recommend(["i3", "i4"], 9)
    assert loaded.evaluate().metrics == whole.evaluate().metrics


def test_a_tokenizer_that_cannot_revise_says_so() -> None:
    plain = dataclasses.replace(RECIPE, tokenizer=ResidualKMeans(codebooks=(6, 6)))
    with pytest.raises(ConfigError, match="cannot re-tokenise"):
        Recommender(plain).fit(tiny_world())


def test_more_collisions_than_room_is_said() -> None:
    """New ids that collide more often than the old ones did must not break the vocabulary in silence."""

    class Falling(Drifting):
        def revise(self, table: ItemTable) -> Drifting:
            self.inner_.centres_ = tuple(c[:1].repeat(len(c), axis=0) for c in self.inner_.centres_)
            return self

    recipe = dataclasses.replace(RECIPE, tokenizer=Falling(), collisions=Suffix())
    with pytest.raises(DataError, match=r"items share one code.*capacity"):
        Recommender(recipe).fit(world())
