from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.data.planted import planted_codes, planted_dataset, planted_paths, planted_vectors
from capsid.errors import ConfigError


def test_paths_recovered_from_vectors_depth_by_depth() -> None:
    paths, vectors = planted_paths(), planted_vectors()
    assert paths.shape == (512, 3)
    residual = vectors.astype(np.float64)
    norms = [np.linalg.norm(residual, axis=1).mean()]
    for depth in range(3):
        centres = np.stack([residual[paths[:, depth] == k].mean(axis=0) for k in range(paths[:, depth].max() + 1)])
        nearest = ((residual[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
        assert (nearest == paths[:, depth]).all()
        residual = residual - centres[paths[:, depth]]
        norms.append(np.linalg.norm(residual, axis=1).mean())
    assert np.linalg.norm(vectors, axis=1) == pytest.approx((1 + 1 / 4 + 1 / 16) ** 0.5, rel=0.05)
    assert norms[0] > norms[1] > norms[2] > norms[3]
    assert norms[3] < 0.1


def test_dataset_is_predictable_and_seeded() -> None:
    data = planted_dataset(noise=0.1, seed=3)
    pairs = np.concatenate([np.stack([r[:-1], r[1:]]) for r in data.sequences], axis=1)
    followed = (pairs[1] - pairs[0] == 1) | (pairs[1] % 16 == 0)
    assert 0.85 < followed.mean() < 0.95
    same_parent = (planted_paths()[pairs[0], :2] == planted_paths()[pairs[1], :2]).all(axis=1)
    assert same_parent.mean() > 0.85
    assert all(len(set(row.tolist())) == len(row) for row in data.sequences)
    assert planted_dataset(noise=0.1, seed=3).fingerprint == data.fingerprint
    assert planted_dataset(noise=0.1, seed=4).fingerprint != data.fingerprint


def test_attributes_tell_the_path() -> None:
    data = planted_dataset(branching=(3, 2), items_per_leaf=2, users=5)
    paths = planted_paths(branching=(3, 2), items_per_leaf=2)
    told = [[int(c.split()[1]) for c in row] for row in data.attributes["categories"].to_list()]
    assert told == paths.tolist()
    assert data.text_fields == ("title", "categories")


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), data=st.data())
def test_codes_are_distinct_and_in_range(sizes: list[int], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, int(np.prod(sizes))))
    codes = planted_codes(n, sizes, seed=data.draw(st.integers(0, 9)))
    assert codes.dtype == np.uint16
    assert codes.shape == (n, len(sizes))
    assert len(np.unique(codes, axis=0)) == n
    assert (codes < np.array(sizes)).all()


def test_codes_are_quick_and_wide_spaces_work() -> None:
    start = time.perf_counter()
    codes = planted_codes(1_000_000, (256, 256, 256, 256), seed=1)
    assert time.perf_counter() - start < 3
    assert len(np.unique(codes[:, 0])) == 256
    wide = planted_codes(1000, (65536,) * 8)
    assert wide.max() > 60000
    assert len(np.unique(wide, axis=0)) == 1000


def test_impossible_requests() -> None:
    with pytest.raises(ConfigError):
        planted_codes(10, (3, 3))
    with pytest.raises(ConfigError):
        planted_paths(branching=())
    with pytest.raises(ConfigError):
        planted_dataset(noise=2)
