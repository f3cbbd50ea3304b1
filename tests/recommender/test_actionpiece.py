"""Histories read in context, through the front door: what neighbours mean, new items, kills, files, refusals."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from small_recipes import small, world
from test_retokenise import whole_and_resumed
from worlds import make_ids, objective_of, retriever_of

from capsid.data.dataset import Dataset
from capsid.errors import ConfigError
from capsid.fit.export import export_onnx
from capsid.generate.fit import fit_generator
from capsid.generate.generator import TimelineGenerator
from capsid.ids.merges import PieceTable
from capsid.ids.reading import InContext, ItemByItem
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.recommender import Recommender
from capsid.tokenize.rivals.actionpiece import Chains, Counts
from capsid.train.options import Training

# Items 0 and 1 are answers; 2 to 7 come in pairs. What follows depends on both of a pair, not on either alone.
HISTORIES = [[a, b] for a in (2, 3, 4) for b in (5, 6, 7)]
ANSWERS = [(a + b) % 2 for a, b in HISTORIES]


SEQUENCES = Ragged.from_rows([[*h, a] for h, a in zip(HISTORIES, ANSWERS)] * 3, np.int64)


def paired_ids() -> SemanticIds:
    """Ids of one code, merged by counting the pairs of the histories."""
    ids = make_ids([[i] for i in range(8)], (8,))
    first = ids.layout.vocabulary
    counts = Counts(Chains(ids.unmerged, Ragged.from_rows(HISTORIES, np.int64), first, 20))
    learnt = [one for n in range(20) if (one := counts.merge_heaviest(first + n, 0.1)) is not None]
    assert len(learnt) == len(HISTORIES), "one token for each pair"
    table = PieceTable.of_pairs(first, *map(list, zip(*learnt)))
    return ids.with_merges(table)


def unexplained(ids: SemanticIds) -> float:
    """Share of the answers' variance that a weighted sum of the tokens of a history cannot explain."""
    batch = ids.read(Ragged.from_rows(HISTORIES, np.int64), last=2)
    bags = np.stack([np.bincount(row, minlength=ids.layout.vocabulary) for row in batch.tokens_BL]).astype(float)
    wanted = np.array(ANSWERS, dtype=float) - np.mean(ANSWERS)
    fitted = np.column_stack([bags, np.ones(len(bags))])
    left = wanted - fitted @ np.linalg.lstsq(fitted, wanted, rcond=None)[0]
    return float((left**2).sum() / (wanted**2).sum())


def test_tokens_in_context_say_what_neighbours_mean() -> None:
    """The parity of a pair is in no sum over its items, but it is in the tokens that hold both."""
    ids = paired_ids()
    assert unexplained(ids.with_reading(ItemByItem())) > 0.5
    assert unexplained(ids.with_reading(InContext())) < 0.01


def test_a_world_whose_next_item_depends_on_neighbours_is_learnt() -> None:
    ids = paired_ids().with_reading(InContext())
    sizes = {"layers": 1, "heads": 2, "width": 16, "feedforward": 32, "history": 3, "reads": "distances"}
    made = TimelineGenerator(**sizes, dropout=0.0, embedding_dropout=0.0).build(ids, np.ones(8), seed=0)  # type: ignore[arg-type]
    training = Training(steps=80, batch_size=27, learning_rate=0.02, validate_every=80, ema=0.9)
    fit_generator(made, ids, SEQUENCES, objective_of(ids, over="children"), training, seed=0)
    found = retriever_of(made, ids, history=3, over="children").rank(
        Ragged.from_rows(HISTORIES, np.int64), 1, filter_history=True
    )
    assert found.items_UK[:, 0].tolist() == ANSWERS


@pytest.fixture(scope="module")
def run() -> Recommender:
    return Recommender(small("actionpiece", steps=12)).fit(world())


def late(data: Dataset) -> dict[str, list[object]]:
    row = data.attributes.row(5, named=True)
    return {"item_id": ["twin"], **{name: [value] for name, value in row.items()}}


def test_ids_are_sets_of_codes_with_merges(run: Recommender) -> None:
    ids = run.fitted.tokenizer.ids
    assert ids.reading == InContext()
    assert isinstance(ids.layout.merges, PieceTable)
    assert len(ids.layout.merges) == 12
    assert ids.tokens.lengths.mean() < ids.unmerged.lengths.mean()
    assert ids.statistics().items_sharing_an_id == 0
    assert run.fitted.generator.network.space.positions == 8 * ids.layout.depths


def test_saved_with_its_reading_and_given_new_items(run: Recommender, tmp_path: Path) -> None:
    run.save_pretrained(tmp_path / "run")
    loaded = Recommender.from_pretrained(tmp_path / "run")
    assert loaded.fitted.tokenizer.ids.reading == InContext()
    histories = [list(world().items)[n : n + 4] for n in range(5)]
    assert [loaded.recommend(h, 5) for h in histories] == [run.recommend(h, 5) for h in histories]
    old = run.fitted.tokenizer.ids
    loaded.add_items(late(world()))
    ids = loaded.fitted.tokenizer.ids
    assert ids.tokens.take(np.arange(len(old))) == old.tokens, "known items keep their ids"
    assert ids.codes[len(old)].tolist() == ids.codes[5].tolist()
    assert ids["twin"] != ids[world().items[5]]
    assert "twin" in loaded.recommend(histories[0], len(ids)).items


def test_a_run_killed_anywhere_ends_the_same(tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(small("actionpiece", steps=12), tmp_path, ("merges:", "generator: step 3"))
    assert resumed.tokenizer.ids == whole.tokenizer.ids
    assert resumed.tokenizer.ids.reading == InContext()


def test_what_cannot_be_exported_explained_or_listed_says_so(run: Recommender, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads items in context, which cannot be exported"):
        export_onnx(run, tmp_path / "onnx")
    with pytest.raises(ConfigError, match="the decoder 'ensemble' does not search step by step"):
        run.explain(list(world().items)[:3])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("merges=semantic-bpe", "merges=semantic-bpe does not work with reading=in-context"),
        ("generator=masked", "generator=masked does not work with reading=in-context"),
        ("generator.soft_input=2", "generator.soft_input does not work with reading=in-context"),
        ("schedule.0.adapt=gumbel-codes", "schedule.adapt does not work with reading=in-context"),
    ],
)
def test_parts_that_need_items_one_by_one_are_refused(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        small("actionpiece").with_settings([setting])
