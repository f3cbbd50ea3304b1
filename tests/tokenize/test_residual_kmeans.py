from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from worlds import Watcher, make_table

from capsid.data.item_table import ItemTable
from capsid.data.planted import planted_paths, planted_vectors
from capsid.errors import ConfigError
from capsid.ragged import Ragged
from capsid.tokenize.kmeans import kmeans
from capsid.tokenize.rivals.quantisers import ResidualKMeans

BRANCHING = (8, 4, 4)


def test_a_planted_hierarchy_is_found() -> None:
    """Every depth's codes are the planted ones, up to their names."""
    paths, vectors = planted_paths(branching=BRANCHING), planted_vectors(branching=BRANCHING)
    table = make_table(vectors)
    tokenizer = ResidualKMeans(codebooks=BRANCHING).fit(table)
    codes = tokenizer.encode(table).dense()
    for depth, size in enumerate(BRANCHING):
        pairs = set(zip(codes[:, depth].tolist(), paths[:, depth].tolist()))
        assert len(pairs) == size, f"depth {depth} mixes planted codes"
    np.testing.assert_allclose(tokenizer.decode(Ragged.from_dense(codes)), vectors, atol=0.05)


def test_reconstruction_falls_with_depth() -> None:
    table = make_table(np.random.default_rng(0).normal(size=(300, 12)))
    tokenizer = ResidualKMeans(codebooks=(16,) * 5, restarts=1).fit(table)
    codes = tokenizer.encode(table).dense()
    errors = [
        float(np.linalg.norm(table.vectors() - tokenizer.decode(Ragged.from_dense(codes[:, :depth])), axis=1).mean())
        for depth in range(1, 6)
    ]
    assert all(b < 0.95 * a for a, b in itertools.pairwise(errors))


def test_codes_are_the_nearest_centres_depth_by_depth() -> None:
    """The slow twin: distances to every centre, one item at a time."""
    table = make_table(np.random.default_rng(1).normal(size=(80, 5)))
    tokenizer = ResidualKMeans(codebooks=(7, 6), restarts=1).fit(table)
    for row, codes in zip(table.vectors().astype(np.float64), tokenizer.encode(table)):
        for centres, code in zip(tokenizer.centres(), codes):
            distances = ((row - centres) ** 2).sum(1)
            assert distances[code] <= distances.min() + 1e-5
            row = row - centres[code]


def test_every_depth_is_k_means_of_the_residuals_with_a_seed_of_its_own() -> None:
    table = make_table(np.random.default_rng(6).normal(size=(90, 5)))
    tokenizer = ResidualKMeans(codebooks=(8, 8), restarts=1).fit(table, seed=3)
    residual = table.vectors().astype(np.float32)
    for depth, centres in enumerate(tokenizer.centres()):
        np.testing.assert_array_equal(centres, kmeans(residual, 8, 25, 1, 3 + depth))
        residual = residual - centres[tokenizer.encode(table).dense()[:, depth]]
    assert not np.array_equal(kmeans(table.vectors(), 8, 5, 1, 3), kmeans(table.vectors(), 8, 5, 1, 4))


def test_decoding_ids_of_any_length() -> None:
    table = make_table(np.random.default_rng(2).normal(size=(40, 5)))
    tokenizer = ResidualKMeans(codebooks=(6, 5), restarts=1).fit(table)
    first, second = tokenizer.centres()
    found = tokenizer.decode(Ragged.from_rows([[2], [3, 4]]))
    np.testing.assert_allclose(found, [first[2], first[3] + second[4]], rtol=1e-6)


def test_the_block_is_a_choice() -> None:
    table = make_table(np.random.default_rng(3).normal(size=(30, 5)))
    other = table.with_block("learnt", np.random.default_rng(4).normal(size=(30, 9)).astype(np.float32))
    tokenizer = ResidualKMeans(codebooks=(4,), block="learnt").fit(other)
    assert tokenizer.centres()[0].shape == (4, 9)


@pytest.mark.parametrize("codebooks", [(), (4, 0)])
def test_impossible_codebooks(codebooks: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="codebooks"):
        ResidualKMeans(codebooks=codebooks).fit(make_table(np.ones((3, 2))))


def test_progress_tells_every_depth() -> None:
    lines: list[str] = []

    class Strict:
        def line(self, text: str) -> None:
            lines.append(text)

        def update(self, text: str) -> None:
            raise AssertionError

    ResidualKMeans(codebooks=(3, 3)).fit(make_table(np.random.default_rng(0).normal(size=(9, 2))), progress=Strict())
    assert ["depth 1/2" in lines[0], "depth 2/2" in lines[1]] == [True, True]


def test_more_codes_than_items_are_cut_and_said() -> None:
    watcher = Watcher()
    table = make_table(np.random.default_rng(0).normal(size=(9, 2)))
    assert ResidualKMeans(codebooks=(4096,)).fit(table, progress=watcher).sizes == (9,)
    assert watcher.lines[0] == "residual k-means: 9 items, so 4,096 codes are reduced to that number"


# --- capacity ---


def crowded(items: int = 200, seed: int = 0) -> ItemTable:
    """Nine of ten items in one tight cloud, and a few items that everybody takes."""
    rng = np.random.default_rng(seed)
    vectors = np.where(rng.random(items)[:, None] < 0.9, 0.1, 3.0) * rng.normal(size=(items, 6))
    counts = rng.zipf(2.0, size=items).clip(max=30)
    return dataclasses.replace(make_table(vectors + 1), counts=counts)


def loads(tokenizer: ResidualKMeans, table: ItemTable, depth: int) -> np.ndarray:
    codes_N = tokenizer.encode(table).dense()[:, depth]
    return np.bincount(codes_N, table.counts + 1, minlength=tokenizer.sizes[depth])


@pytest.mark.parametrize("capacity", [1.05, 2.0])
def test_loads_stay_within_capacity(capacity: float) -> None:
    table = crowded()
    plain = ResidualKMeans(codebooks=(8, 8), restarts=1).fit(table)
    bounded = ResidualKMeans(codebooks=(8, 8), restarts=1, capacity=capacity).fit(table)
    for depth in (0, 1):
        most = capacity * (table.counts + 1).sum() / 8
        assert loads(bounded, table, depth).max() <= most + (table.counts + 1).max()
        assert loads(plain, table, depth).max() > loads(bounded, table, depth).max()


def test_no_capacity_and_an_endless_one_agree() -> None:
    table = make_table(planted_vectors(branching=(4, 3)))
    plain = ResidualKMeans(codebooks=(4, 3)).fit(table)
    endless = ResidualKMeans(codebooks=(4, 3), capacity=1e9).fit(table)
    assert endless.encode(table) == plain.encode(table)


def test_the_catalogue_reads_its_codes_and_new_items_get_the_nearest() -> None:
    table = crowded()
    tokenizer = ResidualKMeans(codebooks=(8, 8), restarts=1, capacity=1.05).fit(table)
    nearest = ResidualKMeans(codebooks=(8, 8))
    nearest.centres_ = tokenizer.centres_
    strangers = make_table(table.vectors(), names=[f"new {i}" for i in range(len(table))])
    assert tokenizer.encode(strangers) == nearest.encode(strangers)
    assert tokenizer.encode(strangers) != tokenizer.encode(table)
    loaded = ResidualKMeans(codebooks=(8, 8), capacity=1.05).load_state(tokenizer.state())
    assert loaded.encode(table) == tokenizer.encode(table)
    assert loaded.sizes == tokenizer.sizes


def test_an_item_heavier_than_the_capacity_is_told() -> None:
    table = crowded()
    heavy = dataclasses.replace(table, counts=np.where(np.arange(len(table)) == 7, 10_000, table.counts))
    watcher = Watcher()
    ResidualKMeans(codebooks=(8,), restarts=1, capacity=1.05).fit(heavy, progress=watcher)
    assert any("1 of 8 centres hold more than" in line for line in watcher.lines)


def test_a_capacity_below_the_mean_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity must be at least 1"):
        ResidualKMeans(capacity=0.9)
