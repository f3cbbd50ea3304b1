"""Catalogues larger than memory: files are mapped, fits read rows, codes are a pure map over shards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Watcher

from capsid.encode.large_vectors import MappedVectors, open_vectors, write_mapped
from capsid.errors import ArtifactError, ConfigError, DataError
from capsid.scale.codes import encode_shards
from capsid.tokenize.base import tokenizer_key
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.train.options import Training

ITEMS, WIDTH = 1_300, 12
IDS = [f"item-{i}" for i in range(ITEMS)]


def made(items: int = ITEMS, width: int = WIDTH) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, width))
    return (centres[rng.integers(0, 20, items)] + 0.4 * rng.normal(size=(items, width))).astype(np.float32)


VECTORS = made()


def small(**changes: object) -> CapsuleTokenizer:
    training = Training(steps=6, batch_size=64, ema=0.0, validate_every=3)
    return CapsuleTokenizer(**{"codebooks": (8, 8, 8), "training": training} | changes)  # type: ignore[arg-type]


def write_npy(folder: Path, vectors: np.ndarray = VECTORS, ids: list[str] | None = IDS) -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / "v.npy", vectors)
    if ids is not None:
        (folder / "v.ids.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
    return folder / "v.npy"


def write_parquet(path: Path, vectors: object = VECTORS, ids: object = IDS, **options: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    columns = {"title": ["x"] * len(ids), "item_id": ids, "vector": list(vectors)}  # type: ignore[call-overload,arg-type]
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> MappedVectors:
    return open_vectors(write_npy(tmp_path_factory.mktemp("own")))


@pytest.fixture(scope="module")
def fitted(source: MappedVectors) -> CapsuleTokenizer:
    return small().fit(source.table(), seed=1)


def read(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "*.parquet")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


# --- files that can be mapped


def test_a_float32_npy_is_mapped_where_it_stands(tmp_path: Path) -> None:
    file = write_npy(tmp_path)
    opened = open_vectors(file, cache=tmp_path / "cache")
    assert isinstance(opened.vectors_ND, np.memmap)
    assert Path(opened.vectors_ND.filename) == file
    assert list(opened.ids) == IDS
    assert not list((tmp_path / "cache").glob("*/vectors.npy")), "only the ids are rewritten, as a file to map"


@pytest.mark.parametrize("form", ["lists", "fixed", "doubles", "numbers", "npy64", "fortran"])
def test_other_forms_are_written_once(form: str, tmp_path: Path) -> None:
    file = tmp_path / "v.parquet"
    ids: list = IDS
    if form == "lists":
        write_parquet(file, VECTORS.tolist(), row_group_size=300)
    elif form == "fixed":
        array = pl.Series("embedding", VECTORS, dtype=pl.Array(pl.Float32, WIDTH))
        pl.DataFrame({"asin": IDS, "embedding": array}).write_parquet(file, row_group_size=257)
    elif form == "doubles":
        write_parquet(file, VECTORS.astype(np.float64))
    elif form == "numbers":
        ids = [str(7 * i) for i in range(ITEMS)]
        write_parquet(file, VECTORS, [7 * i for i in range(ITEMS)])
    else:
        other = VECTORS.astype(np.float64) if form == "npy64" else np.asfortranarray(VECTORS)
        file = write_npy(tmp_path, other)
    watcher = Watcher()
    opened = open_vectors(file, cache=tmp_path / "cache", progress=watcher)
    np.testing.assert_array_equal(opened.vectors_ND, VECTORS)
    assert opened.vectors_ND.dtype == np.float32
    assert list(opened.ids) == ids
    again = Watcher()
    np.testing.assert_array_equal(open_vectors(file, cache=tmp_path / "cache", progress=again).vectors_ND, VECTORS)
    assert any("converting once" in line for line in watcher.lines)
    assert again.lines == []


def test_a_folder_of_files_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for number, rows in enumerate([range(0, 500), range(500, 501), range(501, ITEMS)]):
        write_parquet(tmp_path / "in" / f"part-{number}.parquet", VECTORS[rows], [IDS[i] for i in rows])
    opened = open_vectors(tmp_path / "in", cache=tmp_path / "cache")
    np.testing.assert_array_equal(opened.vectors_ND, VECTORS)
    assert list(opened.ids) == IDS


def test_a_damaged_copy_is_written_again(tmp_path: Path) -> None:
    file, watcher = write_parquet(tmp_path / "v.parquet"), Watcher()
    open_vectors(file, cache=tmp_path / "cache")
    (copy,) = (tmp_path / "cache").glob("*/vectors.npy")
    copy.write_bytes(copy.read_bytes()[:-4] + b"\0\0\0\1")
    np.testing.assert_array_equal(
        open_vectors(file, cache=tmp_path / "cache", progress=watcher).vectors_ND,
        VECTORS,
    )
    assert any("damaged" in line for line in watcher.lines)


def test_rows_without_ids_are_named_by_number(tmp_path: Path) -> None:
    watcher = Watcher()
    opened = open_vectors(write_npy(tmp_path, ids=None), progress=watcher)
    assert opened.table(3, 5).items[:] == ("3", "4")
    assert any("named by their number" in line for line in watcher.lines)


def with_value(value: float, rows: list[int]) -> np.ndarray:
    broken = VECTORS.copy()
    broken[rows] = value
    return broken


def test_bad_rows_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    far_apart = [2, 5, ITEMS - 1]
    for value, what in ((np.nan, "NaN or infinity"), (-np.inf, "NaN or infinity"), (0.0, "all zeros")):
        file = write_parquet(tmp_path / "v.parquet", with_value(value, far_apart), row_group_size=100)
        with pytest.raises(DataError, match=rf"vectors of 3 items .*{what}: 'item-2', 'item-5', 'item-1299'"):
            write_mapped(file, tmp_path / "mapped")
    huge = with_value(1.0, []).astype(np.float64)
    huge[4, 0] = 1e300
    with pytest.raises(DataError, match="infinity: 'item-4'"):
        write_mapped(write_parquet(tmp_path / "v.parquet", huge), tmp_path / "mapped")
    assert [p.name for p in tmp_path.iterdir()] == ["v.parquet"]


@pytest.mark.parametrize("missing", [None, [1.0] * 5, []])
def test_rows_of_another_width_are_named(missing: list[float] | None, tmp_path: Path) -> None:
    rows: list = VECTORS.tolist()
    rows[1_200] = missing
    with pytest.raises(DataError, match=r"the vector of 'item-1200' (has 5 numbers, the first has 12|is missing)"):
        write_mapped(write_parquet(tmp_path / "v.parquet", rows), tmp_path / "mapped")


def test_files_of_another_width(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "a.parquet")
    write_parquet(tmp_path / "in" / "b.parquet", VECTORS[:, :3], [f"b{i}" for i in range(ITEMS)])
    with pytest.raises(DataError, match=r"b.parquet is 3 wide, but the files before it are 12 wide"):
        write_mapped(tmp_path / "in", tmp_path / "mapped")


def test_ids_that_cannot_be(tmp_path: Path) -> None:
    def refused(ids: list, match: str) -> None:
        with pytest.raises(DataError, match=match):
            write_mapped(write_parquet(tmp_path / "v.parquet", ids=ids), tmp_path / "mapped")

    refused([*IDS[:-2], IDS[3], IDS[900]], "2 ids occur twice: 'item-3', 'item-900'")
    refused([*IDS[:-1], None], "row 1299 has no id")
    refused([*IDS[:-1], "a\nb"], r"line breaks: 'a\\nb'")
    refused([*IDS[:-1], "a\u2028b"], "line breaks")
    refused([*IDS[:-1], ""], "empty")
    double = write_npy(tmp_path / "npy", ids=[*IDS[:-1], IDS[0]])
    with pytest.raises(DataError, match="1 ids occur twice: 'item-0'"):
        open_vectors(double)
    with pytest.raises(DataError, match=r"1300 vectors but v.ids.txt has 2 ids"):
        open_vectors(write_npy(tmp_path / "npy", ids=["a", "b"]))


def test_files_that_are_cut_off_or_something_else(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "whole.parquet", row_group_size=100).read_bytes()
    (tmp_path / "end.parquet").write_bytes(whole[:-200])
    # The footer is whole, pages in the middle are not.
    middle = len(whole) // 2
    (tmp_path / "middle.parquet").write_bytes(whole[: middle - 900] + b"\xff" * 1800 + whole[middle + 900 :])
    npy = write_npy(tmp_path / "npy")
    npy.write_bytes(npy.read_bytes()[:-100])
    for file in (tmp_path / "end.parquet", tmp_path / "middle.parquet", npy):
        with pytest.raises(DataError, match="could not be read"):
            open_vectors(file, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").glob("*")) == []
    pq.write_table(pa.table({"vector": VECTORS.tolist()}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no column of ids"):
        open_vectors(tmp_path / "x.parquet")
    pq.write_table(pa.table({"item_id": IDS}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="no column of lists"):
        open_vectors(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="there is no file"):
        open_vectors(tmp_path / "none.npy")
    with pytest.raises(DataError, match="read in parts"):
        open_vectors(tmp_path / "v.csv")
    with pytest.raises(DataError, match=r"no \.parquet file"):
        open_vectors(npy.parent)
    with pytest.raises(DataError, match="of shape"):
        open_vectors(write_npy(tmp_path / "npy", VECTORS[0]))
    with pytest.raises(DataError, match="has no rows"):
        open_vectors(write_parquet(tmp_path / "x.parquet", VECTORS[:0].tolist(), []))


# --- fitting and encoding


def test_a_mapped_file_is_fitted_as_the_same_array_in_memory(source: MappedVectors, fitted: CapsuleTokenizer) -> None:
    held = MappedVectors(np.array(source.vectors_ND), source.ids)
    assert tokenizer_key(small().fit(held.table(), seed=1)) == tokenizer_key(fitted)
    assert tokenizer_key(small().fit(held.table(), seed=2)) != tokenizer_key(fitted)


def test_shards_are_the_whole(source: MappedVectors, fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    done = encode_shards(fitted, source, tmp_path / "out", rows_per_shard=500)
    assert (done.shards, done.written, done.kept, done.items, done.complete) == (3, 3, 0, ITEMS, True)
    frame, table = read(tmp_path / "out"), source.table()
    assert frame["item_id"].to_list() == IDS
    assert frame["codes"].to_list() == [row.tolist() for row in fitted.encode(table)]
    trace = fitted.trace(table)
    for row, lengths in enumerate(fitted.stop(trace).lengths[:50]):
        np.testing.assert_array_equal(frame["confidences"][row].to_numpy(), trace.confidence[row, :lengths])
    assert frame.schema == {"item_id": pl.String, "codes": pl.List(pl.Int32), "confidences": pl.List(pl.Float32)}
    assert json.loads((tmp_path / "out" / "shards.json").read_text())["items"] == ITEMS


def resident(file: Path) -> int:
    """Kilobytes of a mapped file that are in this process's memory."""
    held, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(file))
        elif ours and line.startswith("Rss:"):
            held += int(line.split()[1])
    return held


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_the_vectors_of_finished_shards_are_no_longer_in_memory(fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    """A worker makes any number of shards; what it has read for them must not stay."""
    npy = write_npy(tmp_path / "own")
    source = open_vectors(npy)
    np.asarray(source.vectors_ND).sum()
    assert resident(npy) > 0
    encode_shards(fitted, source, tmp_path / "out", rows_per_shard=500)
    assert resident(npy) == 0
    np.testing.assert_array_equal(source.vectors_ND, np.load(npy))


@settings(max_examples=6)
@given(rows=st.integers(90, 1_400), parts=st.integers(1, 3), backwards=st.booleans())
def test_size_order_and_number_of_shards_do_not_matter(
    rows: int,
    parts: int,
    backwards: bool,
    source: MappedVectors,
    fitted: CapsuleTokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    out = tmp_path_factory.mktemp("shards")
    order = [(i, parts) for i in range(1, parts + 1)]
    done = [encode_shards(fitted, source, out, rows_per_shard=rows, part=p) for p in (order, order[::-1])[backwards]]
    shards = -(-ITEMS // rows)
    assert [d.complete for d in done][-1]
    assert sum(d.written for d in done) == shards
    whole = tmp_path_factory.mktemp("whole")
    encode_shards(fitted, source, whole)
    assert read(out).equals(read(whole))


def test_a_tokenizer_without_confidences(source: MappedVectors, tmp_path: Path) -> None:
    plain = ResidualKMeans(codebooks=(8, 8)).fit(source.table())
    encode_shards(plain, source, tmp_path, rows_per_shard=700)
    frame = read(tmp_path)
    assert frame["codes"].to_list() == [row.tolist() for row in plain.encode(source.table())]
    assert frame["confidences"].null_count() == ITEMS


def test_a_stopped_run_goes_on(source: MappedVectors, fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    encode_shards(fitted, source, out, rows_per_shard=300)
    whole, times = bytes_of(out), {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    (out / "codes-00001.parquet").unlink()
    cut = out / "codes-00003.parquet"
    cut.write_bytes(cut.read_bytes()[:-30])
    (out / "shards.json").unlink()
    # What a killed process leaves of a file that it was writing.
    (out / ".codes-00001.parquet.0123456789abcdef").write_bytes(b"PAR1 half")
    done = encode_shards(fitted, source, out, rows_per_shard=300)
    assert (done.written, done.kept, done.complete) == (2, 3, True)
    assert {n: b for n, b in bytes_of(out).items() if not n.startswith(".")} == whole
    for name in ("codes-00000.parquet", "codes-00002.parquet", "codes-00004.parquet"):
        assert (out / name).stat().st_mtime_ns == times[name], "a finished shard is not written again"
    assert read(out).height == ITEMS


def test_shards_of_other_settings_are_not_kept(source: MappedVectors, fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    encode_shards(fitted, source, tmp_path, rows_per_shard=500)
    longer = small(confidence=1.0).load_state(fitted.state())
    done = encode_shards(longer, source, tmp_path, rows_per_shard=500, part=(1, 2))
    assert (done.written, done.complete) == (2, False), "the shard between them is still the old one's"
    assert not (tmp_path / "shards.json").exists()
    assert encode_shards(longer, source, tmp_path, rows_per_shard=500).written == 1
    assert read(tmp_path)["codes"].list.len().min() == 3
    changed = np.array(source.vectors_ND)
    changed[700] *= -1
    done = encode_shards(longer, MappedVectors(changed, source.ids), tmp_path, rows_per_shard=500)
    assert (done.written, done.kept) == (1, 2), "only the shard whose vectors changed"


def test_more_items_later(source: MappedVectors, fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    some = MappedVectors(source.vectors_ND[:1000], source.ids.part(0, 1000))
    encode_shards(fitted, some, tmp_path, rows_per_shard=400)
    done = encode_shards(fitted, source, tmp_path, rows_per_shard=400)
    assert (done.kept, done.written) == (2, 2)
    with pytest.raises(ArtifactError, match=r"codes-00003.parquet, but this input makes 3 shards"):
        encode_shards(fitted, some, tmp_path, rows_per_shard=400)


def test_encode_refuses(source: MappedVectors, fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    wide = MappedVectors(np.ones((3, WIDTH + 1), dtype=np.float32), source.ids.part(0, 3))
    with pytest.raises(DataError, match="13 wide, expected 12"):
        encode_shards(fitted, wide, tmp_path / "out")
    broken = MappedVectors(with_value(np.nan, [1_000]), source.ids)
    with pytest.raises(DataError, match="NaN or infinity: 'item-1000'"):
        encode_shards(fitted, broken, tmp_path / "out", rows_per_shard=500)
    assert sorted(bytes_of(tmp_path / "out")) == ["codes-00000.parquet", "codes-00001.parquet"]
    with pytest.raises(ConfigError, match="rows_per_shard must be at least 1, got 0"):
        encode_shards(fitted, source, tmp_path / "out", rows_per_shard=0)
    with pytest.raises(ConfigError, match="part 3/2"):
        encode_shards(fitted, source, tmp_path / "out", part=(3, 2))
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="is not a shard"):
        encode_shards(fitted, source, tmp_path)
    with pytest.raises(ArtifactError, match="not a folder"):
        encode_shards(fitted, source, tmp_path / "file")


# --- in processes of their own

PART = """
import sys
from pathlib import Path
from capsid.encode.large_vectors import open_vectors
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.scale.codes import encode_shards
tokenizer, vectors, out, part = sys.argv[1:]
fitted = ItemTokenizer.from_pretrained(tokenizer).tokenizer_
encode_shards(fitted, open_vectors(Path(vectors)), Path(out), rows_per_shard=200, part=(int(part), 2))
"""

# The matrix is 200 MB. What counts is memory that cannot be taken back: pages of a mapped file can.
BOUNDED = """
import json, re, sys, threading, time
from pathlib import Path
from capsid.encode.large_vectors import open_vectors
from capsid.tokenize.capsules import stage_one
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer
from capsid.scale.codes import encode_shards
from capsid.train.options import Training
import numpy, polars, torch, pyarrow.parquet

def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

peaks, name, over = {}, "map", False
def watch():
    while not over:
        peaks[name] = max(peaks.get(name, 0), held())
        time.sleep(0.01)
torch.set_num_threads(1)

stage_one.SAMPLE_ROWS = 500

def whole_way(file):
    global name
    name = "map"
    source = open_vectors(folder / file, cache=folder / "cache")
    name = "fit"
    training = Training(steps=4, batch_size=64, ema=0.0, validate_every=2)
    tokenizer = CapsuleTokenizer(codebooks=(4,), projection=8, training=training).fit(source.table())
    name = "encode"
    encode_shards(tokenizer, source, folder / f"{file}.codes", rows_per_shard=8192)

folder = Path(sys.argv[1])
whole_way("small.parquet")  # libraries take what they keep for good
before, thread = held(), threading.Thread(target=watch)
thread.start()
whole_way("large.parquet")
over = True
thread.join()
print(json.dumps({n: round(p - before) for n, p in peaks.items()}))
"""


def run(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_are_one(source: MappedVectors, fitted: CapsuleTokenizer, tmp_path: Path) -> None:
    from capsid.tokenize.item_tokenizer import ItemTokenizer

    kept = ItemTokenizer(tokenizer=small()).fit(source.table(), seed=1)
    kept.save_pretrained(tmp_path / "tok")
    vectors = write_npy(tmp_path / "own")
    both = [run(PART, tmp_path / "tok", vectors, tmp_path / "out", part) for part in (1, 2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    encode_shards(fitted, source, tmp_path / "one", rows_per_shard=200)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "one")
    assert (tmp_path / "out" / "shards.json").exists(), "whoever ends last says that all is there"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the kernel's account of memory")
def test_memory_stays_below_the_matrix(tmp_path: Path) -> None:
    width, step = 1024, 2_000
    block = np.random.default_rng(0).random(size=(step, width), dtype=np.float32) - 0.5
    lists = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width)
    schema = pa.schema({"item_id": pa.string(), "vector": lists.type})
    for name, rows in (("small", step), ("large", 50 * step)):
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", schema, compression="none", use_dictionary=False) as writer:
            for start in range(0, rows, step):
                ids = pa.array([str(i) for i in range(start, start + step)])
                writer.write_batch(pa.record_batch([ids, lists], schema=schema))
    assert (tmp_path / "large.parquet").stat().st_size > 400e6
    process = run(BOUNDED, tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    grown = json.loads(out)
    assert set(grown) == {"map", "fit", "encode"}
    # About 60 are usual; a mask of the matrix, a byte a number, took 130.
    assert max(grown.values()) < 110, f"{grown} MB for a matrix of 400 MB"
