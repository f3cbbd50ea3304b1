"""What every tokenizer promises, asked of every tokenizer."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from worlds import make_table

from capsid.base.config import from_dict, to_dict
from capsid.base.storage.arrays import load_arrays, map_arrays, save_arrays
from capsid.base.vocabulary import Vocabulary
from capsid.data.fields import Field
from capsid.data.item_table import ItemTable
from capsid.errors import DataError, NotFittedError
from capsid.ids.collisions import Reassign, cheapest_last_codes
from capsid.ids.layout import ABSENT
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.tokenize.base import Adapting, LastCosts, Revising, Tokenizer, Tracing, tokenizer_key
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.kinds import TOKENIZERS
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_network import Sinkhorn
from capsid.train.options import Training

# Small settings of every kind, and of variants of a kind; a new kind without an entry is tried with its defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "residual-kmeans": {"codebooks": (6, 5, 4), "restarts": 1},
    "capsules": {
        "codebooks": (6, 5, 4),
        "dim": 5,
        "training": Training(steps=12, batch_size=16, ema=0.0, validate_every=6),
    },
    "capsules, the paper's": {
        "codebooks": (6, 5, 4),
        "dim": 5,
        "poses": "full",
        "routing": "unit",
        "max_sharing": 0,
        "confidence": 0.5,
        "training": Training(steps=12, batch_size=16, ema=0.0, validate_every=6),
    },
    "rq-vae": {
        "codebooks": (6, 5, 4),
        "hidden": (16, 12),
        "latent": 9,
        "training": Training(steps=12, batch_size=16, ema=0.0, validate_every=6),
    },
    "rq-vae, popular items first": {
        "codebooks": (6, 5, 4),
        "hidden": (16, 12),
        "latent": 9,
        "head": 0.5,
        "extra": 0.5,
        "crowd": 2,
        "training": Training(steps=12, batch_size=16, ema=0.0, validate_every=6),
    },
    "aligned-tree": {"branching": (6, 5)},
    "mixture": {
        "codebook": 6,
        "dim": 9,
        "behaviour_block": "item",
        "training": Training(steps=12, batch_size=16, ema=0.0, validate_every=6),
    },
    "chained": {
        "fields": (Field(column="shape", least=1),),
        "inner": ResidualKMeans(codebooks=(6, 5, 4), restarts=1),
    },
    "frequency": {"codebook": 4},
}
# Codes from a file have tests of their own: test_given.py.
CASES = [kind for kind in dict.fromkeys([*TOKENIZERS, *SETTINGS]) if kind != "given"]
FROM_VECTORS = [kind for kind in CASES if kind not in ("atomic", "frequency")]


def class_of(case: str) -> type:
    return TOKENIZERS[case.partition(",")[0]]


def table(items: int = 60, seed: int = 0) -> ItemTable:
    """Items with random vectors; the first ones are the most popular."""
    plain = make_table(np.random.default_rng(seed).normal(size=(items, 7)))
    return dataclasses.replace(plain, counts=np.arange(items)[::-1].copy())


def part_of(whole: ItemTable, rows: list[int]) -> ItemTable:
    return make_table(whole.vectors()[rows], names=[whole.items[r] for r in rows])


def make(kind: str) -> Any:
    return class_of(kind)(**SETTINGS.get(kind, {}))


@pytest.fixture(params=CASES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_codes_lie_in_their_codebooks(kind: str) -> None:
    tokenizer = make(kind)
    before = to_dict(tokenizer)
    assert tokenizer.fit(table()) is tokenizer
    codes = tokenizer.encode(table())
    assert isinstance(codes, Ragged)
    assert len(codes) == 60
    assert codes.lengths.min() >= 1
    assert codes.lengths.max() <= len(tokenizer.sizes)
    assert (codes.values >= (ABSENT if kind == "mixture" else 0)).all()
    dense = codes.dense()
    assert (dense.max(0) < np.array(tokenizer.sizes[: dense.shape[1]])).all()
    SemanticIds.assign(table().items, codes, tokenizer.sizes)
    assert to_dict(tokenizer) == before, "fit changed a hyperparameter"


def test_an_items_codes_do_not_depend_on_its_company(kind: str) -> None:
    tokenizer = make(kind).fit(table())
    together = tokenizer.encode(table())
    for row in (0, 17, 59):
        assert tokenizer.encode(part_of(table(), [row])) == together.take(np.array([row]))
    order = np.random.default_rng(1).permutation(60)
    assert tokenizer.encode(part_of(table(), order.tolist())) == together.take(order)
    assert len(tokenizer.encode(part_of(table(), []))) == 0


def test_the_same_seed_gives_the_same_codes(kind: str) -> None:
    first = make(kind).fit(table(), seed=3).encode(table())
    assert make(kind).fit(table(), seed=3).encode(table()) == first


def test_refit_equals_fresh_fit(kind: str) -> None:
    other = make_table(np.random.default_rng(5).normal(size=(31, 4)))
    refitted = make(kind).fit(other).fit(table())
    fresh = make(kind).fit(table())
    assert refitted.encode(table()) == fresh.encode(table())
    assert refitted.sizes == fresh.sizes


def test_saved_state_gives_the_same_codes(kind: str, tmp_path: Path) -> None:
    tokenizer = make(kind).fit(table())
    save_arrays(tmp_path / "state.npz", tokenizer.state())
    loaded = from_dict(None, to_dict(tokenizer), TOKENIZERS).load_state(load_arrays(tmp_path / "state.npz"))
    assert loaded.encode(table()) == tokenizer.encode(table())
    # As workers load it: arrays are mapped and cannot be written to.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = map_arrays(tmp_path / "state.npz", lambda _: True)
        mapped = from_dict(None, to_dict(tokenizer), TOKENIZERS).load_state(state)
        assert mapped.encode(table()) == tokenizer.encode(table())
    assert tokenizer_key(mapped) == tokenizer_key(loaded) == tokenizer_key(tokenizer)
    assert loaded.sizes == tokenizer.sizes
    found, expected = loaded.decode(loaded.encode(table())), tokenizer.decode(tokenizer.encode(table()))
    np.testing.assert_array_equal(np.array(found), np.array(expected))


def test_decode_and_centres(kind: str) -> None:
    tokenizer = make(kind).fit(table())
    decoded, centres = tokenizer.decode(tokenizer.encode(table())), tokenizer.centres()
    assert decoded is None or decoded.shape == (60, 7)
    if centres is not None:
        assert [len(c) for c in centres] == list(tokenizer.sizes)
        assert all(np.isfinite(c).all() for c in centres)


def test_unfitted_says_so(kind: str) -> None:
    for ask in (lambda t: t.sizes, lambda t: t.encode(table()), lambda t: t.state()):
        with pytest.raises(NotFittedError, match="not fitted"):
            ask(make(kind))


@pytest.mark.parametrize("items", [1, 2, 3])
def test_fewer_items_than_codes(kind: str, items: int) -> None:
    tokenizer = make(kind).fit(table(items))
    codes = tokenizer.encode(table(items))
    assert len(codes) == items
    assert len({tuple(c.tolist()) for c in codes}) == items, "there is room for every item"
    assert max(tokenizer.sizes) <= 6


def test_no_items(kind: str) -> None:
    with pytest.raises(DataError, match="no items"):
        make(kind).fit(table(0))


def test_many_equal_items(kind: str) -> None:
    vectors = np.repeat(np.random.default_rng(0).normal(size=(3, 7)), 20, axis=0)
    tokenizer = make(kind).fit(make_table(vectors))
    codes = [tuple(c.tolist()) for c in tokenizer.encode(make_table(vectors))]
    if kind in FROM_VECTORS and kind != "aligned-tree":
        assert all(len(set(codes[i : i + 20])) == 1 for i in (0, 20, 40))
        assert len(set(codes)) == 3
        assert np.isfinite(tokenizer.decode(tokenizer.encode(make_table(vectors)))).all()
    else:
        assert len(set(codes)) == 60


@pytest.mark.parametrize("kind", FROM_VECTORS)
@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "NaN or infinity"), (np.inf, "NaN or infinity"), (0.0, "all zeros")]
)
def test_vectors_that_say_nothing_are_refused_by_name(kind: str, value: float, message: str) -> None:
    vectors = table().vectors().copy()
    vectors[13] = value
    with pytest.raises(DataError, match=rf"{message}: 'i13'"):
        make(kind).fit(make_table(vectors))
    tokenizer = make(kind).fit(table())
    with pytest.raises(DataError, match=message):
        tokenizer.encode(make_table(vectors))


@pytest.mark.parametrize("kind", FROM_VECTORS)
def test_other_wrong_tables(kind: str) -> None:
    tokenizer = make(kind).fit(table())
    with pytest.raises(DataError, match="4 wide, expected 7"):
        tokenizer.encode(make_table(np.ones((5, 4))))
    nothing = ItemTable.new_items(Vocabulary(["a"]), pl.DataFrame({"title": ["x"]}), ("title",))
    with pytest.raises(DataError, match="no vectors 'item'"):
        tokenizer.encode(nothing)


@pytest.mark.parametrize("kind", FROM_VECTORS)
def test_a_failed_fit_leaves_no_half_learnt_state(kind: str) -> None:
    tokenizer = make(kind)
    with pytest.raises(DataError):
        tokenizer.fit(make_table(np.full((5, 3), np.nan)))
    with pytest.raises(NotFittedError):
        tokenizer.encode(table())


# --- optional abilities ---

ABILITIES: dict[type, set[str]] = {
    LastCosts: {"capsules", "residual-kmeans", "rq-vae"},
    Tracing: {"capsules"},
    Adapting: {"capsules"},
    Revising: set(),
}


def able(ability: type) -> list[str]:
    """Kinds with an ability, whether we know of them or not."""
    return [case for case in CASES if issubclass(class_of(case), ability)]


def test_abilities_are_declared(kind: str) -> None:
    for ability, kinds in ABILITIES.items():
        assert isinstance(make(kind), ability) == (kind.partition(",")[0] in kinds), ability.__name__


@pytest.mark.parametrize("kind", able(LastCosts))
def test_the_own_last_code_costs_least_and_company_changes_nothing(kind: str) -> None:
    whole = table()
    tokenizer = make(kind).fit(whole)
    codes = tokenizer.encode(whole)
    costs = tokenizer.last_costs(whole, codes)
    rows = np.arange(60)
    all_NK = costs(rows)
    assert np.isfinite(all_NK).all()
    assert len(costs(rows[:0])) == 0
    for row, own in enumerate(codes):
        size = tokenizer.sizes[len(own) - 1]
        assert all_NK[row, own[-1]] == all_NK[row, :size].min()
        assert (all_NK[row, :size] >= -1e-5).all()
    for some in (rows[[17]], rows[::-7]):
        np.testing.assert_allclose(costs(some), all_NK[some], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            tokenizer.last_costs(part_of(whole, some.tolist()), codes.take(some))(np.arange(len(some))),
            all_NK[some],
            rtol=1e-4,
            atol=1e-5,
        )


JOINTLY: dict[str, Tokenizer] = {
    "residual k-means": ResidualKMeans(codebooks=(6, 5, 4), capacity=1.0),
    "RQ-VAE": RQVAE(
        codebooks=(6, 5, 4),
        hidden=(8,),
        latent=4,
        assign=Sinkhorn(depths=3, catalogue=True),
        training=Training(steps=10, batch_size=32, ema=0.0),
    ),
}


@pytest.mark.parametrize("name", JOINTLY)
def test_costs_belong_to_the_codes_of_a_catalogue_that_is_assigned_jointly(name: str) -> None:
    whole = table()
    fitted = ItemTokenizer(tokenizer=JOINTLY[name], collisions=Reassign()).fit(whole)
    own, codes_NL = fitted.tokenizer_, fitted.ids.encoded.dense()
    vectors_ND = own.latents(whole.vectors()) if isinstance(own, RQVAE) else whole.vectors()
    first, second, last_KD = own.centres()  # type: ignore[attr-defined]
    left_ND = vectors_ND - first[codes_NL[:, 0]] - second[codes_NL[:, 1]]
    wanted_NK = ((left_ND[:, None] - last_KD) ** 2).sum(2)
    costs = own.last_costs(whole, fitted.ids.encoded)  # type: ignore[attr-defined]
    rows = np.arange(len(left_ND))[::-1]
    np.testing.assert_allclose(costs(rows)[:, : len(last_KD)], wanted_NK[rows], rtol=1e-3, atol=1e-4)
    nearest_N = ((vectors_ND[:, None] - first) ** 2).sum(2).argmin(1)
    assert (nearest_N != codes_NL[:, 0]).any(), "all items have the nearest code, so nothing is tested"
    assert fitted.ids.codes == cheapest_last_codes(fitted.ids.encoded, own.sizes, costs), "the fit has these costs"


@pytest.mark.parametrize("kind", able(LastCosts))
def test_reassigning_separates_twins_as_far_as_there_are_codes(kind: str) -> None:
    vectors = np.repeat(np.random.default_rng(0).normal(size=(20, 7)), 2, axis=0)
    whole = make_table(vectors)
    tokenizer = make(kind).fit(whole)
    before = tokenizer.encode(whole)
    costs = tokenizer.last_costs(whole, before)
    ids = SemanticIds.assign(whole.items, before, tokenizer.sizes, Reassign(), costs)
    assert ids.encoded == before
    about = ids.statistics()
    assert about.collision_rate >= 0.5
    assert about.collision_rate_final < about.collision_rate
    prefixes = [tuple(c[:-1].tolist()) for c in ids.codes]
    for own, prefix in zip(ids.codes, prefixes):
        below = sum(tuple(c[: len(own) - 1].tolist()) == prefix for c in ids.codes)
        shared = sum(np.array_equal(c, own) for c in ids.codes)
        assert shared == 1 or below > tokenizer.sizes[len(own) - 1]


@pytest.mark.parametrize("kind", able(Tracing))
def test_a_trace_and_its_stops_are_the_codes(kind: str) -> None:
    tokenizer = make(kind).fit(table())
    seen = tokenizer.trace(table(), strongest=2)
    assert Ragged.from_dense(seen.codes, tokenizer.stop(seen).lengths) == tokenizer.encode(table())
    np.testing.assert_array_equal(tokenizer.trace_vectors(table().vectors()).codes, seen.codes)
    np.testing.assert_array_equal(seen.strongest[:, :, 0], seen.codes)


@pytest.mark.parametrize("kind", able(Adapting))
def test_soft_weights_are_shares_and_their_strongest_is_the_code(kind: str) -> None:
    tokenizer = make(kind).fit(table())
    weights, loss = tokenizer.soft(torch.from_numpy(table().vectors()))
    assert [w.shape[1] for _, w in weights] == list(tokenizer.sizes)
    assert loss.isfinite()
    codes = tokenizer.encode(table())
    for depth, (rows, weights_RK) in enumerate(weights):
        np.testing.assert_allclose(weights_RK.sum(1).numpy(), 1, rtol=1e-5)
        for row, weights_K in zip(rows.tolist(), weights_RK):
            assert len(codes[row]) <= depth or int(weights_K.argmax()) == codes[row][depth]


def test_every_kind_is_named_as_it_is_listed() -> None:
    assert all(cls.kind == name for name, cls in TOKENIZERS.items())
    assert {class_of(case).kind for case in CASES} | {"given"} == set(TOKENIZERS)
    assert ResidualKMeans.kind in FROM_VECTORS
