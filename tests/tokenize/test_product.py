"""Product quantisation: whitened components, a rotation that is learnt, and codes that are features of their own."""

from __future__ import annotations

import re

import numpy as np
import pytest
from worlds import Watcher, make_table

from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.ragged import Ragged
from capsid.tokenize.rivals.quantisers import ProductQuantizer

PARTS, VALUES, WIDTH = 3, 4, 4


def world(items: int = 600, noise: float = 0.05, seed: int = 0) -> tuple[ItemTable, np.ndarray]:
    """Three features of four values, each in a subspace of its own, all of it turned at random and shifted."""
    rng = np.random.default_rng(seed)
    feature_NS = rng.integers(0, VALUES, size=(items, PARTS))
    centres_SKW = rng.normal(size=(PARTS, VALUES, WIDTH))
    vectors = np.concatenate([centres_SKW[s][feature_NS[:, s]] for s in range(PARTS)], axis=1)
    vectors += noise * rng.normal(size=vectors.shape)
    turned = vectors @ np.linalg.qr(rng.normal(size=(PARTS * WIDTH, PARTS * WIDTH)))[0]
    return make_table(turned + 5), feature_NS


def left_over(table: ItemTable, **settings: int) -> float:
    """Share of the whitened vectors that the centres do not explain, as the fit reports it."""
    watcher = Watcher()
    ProductQuantizer(codebooks=(VALUES,) * PARTS, **settings).fit(table, progress=watcher)
    return float(re.findall(r"([\d.]+) of the norm left", watcher.lines[-1])[0])


def test_components_are_white_and_the_rotation_keeps_them_so() -> None:
    table, _ = world(noise=0.5)
    tokenizer = ProductQuantizer(codebooks=(VALUES,) * PARTS, dims=12).fit(table)
    z_ND = (table.vectors() - tokenizer.mean_) @ tokenizer.axes_
    np.testing.assert_allclose(np.cov(z_ND.T), np.eye(12), atol=0.02)
    np.testing.assert_allclose(z_ND.mean(0), 0, atol=1e-3)
    narrow = ProductQuantizer(codebooks=(VALUES,) * PARTS, dims=8).fit(table)
    assert narrow.axes_.shape == (12, 6), "as many components as divide evenly"


def test_codes_are_the_nearest_centres_of_every_part() -> None:
    table, _ = world()
    tokenizer = ProductQuantizer(codebooks=(4, 5, 6), dims=12).fit(table)
    assert tokenizer.sizes == (4, 5, 6)
    z_ND = (table.vectors() - tokenizer.mean_) @ tokenizer.axes_
    codes_NS = tokenizer.encode(table).dense()
    for part, (z_NW, own_KW) in enumerate(zip(np.split(z_ND, 3, axis=1), tokenizer.centres_)):
        wanted = ((z_NW[:, None] - own_KW) ** 2).sum(2).argmin(1)
        np.testing.assert_array_equal(codes_NS[:, part], wanted)


def test_learning_the_rotation_explains_more_than_a_random_one() -> None:
    found = [left_over(world(seed=seed)[0], rounds=rounds) for seed in (0, 1, 2) for rounds in (0, 20)]
    random, learnt = found[::2], found[1::2]
    assert all(ours < theirs for ours, theirs in zip(learnt, random))
    assert np.mean(learnt) < 0.8 * np.mean(random)


def test_centres_follow_the_rotation() -> None:
    """They are the means of their vectors, but for the last turn of the rotation, which is small by then."""
    table, _ = world()
    tokenizer = ProductQuantizer(codebooks=(VALUES,) * PARTS, dims=12, rounds=40).fit(table)
    z_ND, codes_NS = (table.vectors() - tokenizer.mean_) @ tokenizer.axes_, tokenizer.encode(table).dense()
    for part, (z_NW, own_KW) in enumerate(zip(np.split(z_ND, PARTS, axis=1), tokenizer.centres_)):
        means_KW = np.stack([z_NW[codes_NS[:, part] == code].mean(0) for code in range(VALUES)])
        assert np.abs(own_KW - means_KW).max() < 0.05


def test_as_good_as_the_rotation_of_faiss() -> None:
    """Another implementation of the same algorithm on the same whitened vectors."""
    faiss = pytest.importorskip("faiss")
    table, _ = world(noise=0.3)
    vectors = table.vectors() - table.vectors().mean(0)
    axes_IC, deviations_C, _ = np.linalg.svd(vectors, full_matrices=False)
    white_NC = np.ascontiguousarray(axes_IC * np.sqrt(len(vectors)), dtype=np.float32)
    assert len(deviations_C) == PARTS * WIDTH
    opq = faiss.OPQMatrix(PARTS * WIDTH, PARTS)
    opq.pq = faiss.ProductQuantizer(PARTS * WIDTH, PARTS, 2)
    opq.verbose = False
    opq.train(white_NC)
    turned = opq.apply(white_NC)
    quantizer = faiss.ProductQuantizer(PARTS * WIDTH, PARTS, 2)
    quantizer.train(turned)
    wrong = turned - quantizer.decode(quantizer.compute_codes(turned))
    theirs = float((wrong**2).sum() / (white_NC**2).sum())
    assert left_over(table, dims=12) < 1.1 * theirs


def test_decoding_undoes_whitening_and_rotation() -> None:
    table, _ = world()
    tokenizer = ProductQuantizer(codebooks=(16, 16, 16), dims=12).fit(table)
    codes = tokenizer.encode(table)
    wrong, spread = table.vectors() - tokenizer.decode(codes), table.vectors() - table.vectors().mean(0)
    assert (wrong**2).sum() < 0.5 * (spread**2).sum()
    np.testing.assert_allclose(tokenizer.decode(Ragged.from_rows([[-1, -1, -1]]))[0], tokenizer.mean_, atol=1e-4)
    whole = sum(centre[code] for centre, code in zip(tokenizer.centres(), codes.dense()[7]))
    again = (tokenizer.decode(codes)[7] - tokenizer.mean_) @ tokenizer.axes_
    np.testing.assert_allclose(whole, again, atol=1e-3)


def test_fewer_dimensions_than_parts() -> None:
    table = make_table(np.random.default_rng(0).normal(size=(40, 2)))
    codes = ProductQuantizer(codebooks=(4, 4, 4)).fit(table).encode(table)
    assert codes.dense().shape == (40, 3)
    assert len(np.unique(codes.dense()[:, :2], axis=0)) > 8


@pytest.mark.parametrize(("field", "value"), [("codebooks", ()), ("codebooks", (4, 0)), ("dims", 0), ("rounds", -1)])
def test_impossible_settings(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"product\.{field}"):
        ProductQuantizer(**{field: value})  # type: ignore[arg-type]
