"""Arrays in files: what was saved comes back, and no file makes us allocate more memory than its own size."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from capsid.base.storage.arrays import load_array, load_arrays, map_arrays, save_arrays
from capsid.errors import ArtifactError


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yy"]), "c": np.zeros(0, np.float32)}
    save_arrays(tmp_path / "a.npz", arrays)
    back = load_arrays(tmp_path / "a.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype


ODD = {
    "a": np.arange(6).reshape(2, 3),
    "longer name/π": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "texts": np.array(["x", "yy"]),
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(7.5),
    "bytes": np.arange(3, dtype=np.uint8),
    "last": np.arange(5, dtype=np.int64),
}


@pytest.mark.parametrize("save", [save_arrays, lambda path, arrays: np.savez(path, **arrays)])
def test_mapped_arrays_are_the_loaded_ones(save: Callable[..., None], tmp_path: Path) -> None:
    save(tmp_path / "a.npz", ODD)
    loaded, mapped = load_arrays(tmp_path / "a.npz"), map_arrays(tmp_path / "a.npz", lambda name: name != "bytes")
    assert list(mapped) == [name for name in ODD if name != "bytes"]
    for name, array in mapped.items():
        np.testing.assert_array_equal(array, loaded[name])
        assert (array.dtype, array.shape) == (loaded[name].dtype, loaded[name].shape)
        assert array.flags.aligned
        if save is save_arrays:
            assert not array.flags.writeable, "a view of the mapped file, not a copy"
    with np.load(tmp_path / "a.npz", allow_pickle=False) as other:
        assert all(np.array_equal(other[name], ODD[name]) for name in ODD)


def test_what_cannot_be_mapped(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "small.npz", x=np.arange(1000))
    save_arrays(tmp_path / "whole.npz", {"x": np.arange(1000)})
    (tmp_path / "half.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:500])
    for name in ("small.npz", "half.npz", "none.npz"):
        with pytest.raises(ArtifactError, match="could not be read"):
            map_arrays(tmp_path / name, lambda _: True)


def test_objects_are_neither_stored_nor_read(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    with pytest.raises(ArtifactError, match="'x' holds Python objects"):
        save_arrays(tmp_path / "a.npz", {"x": objects})
    np.savez(tmp_path / "b.npz", x=objects)
    with pytest.raises(ArtifactError, match="could not be read"):
        load_arrays(tmp_path / "b.npz")


def test_broken_files_are_said(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", {"x": np.arange(1000)})
    (tmp_path / "half.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:500])
    for name in ("half.npz", "none.npz"):
        with pytest.raises(ArtifactError, match="could not be read"):
            load_arrays(tmp_path / name)


def test_one_array_comes_back(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(tmp_path / "a.npy", array)
    for mapped in (False, True):
        np.testing.assert_array_equal(load_array(tmp_path / "a.npy", memory_map=mapped), array)


def npy(header: dict[str, object], data: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
    return file.getvalue() + data


CLAIMS = {
    "huge": ({"descr": "<f8", "fortran_order": False, "shape": (10**12,)}, "declares an array"),
    "overflow": ({"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**40)}, "declares an array"),
    "negative": ({"descr": "<f8", "fortran_order": False, "shape": (-1, 8)}, "impossible shape"),
    "wide text": ({"descr": "<U500000000", "fortran_order": False, "shape": (1,)}, "declares an array"),
    "small": ({"descr": "|u1", "fortran_order": False, "shape": (3,)}, "declares an array"),
    "objects": ({"descr": "|O", "fortran_order": False, "shape": (1,)}, "never unpickled"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_an_array_that_claims_other_than_it_holds_is_refused(name: str, tmp_path: Path) -> None:
    header, message = CLAIMS[name]
    data = npy(header, b"12345678")
    (tmp_path / "a.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", data)
    tracemalloc.start()
    for load in (load_array, load_arrays):
        with pytest.raises(ArtifactError, match=message) as caught:
            load(tmp_path / ("a.npy" if load is load_array else "a.npz"))
        assert caught.value.hint
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    bomb = npy({"descr": "|u1", "fortran_order": False, "shape": (50_000_000,)}, bytes(50_000_000))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bomb)
    del bomb
    tracemalloc.start()
    with pytest.raises(ArtifactError, match="is compressed"):
        load_arrays(tmp_path / "bomb.npz")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_compressed_arrays_are_read_where_we_write_them(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10_000))
    assert load_arrays(tmp_path / "a.npz", compressed=True)["x"].shape == (10_000,)


def test_a_changed_byte_in_an_archive_is_noticed(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.npz", {"x": np.arange(1000)})
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ArtifactError, match="could not be read"):
        load_arrays(tmp_path / "a.npz")
