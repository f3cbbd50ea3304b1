"""Arrays in blocks: what is written, read, counted, hashed or cut a block at a time is what NumPy gives at once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid import ragged
from capsid.base.storage import mapped_arrays
from capsid.base.storage.arrays import load_array
from capsid.base.storage.mapped_arrays import ArrayWriter, array_blocks, counted, in_file, int64_blocks, mapped_scratch
from capsid.errors import ArtifactError
from capsid.ragged import Ragged

NUMBERS = st.lists(st.integers(0, 5), max_size=30).map(lambda n: np.array(n, dtype=np.int32))
ROWS = st.lists(st.lists(st.integers(-5, 70_000), max_size=5), max_size=12)


@settings(deadline=None, max_examples=30)
@given(numbers=NUMBERS, step=st.integers(1, 9))
def test_blocks(numbers: np.ndarray, step: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.mktemp("a") / "a.npy"
    with ArrayWriter(path, "<i4") as writer:
        for start in range(0, len(numbers), step):
            writer.add(numbers[start : start + step])
            writer.flush()
            np.testing.assert_array_equal(load_array(path), numbers[: start + step])
    np.save(path.with_name("b.npy"), numbers)
    assert path.read_bytes() == path.with_name("b.npy").read_bytes()
    np.testing.assert_array_equal(np.concatenate([numbers[:0], *array_blocks(path, step)]), numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_arrays, "BLOCK", step)
        np.testing.assert_array_equal(counted(numbers, 6), np.bincount(numbers, minlength=6))
        digest = hashlib.sha256()
        for block in int64_blocks(numbers):
            digest.update(block)
    assert digest.digest() == hashlib.sha256(numbers.astype(np.int64).tobytes()).digest()


@settings(deadline=None, max_examples=30)
@given(rows=ROWS, block=st.integers(1, 9), most=st.integers(0, 4), mapped=st.booleans())
def test_rows_are_cut_in_parts(rows: list[list[int]], block: int, most: int, mapped: bool) -> None:
    whole = Ragged.from_rows(rows)
    expected = whole.last(most)
    if mapped and len(whole.values):
        whole = Ragged(mapped_scratch([whole.values], whole.values.dtype), whole.offsets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BLOCK", block)
        found, parts = whole.last(most), list(whole.parts())
    assert found == expected
    assert in_file(found.values) == (in_file(whole.values) and len(found.values) > block)
    assert [row.tolist() for part in parts for row in part] == rows
    assert all(len(part.values) <= block + 5 for part in parts)


def test_files_that_end_too_early(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-3])
    with pytest.raises(ArtifactError, match="declares an array of 72 bytes but holds 69"):
        list(array_blocks(tmp_path / "a.npy", 4))


def test_no_place_for_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path / "file"))
    with pytest.raises(ArtifactError, match="could not write to"):
        mapped_scratch([np.arange(3)], np.dtype(np.int64))
