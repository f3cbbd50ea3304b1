"""Early exit gives the codes, confidences and prefix counts of the full trace, and computes no depth in vain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from capsule_worlds import World, make_world, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import make_table

from capsid.errors import ArtifactError
from capsid.ids.order import SharedPrefixes
from capsid.ragged import Ragged
from capsid.tokenize.capsules import catalogue
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.train.options import Training

# Products with fewer than nine columns depend on the row's place in some linear algebra libraries: none here.
WIDE: dict[str, Any] = {"width": 16, "dim": 0, "codebooks": (9, 9, 9)}
RULES: dict[str, dict[str, Any]] = {
    "unique prefix": {"confidence": 0.0},
    "at most two share": {"confidence": 0.0, "max_sharing": 2},
    "sure and unique": {"confidence": 0.25},
    "sure": {"confidence": 0.25, "max_sharing": 0},
    "small residual": {"confidence": 1.0, "residual": 0.9},
    "fixed length": {"confidence": 1.0, "max_sharing": 0},
}


def world_of(variant: str, seed: int, items: int, **fields: Any) -> World:
    dim = {"dim": 12} if variant == "unit" else {}
    return make_world(variant, seed, items=items, **{**WIDE, **dim, **fields})


def full(world: World, shared: SharedPrefixes | None = None) -> tuple[Ragged, Ragged, SharedPrefixes]:
    """Every depth of every item, and only then the cut."""
    s = world.settings
    seen = catalogue.trace(world.network, world.unit_ND.numpy())
    shared = shared or SharedPrefixes.count(seen.codes, s.codebooks, s.max_sharing)
    lengths = catalogue.stop(seen.confidence, seen.soft, shared.mask(seen.codes), s.rules).lengths
    return Ragged.from_dense(seen.codes, lengths), Ragged.from_dense(seen.confidence, lengths), shared


def check_same(found: tuple[Ragged, Ragged], codes: Ragged, confidences: Ragged) -> None:
    assert found[0] == codes
    np.testing.assert_array_equal(found[1].values, confidences.values)


def check_catalogue(world: World) -> SharedPrefixes:
    codes, confidences, shared = full(world)
    found, counted = catalogue.encode_catalogue(world.settings, world.network, world.unit_ND.numpy())
    check_same(found, codes, confidences)
    for ours, theirs in zip(counted.keys, shared.keys, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return counted


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=6, deadline=None)
@given(seeds(), st.sampled_from(["default", "hard", "unit", "one round"]), st.integers(1, 150))
def test_a_catalogue_is_what_the_full_trace_says(rules: str, seed: int, variant: str, items: int) -> None:
    check_catalogue(world_of(variant, seed, items, **RULES[rules]))


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=6, deadline=None)
@given(seeds(), st.integers(1, 60), st.integers(1, 60))
def test_later_items_are_what_the_full_trace_says(rules: str, seed: int, fitted: int, later: int) -> None:
    world = world_of("default", seed, fitted + later, **RULES[rules])
    old, new = (dataclasses.replace(world, unit_ND=part) for part in world.unit_ND.split([fitted, later]))
    shared = full(old)[2]
    codes, confidences, _ = full(new, shared)
    asked = (new.settings, new.network, new.unit_ND.numpy(), shared)
    check_same(catalogue.encode(*asked), codes, confidences)
    assert catalogue.encode(*asked, confident=False)[0] == codes


def test_several_windows_and_what_is_too_large_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("default", 3, 1_300, codebooks=(30, 30, 30), confidence=0.0)
    shared = check_catalogue(world)
    lengths = catalogue.encode(world.settings, world.network, world.unit_ND.numpy(), shared)[0].lengths
    assert len(np.unique(lengths)) > 1
    monkeypatch.setattr(catalogue, "WINDOW", 512)
    shared = check_catalogue(world)
    monkeypatch.setattr(catalogue, "HELD_BYTES", 0)
    check_catalogue(world)
    again = catalogue.encode(world.settings, world.network, world.unit_ND.numpy(), shared)[0]
    np.testing.assert_array_equal(again.lengths, lengths)


@pytest.mark.parametrize("rules", ["unique prefix", "sure and unique", "small residual"])
def test_residuals_in_a_file_change_nothing(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("default", 5, 700, **RULES[rules])
    reaching = counting_rows(world, lambda: check_catalogue(world), monkeypatch)
    monkeypatch.setattr(catalogue, "HELD_BYTES", 0)
    check_catalogue(world)
    monkeypatch.setattr(catalogue, "WINDOW", 16)
    assert counting_rows(world, lambda: check_catalogue(world), monkeypatch) == reaching


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("default", 5, 20)
    monkeypatch.setattr(catalogue, "HELD_BYTES", 0)
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  (closed by the code under test)
    monkeypatch.setattr(catalogue.tempfile, "TemporaryFile", lambda **_: full)
    with pytest.raises(ArtifactError, match="could not keep") as told:
        check_catalogue(world)
    assert "TMPDIR" in str(told.value.hint)
    assert not torch.is_inference_mode_enabled()


def test_equal_items_share_all_codes() -> None:
    world = world_of("default", 1, 40, confidence=0.0)
    twice = dataclasses.replace(world, unit_ND=torch.cat([world.unit_ND, world.unit_ND]))
    check_catalogue(twice)


def test_no_items() -> None:
    world = world_of("default", 0, 1)
    found = catalogue.encode(
        world.settings, world.network, world.unit_ND[:0].numpy(), SharedPrefixes.none(world.settings.codebooks)
    )
    assert len(found[0]) == len(found[1]) == 0


def counting_rows(world: World, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows went through each depth."""
    rows = {id(layer): 0 for layer in world.network.depths}
    advance = catalogue._advance

    def counted(layer: Any, left: Any, confident: bool) -> Any:
        rows[id(layer)] += len(left)
        return advance(layer, left, confident)

    monkeypatch.setattr(catalogue, "_advance", counted)
    call()
    monkeypatch.undo()
    return list(rows.values())


def test_no_depth_is_computed_for_an_id_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("default", 2, 60, codebooks=(12, 12, 12), confidence=0.0)
    vectors, s = world.unit_ND.numpy(), world.settings
    encoded, shared = catalogue.encode_catalogue(s, world.network, vectors)
    reaching = [int((encoded[0].lengths > depth).sum()) for depth in range(3)]
    assert reaching[0] > reaching[1] > reaching[2]
    encode = lambda: catalogue.encode(s, world.network, vectors, shared)  # noqa: E731
    assert counting_rows(world, encode, monkeypatch) == reaching
    whole = lambda: catalogue.encode_catalogue(s, world.network, vectors)  # noqa: E731
    # Among themselves, items with equal codes are told apart by no depth, so they go to the last one.
    items = SharedPrefixes.count(catalogue.trace(world.network, vectors).codes, s.codebooks, 1, of="items")
    shared_NL = items.mask(catalogue.trace(world.network, vectors).codes)
    assert counting_rows(world, whole, monkeypatch) == [60, *shared_NL.sum(0)[:2].tolist()]


@pytest.mark.parametrize("rules", RULES)
def test_a_fit_knows_the_codes_of_its_items(rules: str) -> None:
    table = make_table(np.random.default_rng(0).normal(size=(200, 12)))
    training = Training(steps=3, batch_size=64, ema=0.0, validate_every=3)
    tokenizer = CapsuleTokenizer(codebooks=(8, 8, 8), training=training, **RULES[rules])
    codes, confidences = tokenizer.fit_encode(table, seed=1)
    assert (codes, confidences) == tokenizer.encode_confident(table)
    assert codes == tokenizer.encode(table)
    assert codes == ItemTokenizer(tokenizer=tokenizer).fit(table, seed=1).ids.encoded
