from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capsid.encode.base import check_vectors, content_hash, l2_normalise, pack_strings, take, unpack_strings
from capsid.errors import ArtifactError, DataError

IDS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.array([[1.0], [np.nan], [np.inf]]), "2 items hold NaN or infinity: 'b', 'c'"),
        (np.array([[1.0], [0.0], [2.0]]), "1 items are all zeros: 'b'"),
        (np.ones((2, 4)), "2 vectors for 3 items"),
        (np.ones(3), "must be a matrix"),
        (np.array([["x"], ["y"], ["z"]]), "must be a matrix of numbers"),
        (np.ones((3, 0)), "0 wide"),
    ],
)
def test_bad_vectors_are_named(vectors: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_vectors(vectors, IDS)


def test_width_and_zero_rows_as_asked() -> None:
    with pytest.raises(DataError, match="4 wide, expected 5"):
        check_vectors(np.ones((3, 4)), IDS, dim=5)
    check_vectors(np.zeros((3, 4)), IDS, dim=4, allow_zero=True)


def test_many_offenders_are_counted_not_listed() -> None:
    with pytest.raises(DataError, match="'0', '1', '2', '3', '4' and 95 more"):
        check_vectors(np.full((100, 2), np.nan), [str(i) for i in range(100)])


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, (4, 3), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_rows_of_length_one_or_zero(vectors: np.ndarray) -> None:
    unit = l2_normalise(vectors)
    lengths = np.linalg.norm(unit.astype(np.float64), axis=1)
    expected = np.any(vectors != 0, axis=1).astype(float)
    np.testing.assert_allclose(lengths, expected, atol=1e-5)
    assert np.all((unit == 0) | (np.sign(unit) == np.sign(vectors)))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))))
def test_strings_come_back(strings: list[str]) -> None:
    assert unpack_strings(pack_strings(strings)) == strings


def test_broken_state_is_an_artifact_error() -> None:
    with pytest.raises(ArtifactError, match="could not be read"):
        unpack_strings(np.array([255, 1], dtype=np.uint8))
    with pytest.raises(ArtifactError, match="lacks 'idf'"):
        take({}, "idf")


def test_hash_of_content_not_of_storage() -> None:
    numbers = np.array([1, 2, 3], dtype=np.int32)
    assert content_hash(numbers) == content_hash(numbers.astype(np.int64))
    assert content_hash(["ab", "c"]) != content_hash(["a", "bc"])
    assert content_hash(numbers) != content_hash(numbers[::-1])
