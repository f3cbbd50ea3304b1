"""`--vectors FILE`: a shop's own vectors in every format, with clear errors and new items later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli_world import capsid, contents, settings

from capsid.encode import precomputed as matrix_files
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.recommender import Recommender

IDS = [f"i{n}" for n in range(64)]
VECTORS = np.random.default_rng(0).normal(size=(64, 6))


def write(path: Path, ids: list[str], vectors_ND: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, item_id=np.array(ids), vectors=vectors_ND)
    elif path.suffix == ".npy":
        np.save(path, vectors_ND)
        path.with_suffix(".ids.txt").write_text("\n".join(ids))
    elif path.suffix == ".parquet":
        pl.DataFrame({"item_id": ids, "vector": vectors_ND.tolist()}).write_parquet(path)
    else:
        columns = {f"d{n}": vectors_ND[:, n] for n in range(vectors_ND.shape[1])}
        pl.DataFrame({"item_id": ids, **columns}).write_csv(path)
    return path


def tokenize(shop: Path, file: Path, *more: object):  # type: ignore[no-untyped-def]
    out = file.with_name("tok")
    sizes = ["--set", "tokenizer.codebooks=4,4", "--set", "tokenizer.restarts=1"]
    return capsid("tokenizer", "fit", "rq-kmeans", "--data", shop, "--out", out, "--vectors", file, *sizes, *more)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".parquet", ".csv"])
def test_every_format_gives_the_same_ids(ending: str, shop: Path, tmp_path: Path) -> None:
    exported = []
    order = np.random.default_rng(1).permutation(64)
    for number, rows in enumerate((np.arange(64), order)):
        (tmp_path / str(number)).mkdir()
        file = write(tmp_path / str(number) / f"v{ending}", [IDS[i] for i in rows], VECTORS[rows])
        answer = tokenize(shop, file)
        assert answer.code == 0, answer.err
        exported.append(capsid("tokenizer", "export", tmp_path / str(number) / "tok", "--out", "-").out)
    assert exported[0] == exported[1] != ""


@pytest.mark.parametrize("recipe", ["capsid", "rq-kmeans"])
def test_a_fit_on_data_writes_the_codes_that_encode_writes(recipe: str, shop: Path, tmp_path: Path) -> None:
    """Also where the file is in another order than the items: shards are in the order of the items."""
    wide = np.random.default_rng(2).normal(size=(64, 12)).astype(np.float32)
    file = write(tmp_path / "v.npy", IDS[::-1], wide[::-1])
    options = ("--vectors", file, "--out", tmp_path / "tok", "--codes", tmp_path / "codes")
    sizes = ("--set", "tokenizer.codebooks=4,4,4")
    answer = capsid("tokenizer", "fit", recipe, "--data", shop, *options, *sizes)
    assert answer.code == 0, answer.err
    ordered = write(tmp_path / "ordered.npy", IDS, wide)
    again = capsid("vectors", "encode", tmp_path / "tok", "--vectors", ordered, "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert contents(tmp_path / "codes") == contents(tmp_path / "again")


def test_codes_of_ids_without_vectors(shop: Path, tmp_path: Path) -> None:
    options = ("--data", shop, "--out", tmp_path / "tok", "--codes", tmp_path / "codes")
    answer = capsid("tokenizer", "fit", "frequency", *options)
    assert answer.code == 2
    assert "makes ids without vectors" in answer.err
    assert not list(tmp_path.iterdir()), "it is refused before anything is fitted"


def test_a_large_file_is_mapped_and_gives_the_same_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "v.npy", IDS, VECTORS.astype(np.float32))
    held, ids = matrix_files.read_matrix(file)
    monkeypatch.setattr(matrix_files, "HELD_BYTES", 100)
    mapped, again = matrix_files.read_matrix(file)
    assert (type(held), type(mapped), ids) == (np.ndarray, np.memmap, again)
    np.testing.assert_array_equal(held, mapped)


BROKEN = {
    "NaN": (IDS, np.where(np.arange(64)[:, None] == 3, np.nan, VECTORS), "1 items hold NaN or infinity: 'i3'"),
    "an id twice": (["i1", *IDS[1:]], VECTORS, "id 'i1' occurs twice"),
    "ids missing": (IDS[:60], VECTORS[:60], "has no vector for 4 of 64 items: 'i60', 'i61', 'i62', 'i63'"),
    "zeros": (IDS, VECTORS * (np.arange(64)[:, None] != 5), "are all zeros: 'i5'"),
    "no columns": (IDS, VECTORS[:, :0], "vectors are 0 wide"),
    "a cube": (IDS, VECTORS[:, :, None], "must be a matrix of numbers, got float64 of shape (64, 6, 1)"),
    "ids too few": (IDS[:9], VECTORS, "has 64 vectors but 9 ids"),
    "words": (IDS, VECTORS.astype(str), "must be a matrix of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_vectors_are_one_sentence_before_any_work(name: str, shop: Path, tmp_path: Path) -> None:
    ids, vectors_ND, message = BROKEN[name]
    answer = tokenize(shop, write(tmp_path / "v.npz", list(ids), vectors_ND))
    assert answer.code == 1
    assert message in answer.err
    assert answer.err.count("hint: ") == 1
    assert not (tmp_path / "tok").exists()


def test_other_files_are_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("item_id,d0\ni0,1.0\ni1,high\n")
    assert "row 2: 'high' in column 'd0' is not a number" in tokenize(shop, tmp_path / "v.csv").err
    (tmp_path / "v.txt").write_text("1 2 3")
    assert "allowed endings: .npy, .npz, .parquet, .csv" in tokenize(shop, tmp_path / "v.txt").err
    assert "there is no file" in tokenize(shop, tmp_path / "none.npz").err
    by_name = capsid("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", "--set", "encoder=precomputed")
    assert (by_name.code, "encoder.path must name a file" in by_name.err) == (2, True)
    joined = capsid("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", "--set", "encoder=joined")
    assert (joined.code, "has no default for parts" in joined.err) == (2, True)
    without = capsid("fit", "sasrec", "--data", shop, "--out", tmp_path / "run", "--vectors", tmp_path / "v.csv")
    assert (without.code, "makes ids without vectors" in without.err) == (2, True)


def test_a_run_on_own_vectors_gets_new_items_later(shop: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "v.npz", IDS, VECTORS)
    answer = capsid("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", "--vectors", file, *settings())
    assert answer.code == 0, answer.err
    by_setting = ["--set", "encoder=precomputed", "--set", f"encoder.path={file}"]
    assert "already finished" in capsid(
        "fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", *by_setting, *settings()
    ).err  # fmt: skip
    (tmp_path / "new.csv").write_text("item_id,title\nnew,a new one\n")
    add = ["tokenizer", "add", tmp_path / "run", "--items", tmp_path / "new.csv", "--out", tmp_path / "more"]
    refused = capsid(*add)
    assert (refused.code, "has no vector for 1 of 1 items: 'new'" in refused.err) == (1, True)
    wide = write(tmp_path / "wide.npz", ["new"], np.ones((1, 9)))
    assert "the vectors are 9 wide, those of the fit are 6" in capsid(*add, "--vectors", wide).err
    more = write(tmp_path / "more.npz", ["new", "i0"], np.stack([VECTORS[5], VECTORS[6]]))
    assert capsid(*add, "--vectors", more).code == 0
    grown = Recommender.from_pretrained(tmp_path / "more")
    ids = grown.fitted.tokenizer.ids
    row = {name: list(ids.codes[ids.items.number(name)])[:2] for name in ("new", "i5", "i0")}
    assert row["new"] == row["i5"]
    assert "new" in grown.recommend(["i1"], 65).items
    encoder = grown.fitted.tokenizer.encoder_
    assert isinstance(encoder, PrecomputedEncoder)
    np.testing.assert_allclose(encoder.remembered(["i0"])[0], VECTORS[0], rtol=1e-6)
