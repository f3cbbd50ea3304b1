from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file
from worlds import Watcher

from capsid.data.item_table import ItemTable
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.errors import DataError
from encode.catalogue import make_table, new_items

ITEMS = 24
IDS = [f"item-{i}" for i in range(ITEMS)]
ORDER = np.random.default_rng(3).permutation(ITEMS)
VECTORS = np.random.default_rng(5).normal(size=(ITEMS, 4)).astype(np.float32)
SHUFFLED, SHUFFLED_IDS = VECTORS[ORDER], [IDS[i] for i in ORDER]


def npy(path: Path) -> Path:
    np.save(path / "v.npy", SHUFFLED)
    (path / "v.ids.txt").write_text("\n".join(SHUFFLED_IDS) + "\n")
    return path / "v.npy"


def npz(path: Path) -> Path:
    np.savez(path / "v.npz", embeddings=SHUFFLED, item_id=np.array(SHUFFLED_IDS))
    return path / "v.npz"


def safetensors_with_metadata(path: Path) -> Path:
    save_file({"anything": SHUFFLED}, path / "v.safetensors", {"ids": json.dumps(SHUFFLED_IDS)})
    return path / "v.safetensors"


def safetensors_with_ids_file(path: Path) -> Path:
    save_file({"vectors": SHUFFLED, "other": SHUFFLED * 2}, path / "v.safetensors")
    (path / "v.ids.txt").write_text("\n".join(SHUFFLED_IDS))
    return path / "v.safetensors"


def parquet_of_lists(path: Path) -> Path:
    pl.DataFrame({"item_id": SHUFFLED_IDS, "vector": SHUFFLED.tolist()}).write_parquet(path / "v.parquet")
    return path / "v.parquet"


def parquet_of_columns(path: Path) -> Path:
    frame = pl.DataFrame({"item": SHUFFLED_IDS, **{f"d{j}": SHUFFLED[:, j] for j in range(4)}})
    frame.write_parquet(path / "v.parquet")
    return path / "v.parquet"


WRITERS = [npy, npz, safetensors_with_metadata, safetensors_with_ids_file, parquet_of_lists, parquet_of_columns]


@pytest.mark.parametrize("write", WRITERS)
def test_every_form_is_matched_by_id(write: Callable[[Path], Path], tmp_path: Path) -> None:
    table = make_table(ITEMS)
    encoder = PrecomputedEncoder(path=str(write(tmp_path))).fit(table)
    np.testing.assert_array_equal(encoder.transform(table), VECTORS)


def fit(path: Path, table: ItemTable | None = None, **options: str) -> np.ndarray:
    table = table or make_table(ITEMS)
    return PrecomputedEncoder(path=str(path), **options).fit(table).transform(table)  # type: ignore[arg-type]


def test_npy_in_item_order_needs_no_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", VECTORS.astype(np.float64))
    np.testing.assert_array_equal(fit(tmp_path / "v.npy"), VECTORS)


def test_wrong_count_without_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", VECTORS[:-1])
    with pytest.raises(DataError, match=r"23 rows for 24 items and no ids \(hint: .*v.ids.txt"):
        fit(tmp_path / "v.npy")


def test_wrong_count_of_ids(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", vectors=VECTORS, ids=np.array(IDS[:5]))
    with pytest.raises(DataError, match="24 vectors but 5 ids"):
        fit(tmp_path / "v.npz")


def test_missing_items(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", vectors=VECTORS[2:], ids=np.array(IDS[2:]))
    with pytest.raises(DataError, match=r"no vector for 2 of 24 items: 'item-0', 'item-1' \(hint: its ids look like"):
        fit(tmp_path / "v.npz")
    vectors = fit(tmp_path / "v.npz", missing="zero")
    assert not vectors[:2].any()
    np.testing.assert_array_equal(vectors[2:], VECTORS[2:])


def test_zero_rows_count_as_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.where(np.arange(ITEMS)[:, None] == 7, 0, VECTORS))
    with pytest.raises(DataError, match="all zeros: 'item-7'"):
        fit(tmp_path / "v.npy")
    assert np.flatnonzero(~fit(tmp_path / "v.npy", missing="zero").any(axis=1)).tolist() == [7]


def test_unknown_ids_are_told_and_serve_new_items(tmp_path: Path) -> None:
    table, later, watcher = make_table(ITEMS), new_items(), Watcher()
    extra = np.ones((len(later), 4), dtype=np.float32)
    np.savez(tmp_path / "v.npz", vectors=np.concatenate([VECTORS, extra]), ids=np.array([*IDS, *later.items]))
    encoder = PrecomputedEncoder(path=str(tmp_path / "v.npz")).fit(table, progress=watcher)
    assert any("4 of 28 vectors match no item" in line for line in watcher.lines)
    np.testing.assert_array_equal(encoder.transform(later), extra)


def test_nan_names_the_item(tmp_path: Path) -> None:
    broken = VECTORS.copy()
    broken[9, 1] = np.nan
    np.save(tmp_path / "v.npy", broken)
    with pytest.raises(DataError, match="NaN or infinity: 'item-9'"):
        fit(tmp_path / "v.npy")


def test_double_ids(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", vectors=VECTORS, ids=np.array([IDS[0], *IDS[:-1]]))
    with pytest.raises(DataError, match=r"v.npz: id 'item-0' occurs twice"):
        fit(tmp_path / "v.npz")


def test_ragged_parquet(tmp_path: Path) -> None:
    rows = VECTORS.tolist()
    rows[3] = rows[3][:2]
    pl.DataFrame({"item_id": IDS, "vector": rows}).write_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError, match="the vector of 'item-3' has 2 numbers, the first has 4"):
        fit(tmp_path / "v.parquet")


def test_parquet_of_lists_without_ids_is_in_item_order(tmp_path: Path) -> None:
    pl.DataFrame({"vector": VECTORS.tolist()}).write_parquet(tmp_path / "v.parquet")
    np.testing.assert_array_equal(fit(tmp_path / "v.parquet"), VECTORS)


def test_parquet_without_an_id_or_without_rows(tmp_path: Path) -> None:
    frame = pl.DataFrame({"item_id": [*IDS[:-1], None], "vector": VECTORS.tolist()})
    frame.write_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError, match="row 23 has no id"):
        fit(tmp_path / "v.parquet")
    frame[:0].write_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError, match=r"v\.parquet has no rows"):
        fit(tmp_path / "v.parquet")


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.parquet", "v.safetensors"])
def test_broken_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x00\x01 not what it says")
    with pytest.raises(DataError, match="could not be read"):
        fit(tmp_path / name)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([{"a": 1}] * ITEMS, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="could not be read: it holds Python objects") as caught:
        fit(tmp_path / "v.npy")
    assert "astype(str)" in str(caught.value.hint)


def test_no_file_and_wrong_ending(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        fit(tmp_path / "v.npy")
    with pytest.raises(DataError, match="not a file of vectors"):
        fit(tmp_path / "v.txt")
    with pytest.raises(DataError, match="there is no file"):
        PrecomputedEncoder(path=str(tmp_path / "v.npy")).cache_key(make_table())


def test_several_matrices_need_a_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", a=VECTORS, b=VECTORS)
    with pytest.raises(DataError, match="2 matrices: a, b"):
        fit(tmp_path / "v.npz")


def test_a_second_file_adds_vectors_of_new_items_only(tmp_path: Path) -> None:
    encoder = PrecomputedEncoder(path=str(npy(tmp_path))).fit(make_table(items=ITEMS))
    # A known item comes first and has another vector here: it keeps its own, and must not shift the rows after it.
    more = np.random.default_rng(9).normal(size=(3, 4)).astype(np.float32)
    np.save(tmp_path / "more.npy", more)
    (tmp_path / "more.ids.txt").write_text(f"{IDS[2]}\nnew-a\nnew-b\n")
    grown = encoder.with_vectors(tmp_path / "more.npy")
    np.testing.assert_array_equal(grown.remembered(["new-b", IDS[2], "new-a"]), [more[2], VECTORS[2], more[1]])
