"""Proof of two promises: a foreign backbone takes few lines, and items may have any number of ids.

Both recipes are fitted, searched, saved and loaded. `GruBackbone` and its generator are all that a package outside has
to write for a network of its own; a third id system needs no code at all.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_recipes import small, world

from capsid.data.split import leave_one_out
from capsid.decode.exact import exact_scores
from capsid.generate.backbone import Backbone, Predictions, refuse_closing
from capsid.generate.generator import NetworkGenerator
from capsid.ids.reading import Lesson, ReadableIds, TokenBatch
from capsid.memory.memory import Memory
from capsid.recipe import Recipe
from capsid.recommender import Recommender

# From here to the next such line: the foreign backbone.


class GruBackbone(Backbone):
    """A recurrent network over the tokens of a history, one after the other."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens, self.cell = nn.Embedding(vocabulary, width), nn.GRU(width, width, batch_first=True)

    def embed(self) -> Tensor:
        return self.tokens.weight

    def _read(self, batch: TokenBatch, inputs_RD: Tensor | None) -> Tensor:
        x_BLD = self.tokens(torch.as_tensor(batch.tokens_BL))
        if inputs_RD is not None:
            real = torch.as_tensor(np.arange(batch.tokens_BL.shape[1]) < batch.lengths_B[:, None])
            x_BLD = x_BLD.masked_scatter(real[..., None], x_BLD[real] + inputs_RD)
        hidden_BLD, _ = self.cell(x_BLD)
        return hidden_BLD

    def predict(
        self,
        lesson: Lesson,
        inputs_RD: Tensor | None = None,
        *,
        forced_ND: Tensor | None = None,
        closing: bool = False,
    ) -> Predictions:
        refuse_closing(closing)
        hidden_BLD, lengths = self._read(lesson.batch, inputs_RD), lesson.tokens.lengths
        column_N = np.repeat(lesson.column_M - 1, lengths) + lesson.tokens.positions
        hidden_ND = hidden_BLD[torch.as_tensor(np.repeat(lesson.row_M, lengths)), torch.as_tensor(column_N)]
        return Predictions(hidden_ND, lesson.tokens, self.embed())

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Any, Tensor]:
        hidden_ULD, last = self._read(histories, inputs_RD), torch.as_tensor(histories.lengths_B) - 1
        rows_U1D = hidden_ULD[torch.arange(len(last)), last][:, None]
        return rows_U1D, rows_U1D

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        before = state[torch.arange(len(state))[:, None], parents_UW].flatten(0, 1)[None].contiguous()
        after, _ = self.cell(self.tokens(tokens_UW).flatten(0, 1)[:, None], before)
        rows_UWD = after[:, 0].view(*tokens_UW.shape, -1)
        return rows_UWD, rows_UWD


@dataclass(kw_only=True)
class GruGenerator(NetworkGenerator):
    kind: ClassVar[str] = "gru"
    width: int = 24
    history: int = 8

    def make(self, ids: ReadableIds) -> GruBackbone:
        return GruBackbone(ids.layout.vocabulary, self.width)


# Here it ends.


def three_ids() -> Recipe:
    recipe = small("capsid-two", 25).with_settings(["other_ids=id-system,id-system"])
    first = ["other_ids.0.tokenizer.codebooks=24", "other_ids.1.tokenizer.codebooks=8,8"]
    return recipe.with_settings([*first, "memory.neighbours=4"])


def foreign() -> Recipe:
    return replace(small("capsid-bpe", 60), generator=GruGenerator(), over="children", memory=Memory(neighbours=4))


@pytest.mark.parametrize("make", [foreign, three_ids])
def test_it_fits_searches_saves_and_loads(make: Any, tmp_path: Path) -> None:
    fitted = Recommender(make(), seed=0).fit(world())
    curve = fitted.fitted.log[-1]["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"], "it learns"
    assert fitted.evaluate("test").metrics["recall@10"] > 0.2, "ten of 72 items would be found by chance"
    histories = [world().items.ids(row[:-2]) for row in world().sequences][:5]
    wanted = [(a.items, a.scores) for a in fitted.recommend_many(histories, 8)]
    fitted.save_pretrained(tmp_path / "run")
    again = Recommender.from_pretrained(tmp_path / "run", kinds={GruGenerator.kind: GruGenerator})
    assert [(a.items, a.scores) for a in again.recommend_many(histories, 8)] == wanted
    again.add_items({"item_id": ["new"], "title": [world().title(3)]})
    assert again.recommend(histories[0], 1, allow=["new"]).items == ("new",)


def test_three_ids_are_searched_and_their_probabilities_sum_to_one() -> None:
    fitted = Recommender(three_ids(), seed=0).fit(world())
    assert len(fitted.fitted.tries) == len(fitted.fitted.tokenizer.ids.systems) == 3
    cases = leave_one_out(world()).test.take(np.arange(4))
    for system in range(3):
        model = fitted.fitted.model.on(system)
        sharing_N = (model.trie.high - model.trie.low)[model.trie.leaf_of(np.arange(len(world().items)))]
        total_U = (exact_scores(model, cases.histories).double().exp() / torch.as_tensor(sharing_N)).sum(1)
        torch.testing.assert_close(total_U, torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-4)


def test_a_foreign_backbone_takes_at_most_sixty_lines() -> None:
    lines = inspect.getsource(GruBackbone).count("\n") + inspect.getsource(GruGenerator).count("\n") + 1
    assert lines <= 60
    # Nothing of it is known to the package: it is no part of any table of kinds.
    source = Path(inspect.getfile(Backbone)).parents[1]
    names = {n.id for p in source.rglob("*.py") for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.Name)}
    assert "GruGenerator" not in names
