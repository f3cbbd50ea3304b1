from __future__ import annotations

import itertools

import numpy as np
import pytest
from worlds import Watcher, make_table

from capsid.data.planted import planted_paths, planted_vectors
from capsid.errors import ConfigError
from capsid.ragged import Ragged
from capsid.tokenize.residual_kmeans import ResidualKMeans

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
    tokenizer = ResidualKMeans(codebooks=(16,) * 5, iterations=10, restarts=1).fit(table)
    codes = tokenizer.encode(table).dense()
    errors = [
        float(np.linalg.norm(table.vectors() - tokenizer.decode(Ragged.from_dense(codes[:, :depth])), axis=1).mean())
        for depth in range(1, 6)
    ]
    assert all(b < 0.95 * a for a, b in itertools.pairwise(errors))


def test_codes_are_the_nearest_centres_depth_by_depth() -> None:
    """The slow twin: distances to every centre, one item at a time."""
    table = make_table(np.random.default_rng(1).normal(size=(80, 5)))
    tokenizer = ResidualKMeans(codebooks=(7, 6), iterations=5, restarts=1).fit(table)
    for row, codes in zip(table.vectors().astype(np.float64), tokenizer.encode(table)):
        for centres, code in zip(tokenizer.centres(), codes):
            distances = ((row - centres) ** 2).sum(1)
            assert distances[code] <= distances.min() + 1e-5
            row = row - centres[code]


def test_decoding_ids_of_any_length() -> None:
    table = make_table(np.random.default_rng(2).normal(size=(40, 5)))
    tokenizer = ResidualKMeans(codebooks=(6, 5), iterations=5, restarts=1).fit(table)
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
    assert watcher.lines[0] == "residual k-means: 9 items, so 4,096 codes are cut to as many"
