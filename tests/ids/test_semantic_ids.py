from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_ids, ragged_codes

from capsid.base.storage.artifacts import read_json
from capsid.base.vocabulary import Vocabulary
from capsid.errors import ArtifactError, DataError
from capsid.ids.collisions import Bucket, CollisionPolicy, Suffix
from capsid.ids.layout import END
from capsid.ids.semantic_ids import SemanticIds, gini
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

SIZES = (4, 4, 4, 4)
POLICIES = st.sampled_from([Suffix(), Bucket()])


@given(codes=ragged_codes(absent=True), policy=POLICIES)
def test_prefix_free_rows_have_an_end_token_only_where_needed(codes: list[list[int]], policy: CollisionPolicy) -> None:
    ids = make_ids(codes, SIZES, policy)
    tokens, prefix_free = ([tuple(r.tolist()) for r in rows] for rows in (ids.tokens, ids.prefix_free))
    for own, whole in zip(tokens, prefix_free):
        goes_on = any(len(other) > len(own) and other[: len(own)] == own for other in tokens)
        assert whole == ((*own, END) if goes_on else own)
    assert not any(a != b and b[: len(a)] == a for a in prefix_free for b in prefix_free)


@given(codes=ragged_codes(size=3, depths=3, absent=True), policy=POLICIES)
def test_lookup_both_ways(codes: list[list[int]], policy: CollisionPolicy) -> None:
    ids = make_ids(codes, SIZES, policy)
    for item in ids.items:
        tokens = ids[item]
        owners = ids.lookup(tokens)
        assert item in owners
        assert owners == [other for other in ids.items if ids[other] == tokens]
        assert ids.lookup([*tokens, END]) == owners
        assert len(owners) == 1 or isinstance(policy, Bucket)
    assert ids.lookup([0]) == ids.lookup([]) == []


@given(
    old=ragged_codes(size=2, depths=3, absent=True), new=ragged_codes(size=2, depths=3, absent=True), policy=POLICIES
)
def test_extending_keeps_old_tokens_and_the_vocabulary(
    old: list[list[int]], new: list[list[int]], policy: CollisionPolicy
) -> None:
    policy = Suffix(capacity=64) if isinstance(policy, Suffix) else policy
    ids = make_ids(old, SIZES, policy)
    names = [f"b{i}" for i in range(len(new))]
    grown = ids.extend(names, Ragged.from_rows(new))
    assert all(grown[item] == ids[item] for item in ids.items)
    assert grown.layout == ids.layout
    assert list(grown.items) == [*ids.items, *names]
    whole = SemanticIds.assign(Vocabulary([*ids.items, *names]), Ragged.from_rows(old + new), SIZES, policy)
    assert grown == whole
    trie = Trie.build(ids.prefix_free).extend(grown.prefix_free.take(np.arange(len(old), len(grown))))
    assert trie.rows() == grown.prefix_free


def test_extending_beyond_the_room_is_refused() -> None:
    ids = make_ids([[0, 0], [0, 0]], SIZES, Suffix(capacity=2))
    with pytest.raises(DataError, match="only 2 suffix tokens"):
        ids.extend(["b"], Ragged.from_rows([[0, 0]]))
    with pytest.raises(DataError, match="outside the codebook"):
        ids.extend(["b"], Ragged.from_rows([[0, 4]]))
    with pytest.raises(DataError, match="'a1' already has an id"):
        ids.extend(["a1"], Ragged.from_rows([[1, 1]]))


@pytest.mark.parametrize("policy", [Suffix(), Suffix(capacity=9), Bucket()])
def test_save_and_load(tmp_path: Path, policy: CollisionPolicy) -> None:
    ids = make_ids([[1], [1, 2], [3, 0, 1], [1, 2]], SIZES, policy)
    ids.save(tmp_path)
    loaded = SemanticIds.load(tmp_path)
    assert loaded == ids
    assert loaded.prefix_free == ids.prefix_free
    assert loaded.statistics() == ids.statistics()
    more = Ragged.from_rows([[1], [1, 2]])
    assert loaded.extend(["x", "y"], more) == ids.extend(["x", "y"], more)
    assert ids != make_ids([[1], [1, 2], [3, 0, 1], [1, 3]], SIZES, policy)


def test_codes_are_rows_of_a_parquet_file(tmp_path: Path) -> None:
    ids = make_ids([[1, 2], [1, 2], [3]], SIZES, Suffix())
    ids.save(tmp_path)
    frame = pl.read_parquet(tmp_path / "ids.parquet")
    assert frame.to_dict(as_series=False) == {
        "item_id": ["a0", "a1", "a2"],
        "codes": [[1, 2], [1, 2], [3]],
        "suffix": [0, 1, 0],
    }
    assert read_json(tmp_path / "ids.json") == {"sizes": [4, 4, 4, 4], "suffix": ids.layout.suffix}


def test_codes_that_a_policy_changed_are_stored_with_those_before(tmp_path: Path) -> None:
    ids = make_ids([[1, 2], [1, 2]], SIZES)
    changed = replace(ids, codes=Ragged.from_rows([[1, 2], [1, 3]]), unsettled=ids.codes)
    changed.save(tmp_path)
    loaded = SemanticIds.load(tmp_path)
    assert (loaded.codes, loaded.encoded) == (changed.codes, ids.codes)


GOOD = {"item_id": ["a", "b"], "codes": [[1], [2, 0]]}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({**GOOD, "item_id": ["a", "a"]}, "occurs twice"),
        ({**GOOD, "item_id": ["a", None]}, "ids are missing"),
        ({**GOOD, "codes": [[1], None]}, "missing"),
        ({**GOOD, "codes": [[1], [None]]}, "missing"),
        ({**GOOD, "codes": [[1], [4]]}, "outside"),
        ({**GOOD, "codes": [[1], []]}, "empty code"),
        ({**GOOD, "codes": [1, 2]}, "expected a column of lists"),
        ({**GOOD, "codes": [["x"], ["y"]]}, "expected a column of numbers"),
        ({**GOOD, "suffix": [0, 7]}, "suffixes has numbers outside"),
        ({**GOOD, "unsettled": [[1, 1], [2, 0]]}, "rows of other lengths"),
        ({"item_id": ["a", "b"]}, "codes"),
    ],
)
def test_rows_that_cannot_be_ids(columns: dict[str, list], said: str, tmp_path: Path) -> None:
    make_ids([[1], [2, 0]], SIZES).save(tmp_path)
    pl.DataFrame(columns).write_parquet(tmp_path / "ids.parquet")
    with pytest.raises(ArtifactError, match=said):
        SemanticIds.load(tmp_path)


def test_a_small_file_of_very_many_rows_is_refused(tmp_path: Path) -> None:
    make_ids([[1]], SIZES).save(tmp_path)
    pl.DataFrame({"item_id": pl.repeat("a", 10**6, eager=True)}).write_parquet(tmp_path / "ids.parquet")
    with pytest.raises(ArtifactError, match="claims 1,000,000 values"):
        SemanticIds.load(tmp_path)


def test_statistics_by_hand() -> None:
    ids = make_ids([[0, 0], [0, 0], [0, 0], [0, 1], [1, 0], [1]], (2, 4), Bucket())
    found = ids.statistics()
    assert found.items == 6
    assert found.collision_rate == pytest.approx(1 - 4 / 6)
    assert found.collision_rate_final == pytest.approx(1 - 4 / 6)
    assert found.items_sharing_an_id == 3
    assert found.largest_bucket == 3
    assert found.utilization == (1.0, 0.5)
    # Depth 0: counts 4 and 2, Gini (4 - 2) / (2 * 6); depth 1: counts 4, 1, 0, 0, mean absolute difference by hand.
    assert found.gini == pytest.approx((1 / 6, (3 + 4 + 4 + 1 + 1) * 2 / (2 * 4 * 5)))
    assert found.mean_length == pytest.approx(11 / 6)
    assert found.length_histogram == {1: 1, 2: 5}


def test_absent_codes_are_no_tokens_and_are_not_counted() -> None:
    ids = make_ids([[0, -1, 3], [-1, 2], [0, -1, 3, -1], [1]], (2, 4, 4), Bucket())
    assert [row.tolist() for row in ids.tokens] == [[2, 11], [6], [2, 11], [3]]
    assert ids.codes == Ragged.from_rows([[0, -1, 3], [-1, 2], [0, -1, 3], [1]]), "absent codes at the end are dropped"
    assert ids.layout.codes(ids.tokens) == ids.codes
    found = ids.statistics()
    assert [counts.tolist() for counts in ids.use_of_codes()] == [[2, 1], [0, 0, 1, 0], [0, 0, 0, 2]]
    assert found.collision_rate == pytest.approx(1 / 4)
    assert (found.mean_length, found.mean_tokens) == (1.5, 1.5)
    assert found.length_histogram == {1: 2, 2: 2}


def test_a_policy_changes_the_final_rate_only() -> None:
    codes = [[0, 0], [0, 0], [0, 0], [0, 1]]
    found = make_ids(codes, (2, 4), Suffix()).statistics()
    assert found.collision_rate == pytest.approx(0.5)
    assert (found.collision_rate_final, found.items_sharing_an_id, found.largest_bucket) == (0.0, 0, 1)
    assert found.mean_length == 2.0, "codes, without the suffix"


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_gini_is_the_mean_absolute_difference(counts: list[int]) -> None:
    n, total = len(counts), sum(counts)
    slow = sum(abs(a - b) for a in counts for b in counts) / (2 * n * total) if total else 0.0
    assert gini(np.array(counts)) == pytest.approx(slow)


def test_what_cannot_be_ids() -> None:
    with pytest.raises(DataError, match="1 codes for 2 items"):
        SemanticIds.assign(Vocabulary(["a", "b"]), Ragged.from_rows([[1]]), SIZES)
    with pytest.raises(DataError, match="at least one code"):
        make_ids([[1], []], SIZES)
    with pytest.raises(DataError, match="at least one code"):
        make_ids([[1], [-1, -1]], SIZES)
    with pytest.raises(DataError, match="unknown id 'zz'"):
        make_ids([[1]], SIZES)["zz"]
    with pytest.raises(DataError, match="outside the codebook"):
        make_ids([[7]], SIZES)
