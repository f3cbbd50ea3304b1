"""Which pairs SemanticBPE merges, in a world where that is known; variants, determinism, resuming, nothing to merge."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from merge_worlds import ALIKE, POPULAR, QUICK, planted
from worlds import Watcher, make_ids, make_table

from capsid.base.run_options import CheckpointFile
from capsid.errors import ConfigError, NotFittedError
from capsid.evaluate.merge_report import merge_report, merge_uses
from capsid.ids.merges import MergeTable
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.tokenize.capsules.gate import gumbel_noise
from capsid.tokenize.capsules.pairs import Candidates
from capsid.tokenize.capsules.semantic_bpe import Pass, SemanticBPE


@cache
def fit(seed: int = 0, **fields: object) -> SemanticBPE:
    settings = {"training": QUICK, **fields}
    return SemanticBPE(**settings).fit(*planted(), seed=seed)  # type: ignore[arg-type]


def pairs(merges: SemanticBPE) -> list[tuple[int, int]]:
    return list(zip(merges.table_.left, merges.table_.right))


def test_what_goes_together_is_merged_and_what_is_only_popular_is_not() -> None:
    merges = fit()
    assert set(ALIKE) <= set(pairs(merges))
    assert POPULAR not in pairs(merges)
    found = merges.candidates_
    popular = (found.left == POPULAR[0]) & (found.right == POPULAR[1])
    assert found.frequency[popular] == 1.0, "it is the most frequent of all"
    assert abs(found.cosine[popular][0]) < 0.5
    assert all(s > 0.5 for s in merges.table_.strength)
    ids = planted()[0].with_merges(merges.table_)
    assert ids.layout.codes(ids.tokens) == ids.codes


def test_variants() -> None:
    assert pairs(fit(size=1, alpha=(1.0, 1.0))) == [POPULAR], "frequency alone"
    assert set(pairs(fit(size=4, alpha=(1.0, 1.0)))) != set(pairs(fit(size=4)))
    alike = fit(size=4, alpha=(0.0, 0.0))
    best = np.argsort(-alike.candidates_.cosine)[:4]
    assert set(pairs(alike)) == set(zip(alike.candidates_.left[best].tolist(), alike.candidates_.right[best].tolist()))
    strict = fit(theta=(1.0, 0.99))
    assert len(strict.table_) == int((strict.candidates_.cosine > 0.99).sum()) < len(fit().table_)


def test_a_spare_merge_is_switched_on_by_a_positive_bias_and_off_again() -> None:
    """All eligible pairs have a token; the gate says which of them are used, and a bias learnt later changes that."""
    ids, _ = planted()
    shy = fit(spare=True, theta=(-1.0, -1.0), size=9, bias=-20.0)
    assert len(shy.table_) == len(shy.candidates_) > 9, "all eligible pairs, whatever the gate was taught to merge"
    assert ids.with_merges(shy.table_).tokens == ids.tokens, "the gate keeps all pairs apart"
    bold = shy.shifted(40.0)
    assert bold.table_.left == shy.table_.left, "tokens keep their numbers"
    assert len(ids.with_merges(bold.table_).tokens.values) < len(ids.tokens.values)
    assert ids.with_merges(bold.shifted(-40.0).table_).tokens == ids.tokens
    without = fit(theta=(-1.0, -1.0), size=9, bias=-20.0)
    assert len(without.shifted(40.0).table_) == 0, "what is not stored cannot be switched on"


def test_the_bias_moves_the_decision() -> None:
    few, usual, many = (len(fit(bias=b, theta=(-1.0, -1.0), size=6).table_) for b in (-20.0, 0.0, 20.0))
    assert (few, many) == (0, 6)
    assert 0 < usual <= 6
    assert POPULAR not in pairs(fit(bias=20.0)), "theta is no matter of the gate"
    assert fit(bias=1.0).candidates_.logit == pytest.approx(fit().candidates_.logit), "it is not learnt"


def test_the_noise_is_gumbel() -> None:
    """Mean is Euler's constant, variance pi^2 / 6; the difference of two is logistic."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = gumbel_noise(torch.Size([200_000, 2]))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(np.pi**2 / 6, abs=0.02)
    assert float((noise[:, 0] - noise[:, 1] > 1).float().mean()) == pytest.approx(1 / (1 + np.e), abs=0.005)


def test_the_gate_learns_from_the_targets_of_its_schedule() -> None:
    """Weight and threshold move from their first values to their last over half of the training, then stay."""
    # Pair 0 is the most frequent, 1 the most alike; 2 is a compromise. Two of them may be merged.
    found = dataclasses.replace(
        Candidates.none(),
        left=np.array([2, 3, 4]),
        frequency=np.array([1.0, 0.1, 0.5]),
        cosine=np.array([0.7, 0.95, 0.85]),
    )
    ids, table = planted()
    targets = lambda share, **fields: (  # noqa: E731
        Pass(SemanticBPE(size=2, **fields), 1, ids, table, silent).teacher(found)(share).tolist()
    )
    theta = {"alpha": (0.0, 0.0), "theta": (0.9, 0.6)}
    assert targets(0.0, **theta) == [False, True, False], "cosines above 0.9"
    assert targets(0.25, **theta) == [False, True, True], "cosines above 0.75"
    assert targets(0.1, **theta) == [False, True, True], "cosines above 0.84"
    assert targets(0.05, **theta) == [False, True, False], "cosines above 0.87"
    alpha = {"alpha": (1.0, 0.0), "theta": (0.0, 0.0)}
    assert targets(0.0, **alpha) == [True, False, True], "by frequency"
    assert targets(0.25, **alpha) == [True, False, True], "scores 0.85, 0.525 and 0.675"
    for share in (0.5, 0.75, 1.0):
        assert targets(share, **theta) == targets(share, **alpha) == [False, True, True], "by meaning"


def test_counted_by_users() -> None:
    """One user who takes a pair all the time is one user."""
    ids, table = planted()
    one = np.full(900, len(ids) - 1)
    others = table.sequences.values[table.sequences.values != len(ids) - 1]
    sequences = Ragged.from_rows([one, *np.array_split(others, 100)], np.int64)
    table = dataclasses.replace(table, sequences=sequences)
    for count, wanted in (("interactions", [POPULAR]), ("users", [])):
        merges = SemanticBPE(size=1, alpha=(1.0, 1.0), count=count, training=QUICK).fit(ids, table)
        assert [p for p in pairs(merges) if p == POPULAR] == wanted
        assert len(merges.table_) == 1


def test_further_passes_merge_merges() -> None:
    once, twice = fit(size=12, theta=(-1.0, -1.0), min_count=5), fit(size=12, theta=(-1.0, -1.0), min_count=5, passes=2)
    assert set(once.table_.number) == {1}
    assert twice.table_.number == (1,) * 6 + (2,) * 6
    assert max(twice.table_.left + twice.table_.right) >= twice.first_
    ids = planted()[0].with_merges(twice.table_)
    assert ids.layout.codes(ids.tokens) == ids.codes
    assert ids.tokens.lengths.min() == 1
    assert twice.table_.truncated(6).number == (1,) * 6


def test_centres_as_profiles() -> None:
    ids, table = planted()
    centres = np.random.default_rng(0).normal(size=(ids.layout.vocabulary, 4))
    centres[ALIKE[2][0]] = centres[ALIKE[2][1]]
    merges = SemanticBPE(profile="centres", theta=(0.99, 0.99), training=QUICK).fit(ids, table, centres_VD=centres)
    assert pairs(merges) == [ALIKE[2]]
    with pytest.raises(ConfigError, match="no centres"):
        SemanticBPE(profile="centres").fit(ids, table)
    with pytest.raises(ConfigError, match="need item vectors"):
        SemanticBPE().fit(ids, dataclasses.replace(table, blocks={}))


def same(a: SemanticBPE, b: SemanticBPE) -> bool:
    return a.table_ == b.table_ and all(np.array_equal(v, b.state()[n]) for n, v in a.state().items())


def test_the_same_again_and_from_a_file() -> None:
    merges = fit(passes=2, size=8)
    assert same(merges, fit.__wrapped__(passes=2, size=8))
    assert not np.array_equal(merges.candidates_.logit, fit(seed=1, passes=2, size=8).candidates_.logit)
    loaded = dataclasses.replace(merges).load_state(merges.state())
    assert same(merges, loaded)
    with pytest.raises(NotFittedError):
        SemanticBPE().state()


class Killer(Watcher):
    def update(self, text: str) -> None:
        super().update(text)
        if len(self.updates) == 50:
            raise KeyboardInterrupt


def test_a_killed_fit_goes_on(tmp_path: Path) -> None:
    settings = SemanticBPE(training=QUICK)
    unbroken = dataclasses.replace(settings).fit(*planted(), seed=3)
    kept = CheckpointFile(tmp_path / "work", 0.0)
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(settings).fit(*planted(), seed=3, checkpoint=kept, progress=Killer())
    assert list(tmp_path.iterdir())
    watcher = Watcher()
    resumed = dataclasses.replace(settings).fit(*planted(), seed=3, checkpoint=kept, progress=watcher)
    assert any("resuming from step 50" in line for line in watcher.lines)
    assert same(resumed, unbroken)
    assert not list(tmp_path.iterdir()), "seconds of work leave nothing behind"


def test_nothing_to_merge() -> None:
    ids, table = planted()
    for fields, words in (
        ({"min_count": 10_000}, "no pair of neighbouring tokens occurs 10000 times"),
        ({"theta": (1.0, 1.0)}, "has a cosine above 1"),
    ):
        watcher = Watcher()
        merges = SemanticBPE(**fields).fit(ids, table, progress=watcher)  # type: ignore[arg-type]
        assert merges.table_ == MergeTable(ids.layout.vocabulary)
        assert words in watcher.lines[-1]
        assert ids.with_merges(merges.table_).tokens == ids.tokens
        assert merge_report(ids.with_merges(merges.table_), merges).count == 0
    single = make_ids([[0], [1]], (2,))
    table = dataclasses.replace(make_table(np.eye(2), names=list(single.items)), sequences=Ragged.from_rows([[0, 1]]))
    assert len(SemanticBPE(min_count=1).fit(single, table).table_) == 0, "ids of one token have no pairs"


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 0},
        {"passes": 0},
        {"min_count": 0},
        {"count": "items"},
        {"profile": "words"},
        {"alpha": (1.0,)},
        {"alpha": (1.0, 1.2)},
        {"theta": (0.9, -1.5)},
        {"bias": float("nan")},
    ],
)
def test_bad_fields(fields: dict) -> None:
    with pytest.raises(ConfigError, match=f"semantic-bpe.{next(iter(fields))} must be"):
        SemanticBPE(**fields)


def test_the_report_by_hand() -> None:
    ids, table = planted()
    merges = fit()
    merged = ids.with_merges(merges.table_)
    grown = merged.extend(["new"], Ragged.from_rows([[0, 0, 1]]))
    told = merge_report(grown, merges)
    assert (told.count, told.candidates) == (len(merges.table_), len(merges.candidates_))
    assert told.precision == told.recall == 1.0
    assert told.above_theta == pytest.approx((merges.candidates_.cosine > 0.55).mean())
    counts, before, after = table.counts, ids.tokens.lengths, merged.tokens.lengths
    assert told.tokens.item_before == pytest.approx(before.mean())
    assert told.tokens.item_after == pytest.approx(after.mean())
    assert told.tokens.interaction_after == pytest.approx((after * counts).sum() / counts.sum())
    assert sum(t.interactions for t in told.tiers.values()) == pytest.approx(1)
    assert sum(t.merges for t in told.tiers.values()) == pytest.approx(1)
    # The head: the popular pair and 12 of the 24 items (65 in all) taken ten times.
    head = np.lexsort([np.arange(65), -counts])[:13]
    assert told.tiers["head"].interactions == pytest.approx(counts[head].sum() / counts.sum())
    assert told.tiers["head"].tokens.item_after == pytest.approx(after[head].mean())
    uses = merge_uses(grown, merges)
    assert told.used == sum(bool(use.items) for use in uses) >= len(ALIKE)
    for use in uses:
        carry = [n for n, row in enumerate(grown.tokens) if use.token in row]
        assert list(use.items) == carry
        assert use.taken == sum(counts[n] for n in carry if n < 65)
        if not carry:
            assert use.tiers == (0, 0, 0)
            continue
        assert use.tiers[0] == pytest.approx(np.mean([n in head for n in carry if n < 65]))
        place = use.depth
        assert all(tuple(grown.codes[n][place : place + 2]) == use.codes for n in carry)
        assert use.tokens_after == pytest.approx(use.tokens_before - 1)
