"""Realistic mistakes that other tests would let pass: every test here fails when one of them is planted.

`faults/mutants.py` plants them, one at a time, and counts which ones the tests notice.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_recipes import small, tiny_world, world
from worlds import make_table

from capsid.bench import check, store
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared
from capsid.data.split import Cases, leave_one_out
from capsid.encode.factorised import AttributeEncoder, CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.encode.sequence import SequenceEncoder
from capsid.encode.text import HashingEncoder, TextEncoder
from capsid.errors import CapsidError
from capsid.evaluate.significance import paired_bootstrap
from capsid.ids.order import SharedPrefixes
from capsid.ragged import Ragged
from capsid.recommender import Recommender
from capsid.settings import rules_of
from capsid.tokenize.capsules import stage_one
from capsid.tokenize.capsules.algorithm import survival
from capsid.tokenize.capsules.capsules import CapsuleNetwork
from capsid.tokenize.capsules.catalogue import trace
from capsid.tokenize.capsules.objective import balance
from capsid.tokenize.capsules.pairs import Candidates
from capsid.tokenize.capsules.semantic_bpe import Pass, SemanticBPE
from capsid.tokenize.capsules.stage_one import NAME
from capsid.tokenize.capsules.start import start_from_data
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.kmeans import distances
from capsid.tokenize.training import draw_sample

# Data and split


def test_validation_never_reads_the_test_cases() -> None:
    """Other test targets and histories must give the same curve and the same weights, to the bit."""
    data = world()
    split = leave_one_out(data)
    rng = np.random.default_rng(0)
    targets = rng.permutation(split.test.targets)
    histories = Ragged(rng.permutation(split.test.histories.values), split.test.histories.offsets)
    other = dataclasses.replace(split, test=Cases(split.test.users, histories, targets))
    fits = [Recommender(small("rq-kmeans", 30)).fit(data, split=s).fitted for s in (split, other)]
    first, second = ([(p["step"], p["metric"], p["loss"]) for e in f.log for p in e["curve"]] for f in fits)
    assert first == second
    states = [f.generator.state() for f in fits]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_training_counts_leave_out_what_is_held_out() -> None:
    data = world()
    train = leave_one_out(data).train
    wanted = np.bincount(train.values, minlength=len(data.items))
    assert (ItemTable.from_training(data, train).counts == wanted).all()
    assert (Recommender.from_recipe("popularity").fit(data).catalogue_.counts == wanted).all()
    assert wanted.sum() < len(data.sequences.values)


def test_the_same_data_give_the_same_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in write_prepared(tiny_world(), tmp_path / "data").glob("*.gz"):
        assert path.read_bytes()[4:8] == bytes(4), "a gzip header holds the time"


# Encoders


def table_with_text() -> ItemTable:
    data = planted_dataset(branching=(3, 2), items_per_leaf=2, users=30, length=6)
    return ItemTable.from_training(data, leave_one_out(data).train)


def others(part: Any, name: str) -> list[Any]:
    """Other values of a setting that the part accepts."""
    value = getattr(part, name)
    rule = next(r for r in rules_of(type(part)) if r.name == name)
    tries: list[Any] = [not value] if isinstance(value, bool) else []
    if isinstance(value, int | float) and not isinstance(value, bool):
        tries += [value + 1, value * 2, value / 2 if isinstance(value, float) else value - 1]
    tries += [c for c in rule.bounds.choices if c != value]
    tries += [(*value, *value[-1:])] if isinstance(value, tuple) and value else []
    tries += [tuple(v + 1 for v in value)] if isinstance(value, tuple) and value and isinstance(value[0], float) else []
    found = []
    for candidate in (t for t in tries if t != value):
        try:
            dataclasses.replace(part, **{name: candidate})
        except (CapsidError, TypeError):
            continue
        found.append(candidate)
    return found


# What the vectors do not depend on, by kind: size of a batch, where a file lies.
FREE = {"text": {"batch_size"}, "precomputed": {"path"}}
ENCODERS = [
    HashingEncoder(dim=8),
    CollaborativeEncoder(dim=4),
    AttributeEncoder(dim=4),
    TextEncoder(),
    SequenceEncoder(),
    JoinedEncoder(parts=(HashingEncoder(dim=8), CollaborativeEncoder(dim=4)), weights=(0.5, 0.5)),
]


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda e: e.kind)
def test_every_field_is_in_the_cache_key(encoder: Any) -> None:
    table = table_with_text()
    key = encoder.cache_key(table)
    tried = set()
    for field in dataclasses.fields(encoder):
        for value in others(encoder, field.name):
            changed = dataclasses.replace(encoder, **{field.name: value}).cache_key(table)
            if field.name in FREE.get(encoder.kind, ()):
                assert changed == key, field.name
            else:
                assert changed != key, f"{field.name} is not in the key"
                tried.add(field.name)
    assert tried


def test_what_to_do_with_missing_vectors_is_in_the_cache_key(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((12, 2), dtype=np.float32))
    table = table_with_text()
    choices = next(r for r in rules_of(PrecomputedEncoder) if r.name == "missing").bounds.choices
    keys = {PrecomputedEncoder(path=str(tmp_path / "v.npy"), missing=m).cache_key(table) for m in choices}
    assert len(keys) == len(choices) > 1


def test_means_of_a_block_are_of_rows_with_evidence() -> None:
    rng = np.random.default_rng(0)
    block = rng.normal(size=(20, 6)).astype(np.float32) + 3
    block[::2] = 0
    joined = JoinedEncoder(parts=(HashingEncoder(dim=6), HashingEncoder(dim=6)), weights=(0.5, 0.5), block_dim=4)
    joined.join_blocks(joined.parts, [block, rng.normal(size=(20, 6)).astype(np.float32)])
    np.testing.assert_allclose(joined.blocks_[0]["mean"], block[1::2].astype(np.float64).mean(0), rtol=1e-6)


# Tokenizers


def test_balance_is_least_where_all_capsules_are_used_alike() -> None:
    uniform, alone = torch.full((5, 8), 1 / 8), torch.eye(8)[[3] * 5]
    assert float(balance(uniform)) == pytest.approx(0.0, abs=1e-6)
    assert float(balance(alone)) == pytest.approx(math.log(8), abs=1e-6)


@pytest.mark.parametrize(("confidence", "left"), [(0.0, 0.0), (1.0, 5.0), (1.0, 0.0), (0.0, 5.0)])
def test_an_id_survives_only_where_neither_rule_ends_it(confidence: float, left: float) -> None:
    goes_on = survival(torch.tensor([confidence]), torch.tensor([left]), 0.5, 0.5)
    assert float(goes_on) == pytest.approx(float(confidence == 0 and left > 0), abs=1e-3)


def capsules(**more: Any) -> CapsuleTokenizer:
    fields: dict[str, Any] = {"codebooks": (4, 4, 4), "max_sharing": 1, **more}
    tokenizer = CapsuleTokenizer(**fields)
    short = dataclasses.replace(tokenizer.training, steps=4, validate_every=4, batch_size=32)
    return dataclasses.replace(tokenizer, training=short)


def test_prefixes_are_counted_among_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    monkeypatch.setattr(stage_one, "SAMPLE_ROWS", 24)
    fitted = capsules(codebooks=(8, 8, 8)).fit(make_table(vectors))
    every, few = (
        [keys.tolist() for keys in SharedPrefixes.count(trace(fitted.network_, v).codes, fitted.codebooks, 1).keys]
        for v in (vectors, draw_sample(vectors, 0, NAME, 24))
    )
    assert [keys.tolist() for keys in fitted.shared_prefixes_.keys] == every
    assert every != few, "the world is too small to tell them apart"


def test_capsules_start_with_biases_around_zero() -> None:
    x_NI = torch.from_numpy(np.random.default_rng(0).normal(loc=2.0, size=(200, 8)).astype(np.float32))
    settings = capsules()
    network = CapsuleNetwork(settings, 8, torch.Generator().manual_seed(0))
    start_from_data(network, x_NI, settings, 0)
    for layer in network.depths:
        bias_KC = layer.poses.bias.detach()
        assert float(bias_KC.mean(0).abs().max()) < 1e-4 * float(bias_KC.abs().max()) + 1e-6


def test_distances_do_not_depend_on_who_else_is_asked() -> None:
    """BLAS rounds products of other shapes otherwise: only blocks of one shape give one item the same bits anywhere."""
    rng = np.random.default_rng(0)
    vectors, centres = rng.normal(size=(1500, 48)).astype(np.float32), rng.normal(size=(97, 48)).astype(np.float32)
    together = np.concatenate([d.copy() for d in distances(vectors, centres)])
    for row in (0, 1, 700, 767, 768, 1023, 1024, 1499):
        (alone,) = distances(vectors[row : row + 1], centres)
        assert (alone[0] == together[row]).all(), row


def pairs(**columns: Any) -> Candidates:
    n = len(columns["left"])
    plain = {
        "count": np.ones(n, dtype=np.int64),
        "target": np.ones(n, dtype=bool),
        "number": np.ones(n, dtype=np.int64),
    }
    arrays = {k: np.array(v) for k, v in columns.items()}
    return Candidates(**{**plain, **arrays})


def test_logits_of_the_gate_follow_the_order_of_the_merges() -> None:
    bpe = SemanticBPE()
    bpe.first_, bpe.learnt_bias_ = 100, 0.0
    bpe.candidates_ = pairs(
        left=[2, 3, 4],
        right=[10, 11, 12],
        frequency=[0.1, 0.2, 0.3],
        cosine=[0.5, 0.5, 0.5],
        logit=[1.0, 3.0, 2.0],
        merge=[2, 0, 1],
    )
    table = bpe.table_
    assert table.left == (3, 4, 2)
    assert table.strength == pytest.approx(tuple(1 / (1 + math.exp(-(x + bpe.bias))) for x in (3.0, 2.0, 1.0)))


def test_the_probability_decides_before_the_score() -> None:
    found = pairs(
        left=[2, 3, 4],
        right=[10, 11, 12],
        frequency=[0.9, 0.1, 0.5],
        cosine=[0.9, 0.1, 0.5],
        logit=[5.0, 9.0, 7.0],
        merge=[-1, -1, -1],
    )
    here: Any = SimpleNamespace(
        settings=SemanticBPE(bias=0.0), room=2, ids=SimpleNamespace(layout=SimpleNamespace(merges=()))
    )
    here.settings.learnt_bias_ = 0.0
    merge = Pass._chosen(here, found, found.logit, np.ones(3, dtype=bool))
    assert merge.tolist() == [-1, 0, 1]


# Results


def test_a_p_value_has_two_sides() -> None:
    sure = paired_bootstrap([np.ones(50)], [np.zeros(50)], draws=999)
    assert sure.p == pytest.approx(2 / 1000)
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.12, 1, 100), np.zeros(100)
    there, back = paired_bootstrap([first], [second]), paired_bootstrap([second], [first])
    assert there.p == pytest.approx(back.p, abs=0.02)
    # The normal approximation of the same test, of both sides.
    z = abs(first.mean()) / (first.std() / math.sqrt(100))
    assert there.p == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.05)


@pytest.mark.parametrize(("optimistic", "fine"), [(0.3, True), (0.2, True), (0.1, False)])
def test_an_optimistic_reading_is_never_below_the_headline(optimistic: float, fine: bool) -> None:
    cell: Any = SimpleNamespace(
        evaluations={"test": {"variants": {"recall@10:optimistic": optimistic}}}, metric=lambda name, evaluation: 0.2
    )
    assert check._readings(cell, "test") is fine


def test_a_line_of_the_store_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = store.Place(tmp_path, "toy")
    place.values("key").parent.mkdir(parents=True)
    place.values("key").write_bytes(b"")
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(store.os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), real(handle)))
    result: Any = SimpleNamespace(key="key", name="a", to_dict=lambda: {"a": 1})
    store.append(place, result)
    assert synced == [place.lines.stat().st_size], "the line was not synced after it was written"


def test_frames_of_nothing_but_ids() -> None:
    """An items table without attributes once lost its rows."""
    frame = pl.DataFrame({"user": ["u"] * 3, "item": list("abc"), "timestamp": [1, 2, 3]})
    assert len(Dataset.from_frames(frame, pl.DataFrame({"item_id": list("abcd")})).items) == 4
