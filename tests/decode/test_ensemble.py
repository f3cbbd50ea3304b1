"""Several readings of a history: one of them equals beam search, and several are fused by rank."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import ids_of_form, pieces_of, random_codes, random_generator, random_histories, reader_of

from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.mixed import Ensemble, fused
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedLeaves
from capsid.generate.generator import TimelineGenerator, TransformerGenerator
from capsid.ids.reading import InContext

PAIRS = [(2, 6), (3, 7), (6, 11), (10, 13), (9, 22), (2, 26)]


def in_context(permute: bool, kind: type[TransformerGenerator] = TimelineGenerator) -> FittedModel:
    ids = pieces_of(random_codes(3, items=12, sizes=(4, 4, 4)), PAIRS).with_reading(InContext(permute=permute))
    fields = {"reads": "distances"} if kind is TimelineGenerator else {}
    return reader_of(random_generator(ids, 1, kind=kind, **fields), ids)


HISTORIES = random_histories(0, 12, (1, 3, 6, 2))


@pytest.mark.parametrize("kind", [TimelineGenerator, TransformerGenerator])
def test_one_reading_without_permutation_is_beam_search(kind: type[TransformerGenerator]) -> None:
    reader = in_context(False, kind)
    for allowed in (None, Filter.build(reader.trie, 4, seen=HISTORIES)):
        wanted = BeamSearch(width=8).rank(reader, HISTORIES, 5, allowed)
        found = Ensemble(width=8, times=1).rank(reader, HISTORIES, 5, allowed)
        np.testing.assert_array_equal(found.items_UK, wanted.items_UK)
    np.testing.assert_allclose(found.scores_UK[0], 1 / np.log2(np.arange(5) + 2), rtol=1e-6)


@pytest.mark.parametrize("form", ["fixed", "bucket", "suffix", "merged"])
def test_with_ids_that_are_read_in_one_way_it_is_beam_search(form: str) -> None:
    ids = ids_of_form(2, form)
    reader = reader_of(random_generator(ids, kind=TimelineGenerator), ids)
    histories = random_histories(1, 20, (2, 5))
    wanted = BeamSearch(width=9).rank(reader, histories, 7)
    assert Ensemble(width=9, times=5).rank(reader, histories, 7).items_UK.tolist() == wanted.items_UK.tolist()


def test_readings_are_fused_by_rank() -> None:
    reader = in_context(True)
    scores: list[dict[int, float]] = [{} for _ in HISTORIES]
    lists = []
    for variant in (1, 2, 3):
        started = reader.start(HISTORIES, variant=variant)
        found = BeamSearch(width=6).leaves(reader, HISTORIES, 6, started=started).leaves_UF
        lists.append(found.tolist())
        for user, row in enumerate(found.tolist()):
            for rank, leaf in enumerate(row, 1):
                scores[user][leaf] = scores[user].get(leaf, 0.0) + 1 / np.log2(rank + 1)
    assert lists[0] != lists[1], "the readings give different lists, or this test would say nothing"
    found = Ensemble(width=6, times=3).leaves(reader, HISTORIES, 4)
    for user, own in enumerate(scores):
        best = sorted(own, key=lambda leaf: (-round(own[leaf], 9), leaf))[:4]
        assert found.leaves_UF[user].tolist() == best
        np.testing.assert_allclose(found.scores_UF[user], [own[leaf] for leaf in best], rtol=1e-6)


def test_answers_do_not_depend_on_the_batch_and_grow_with_k() -> None:
    reader, ranker = in_context(True), Ensemble(width=6, times=3)
    together = ranker.rank(reader, HISTORIES, 6).items_UK
    for user in range(4):
        alone = ranker.rank(reader, HISTORIES.take(np.array([user])), 3).items_UK
        assert alone[0].tolist() == together[user, :3].tolist()
    assert ranker.quick == Ensemble(width=6, times=1)


def test_the_watch_sees_one_search() -> None:
    seen: list[int] = []

    class Watch:
        def begun(self, first: object) -> None:
            seen.append(0)

        def weighed(self, depth: int, edges: object, open_E: np.ndarray) -> None:
            seen.append(depth)

    Ensemble(width=6, times=3).leaves(in_context(True), HISTORIES, 3, watch=Watch())
    assert seen.count(0) == 1


def test_equal_sums_are_ordered_by_leaf_and_missing_leaves_are_left_out() -> None:
    one = RankedLeaves(np.array([[7, 3, -1]]), np.array([[-1.0, -2.0, -np.inf]], dtype=np.float32), 2)
    other = RankedLeaves(np.array([[3, 7, 9]]), np.array([[-1.0, -2.0, -3.0]], dtype=np.float32), 3)
    found = fused([one, other], 4)
    assert found.leaves_UF.tolist() == [[3, 7, 9, -1]]
    assert found.scores_UF[0, 3] == -np.inf
    assert found.steps == 5


def test_no_leaves_at_all() -> None:
    nothing = RankedLeaves(np.full((2, 3), -1), np.full((2, 3), -np.inf, dtype=np.float32), 1)
    assert fused([nothing], 2).leaves_UF.tolist() == [[-1, -1], [-1, -1]]
