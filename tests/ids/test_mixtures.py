"""Items read softly: against a loop over items, and exactly as before where there is nothing to mix."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids, random_codes

from capsid.errors import ConfigError, DataError
from capsid.ids.collisions import Suffix
from capsid.ids.merges import MergeTable
from capsid.ids.mixtures import Mixtures
from capsid.ids.reading import ItemByItem
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged

SIZES = (4, 3, 3)


def some_ids(seed: int) -> SemanticIds:
    """Ids of varying length with a few merges and, where they collide, a suffix."""
    codes = random_codes(seed, items=12, sizes=SIZES, variable=True, distinct=False)
    plain = make_ids(codes, SIZES, Suffix())
    pairs = sorted({(int(row[0]), int(row[1])) for row in plain.tokens if len(row) > 2})[:3]
    if not pairs:
        return plain
    return plain.with_merges(MergeTable.of(plain.layout.vocabulary, *zip(*pairs), [0.9] * len(pairs), [1] * len(pairs)))


def mixtures(ids: SemanticIds, strongest: int, seed: int = 0, sharpness: float = 1.0) -> Mixtures:
    """The id's code first, then others, with falling weights."""
    rng = np.random.default_rng(seed)
    codes = np.zeros((len(ids), len(SIZES), strongest), dtype=np.int64)
    for item, row in enumerate(ids.codes):
        for depth, size in enumerate(SIZES):
            own = int(row[depth]) if depth < len(row) else int(rng.integers(size))
            others = rng.permutation([c for c in range(size) if c != own])[: strongest - 1]
            codes[item, depth] = [own, *others]
    weights = -np.sort(-rng.random(codes.shape), axis=2)
    return Mixtures.of(codes, weights, sharpness)


def slow_vector(ids: SemanticIds, item: int, table_VD: np.ndarray) -> np.ndarray:
    """Mixtures for codes, own vectors of merged tokens and all other tokens as they are."""
    soft, layout, out = ids.mixtures, ids.layout, np.zeros(table_VD.shape[1])
    assert soft is not None

    def mixed(token: int) -> np.ndarray:
        depth = int(layout.depth_of[token])
        tokens = layout.bases[depth] + soft.codes_NLK[item, depth]
        return np.asarray(soft.weights_NLK[item, depth] @ table_VD[tokens])

    for token in ids.prefix_free[item]:
        if layout.spans[token] == 0:
            out += table_VD[token]
        elif layout.spans[token] == 1:
            out += mixed(int(token))
        else:
            members = layout.merges.members[int(token) - layout.merges.first]
            own = table_VD[token] - table_VD[members].sum(0) / len(members) ** 0.5
            out += own + sum(mixed(int(t)) for t in members) / len(members) ** 0.5
    return out


@given(seed=st.integers(0, 1_000), strongest=st.integers(1, 3), sharpness=st.sampled_from([0.5, 1.0, 3.0]))
def test_corrections_make_mixtures(seed: int, strongest: int, sharpness: float) -> None:
    ids = some_ids(seed)
    ids = ids.with_mixtures(mixtures(ids, strongest, seed, sharpness))
    table_VD = np.random.default_rng(seed).normal(size=(ids.layout.vocabulary, 5))
    batch = ids.read(Ragged.from_rows([[3, 1, 3], [0, 5, 7, 11]]), last=3)
    assert batch.soft is not None
    assert len(batch.soft.tokens) == len(batch.own.values)
    for number, item in enumerate(batch.items.values):
        found = np.zeros(5)
        for row in range(batch.own.offsets[number], batch.own.offsets[number + 1]):
            found += table_VD[batch.own.values[row]]
            entries = slice(*batch.soft.tokens.offsets[row : row + 2])
            found += batch.soft.weights_E[entries] @ table_VD[batch.soft.tokens.values[entries]]
        np.testing.assert_allclose(found, slow_vector(ids, int(item), table_VD), rtol=1e-5, atol=1e-5)


@given(seed=st.integers(0, 1_000))
def test_one_code_is_no_mixture(seed: int) -> None:
    ids = some_ids(seed)
    ids = ids.with_mixtures(mixtures(ids, 1, seed))
    soft = ids.read(Ragged.from_rows([list(range(len(ids)))]), last=50).soft
    assert soft is not None
    assert not len(soft.tokens.values)


def test_a_code_that_a_policy_put_there_stays() -> None:
    ids = make_ids([[0, 1], [2, 2]], (4, 3))
    codes = np.array([[[0, 1], [2, 0]], [[2, 3], [2, 1]]])
    ids = ids.with_mixtures(Mixtures.of(codes, np.full(codes.shape, 0.5)))
    soft = ids.read(Ragged.from_rows([[0]]), last=5).soft
    assert soft is not None
    assert [len(row) for row in soft.tokens] == [3, 0], "the second code is not the strongest"


def test_sharper_weights_and_shares() -> None:
    codes, weights = np.zeros((1, 1, 3), dtype=int), np.array([[[0.4, 0.2, 0.1]]])
    np.testing.assert_allclose(Mixtures.of(codes, weights).weights_NLK[0, 0], [4 / 7, 2 / 7, 1 / 7], rtol=1e-6)
    np.testing.assert_allclose(Mixtures.of(codes, weights, 2).weights_NLK[0, 0], np.array([16, 4, 1]) / 21, rtol=1e-6)
    assert Mixtures.of(codes, weights, 500).weights_NLK[0, 0].tolist() == [1, 0, 0]
    with pytest.raises(ConfigError, match="at least one code"):
        Mixtures.of(codes[:, :, :0], weights[:, :, :0])


def test_saved_loaded_and_extended(tmp_path: Path) -> None:
    ids = some_ids(4)
    soft = mixtures(ids, 2)
    ids = ids.with_mixtures(soft)
    ids.save(tmp_path)
    loaded = SemanticIds.load(tmp_path)
    assert loaded.mixtures is not None
    np.testing.assert_array_equal(loaded.mixtures.codes_NLK, soft.codes_NLK)
    np.testing.assert_array_equal(loaded.mixtures.weights_NLK, soft.weights_NLK)
    new = Mixtures(soft.codes_NLK[:1], soft.weights_NLK[:1])
    grown = loaded.extend(["new"], Ragged.from_rows([[1, 1, 1]]), Suffix(), mixtures=new)
    assert grown.mixtures is not None
    assert len(grown.mixtures) == len(grown) == len(ids) + 1
    with pytest.raises(DataError, match="need mixtures"):
        loaded.extend(["new"], Ragged.from_rows([[1, 1, 1]]), Suffix())
    with pytest.raises(DataError, match="cannot be joined"):
        loaded.extend(["new"], Ragged.from_rows([[1, 1, 1]]), Suffix(), mixtures=mixtures(make_ids([[0]], SIZES), 1))
    with pytest.raises(DataError, match="1 mixtures for 12 items"):
        loaded.with_mixtures(new)


def test_histories_segmented_in_context_are_not_read_softly() -> None:
    class Other(ItemByItem):
        pass

    ids = dataclasses.replace(some_ids(4), reading=Other())
    assert ids.with_mixtures(mixtures(ids, 2)).mixtures is not None
    contextual = dataclasses.replace(ids, reading=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="read item by item"):
        contextual.with_mixtures(mixtures(ids, 2))
