"""The merge gate beside the capsules: it sees the pairs of the epoch, and kills change nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from merge_worlds import ALIKE, POPULAR, QUICK, SIZES, planted
from worlds import Killed, Killer

from capsid.base.run_options import CheckpointFile
from capsid.errors import ConfigError
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.tokenize.capsules.beside import GateBeside
from capsid.tokenize.capsules.objective import objective
from capsid.tokenize.capsules.pairs import find_candidates
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.capsules.settings import StageOneTraining
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.lookup import Atomic


def merges(**fields: Any) -> SemanticBPE:
    return SemanticBPE(**{"training": QUICK, "beside": True, **fields})


def gate_of(ids: SemanticIds, table: Any, part: SemanticBPE) -> GateBeside:
    gate = GateBeside(part, table, SIZES, seed=3)
    see(gate, ids.codes)
    return gate


def see(gate: GateBeside, codes: Ragged) -> None:
    """An epoch that sees these codes, in two batches, and the beginning of the next one."""
    dense_NL = np.full((len(codes), len(SIZES)), -1)
    own_NL = codes.dense()
    dense_NL[:, : own_NL.shape[1]] = own_NL
    for rows in np.array_split(np.arange(len(codes)), 2):
        gate.see(rows, torch.as_tensor(dense_NL[rows]))
    gate.recount()


def test_pairs_are_recounted_from_the_codes_of_the_epoch() -> None:
    ids, table = planted()
    gate = gate_of(ids, table, merges())
    wanted = find_candidates(ids.tokens, ids.layout, table.sequences, number=1, least=20, count="interactions")
    pairs = gate._count()[1]
    assert (pairs.left.tolist(), pairs.right.tolist(), pairs.count.tolist()) == (
        wanted.left.tolist(),
        wanted.right.tolist(),
        wanted.count.tolist(),
    )
    gate.see(np.arange(len(ids)), torch.tensor([[0, -1, -1]] * len(ids)))
    assert len(gate._count()[1]) > 0, "pairs stay until the epoch ends"
    gate.recount()
    assert len(gate._count()[1]) == 0
    assert float(gate.loss(0.5)) == 0.0, "no pair, nothing to learn"


def test_a_gate_beside_learns_what_a_gate_alone_learns() -> None:
    ids, table = planted()
    part = merges()
    gate = gate_of(ids, table, part)
    optimizer = torch.optim.AdamW(gate.parameters(), lr=1e-2)
    torch.manual_seed(0)
    for step in range(80):
        optimizer.zero_grad()
        gate.loss(step / 79).backward()
        optimizer.step()
    found = part.fit(ids, table, gate=gate)
    pairs = list(zip(found.table_.left, found.table_.right))
    assert set(ALIKE) <= set(pairs)
    assert POPULAR not in pairs
    alone = SemanticBPE(training=QUICK).fit(ids, table)
    assert set(pairs) == set(zip(alone.table_.left, alone.table_.right))


def test_the_weight_is_lambda_b() -> None:
    ids, table = planted()
    losses = []
    for weight in (0.2, 0.4):
        torch.manual_seed(0)
        losses.append(float(gate_of(ids, table, merges(weight=weight)).loss(1.0).detach()))
    assert losses[1] == pytest.approx(2 * losses[0])


def tokenizer(steps: int = 12) -> ItemTokenizer:
    training = StageOneTraining(steps=steps, batch_size=32, validate_every=4, ema=0.0, learning_rate=1e-2)
    capsules = CapsuleTokenizer(codebooks=SIZES, confidence=1.0, max_sharing=0, training=training)
    return ItemTokenizer(tokenizer=capsules, merges=merges(min_count=5, theta=(0.5, -1.0), size=8))


def test_killed_beside_the_capsules_and_resumed_with_the_same_bits(tmp_path: Path) -> None:
    _, table = planted()
    whole = tokenizer().fit(table, seed=1, progress=silent)
    checkpoint = CheckpointFile(tmp_path / "checkpoint", 0.0)
    for word in ("step 3/12", "step 8/12"):
        with pytest.raises(Killed):
            tokenizer().fit(table, seed=1, checkpoint=checkpoint, progress=Killer(word))
    resumed = tokenizer().fit(table, seed=1, checkpoint=checkpoint, progress=silent)
    assert resumed.ids == whole.ids
    for name, array in whole.merges_.state().items():
        np.testing.assert_array_equal(resumed.merges_.state()[name], array, err_msg=name)
    assert len(whole.merges_.candidates_)


def test_the_gate_changes_no_capsule() -> None:
    """No gradient passes, and the capsules draw no random numbers while they train."""
    _, table = planted()
    plain = dataclasses.replace(tokenizer(), merges=None).fit(table, seed=1, progress=silent)
    both = tokenizer().fit(table, seed=1, progress=silent)
    assert both.ids.codes == plain.ids.codes
    for name, array in plain.tokenizer_.state().items():
        np.testing.assert_array_equal(both.tokenizer_.state()[name], array, err_msg=name)


def test_the_codes_of_a_batch_end_where_its_ids_end() -> None:
    _, table = planted()
    capsules = dataclasses.replace(tokenizer().tokenizer, confidence=0.5)
    fitted = capsules.fit(table, seed=1)
    x_BI = torch.as_tensor(table.vectors().astype(np.float32))
    found = objective(capsules, fitted.network_, x_BI, 1.0).codes(len(x_BI), len(SIZES)).numpy()
    codes = fitted.encode(table)
    assert set(codes.lengths.tolist()) != {len(SIZES)}, "no id ends early, so this says nothing"
    for own_L, wanted in zip(found, codes):
        assert own_L[own_L >= 0].tolist() == list(wanted)


@pytest.mark.parametrize("capsules", [Atomic(), CapsuleTokenizer(codebooks=SIZES)])
def test_nothing_learns_beside_a_tokenizer_that_trains_nothing(capsules: Any) -> None:
    _, table = planted()
    with pytest.raises(ConfigError, match="beside=true needs a tokenizer that trains capsules"):
        ItemTokenizer(tokenizer=capsules, merges=merges()).fit(table, progress=silent)


def test_one_pass_and_item_profiles_only() -> None:
    for fields in ({"passes": 2}, {"profile": "centres"}):
        with pytest.raises(ConfigError, match=r"beside=true needs merges\.passes=1 and merges\.profile=items"):
            merges(**fields).check_together()
