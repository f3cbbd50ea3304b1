"""`capsid vectors`: from a file of vectors to a tokenizer that others can open, and to shards of codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli_world import capsid, contents

ITEMS = 400
SMALL = [
    part
    for setting in ("codebooks=8,8,8", "training.steps=4", "training.batch_size=64")
    for part in ("--set", f"tokenizer.{setting}")
]


def vectors() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 6))
    return (centres[rng.integers(0, 10, ITEMS)] + 0.3 * rng.normal(size=(ITEMS, 6))).astype(np.float32)


def write(path: Path, values: np.ndarray) -> Path:
    pl.DataFrame({"item_id": [f"i{n}" for n in range(len(values))], "vector": values}).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("own") / "items.parquet", vectors())


@pytest.fixture(scope="module")
def tokenizer(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tok") / "ids"
    answer = capsid("vectors", "fit", "capsid", "--vectors", file, "--out", out, *SMALL)
    assert answer.code == 0, answer.err
    assert f"capsid vectors encode {out} --vectors {file}" in answer.out
    assert [p.name for p in out.parent.iterdir()] == ["ids"], "no checkpoint is left"
    return out


def test_what_was_fitted_is_a_tokenizer_as_any(tokenizer: Path) -> None:
    report = capsid("tokenizer", "report", tokenizer, "--json").json
    assert report["items"] == ITEMS
    assert 1 <= report["mean_length"] <= 3
    assert 0 < report["reconstruction"]["hard"][-1] < 1, "the vectors are kept for the report"
    about = capsid("tokenizer", "inspect", tokenizer, "i5", "--json").json
    assert about["item"] == "i5"


def test_a_report_uses_the_vectors_of_some_items(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from capsid.cli import tokenizer as verb

    every = capsid("tokenizer", "report", tokenizer, "--json").json
    monkeypatch.setattr(verb, "REPORT_ITEMS", 50)
    some = capsid("tokenizer", "report", tokenizer, "--json").json
    assert (every["sampled_items"], some["sampled_items"]) == (None, 50)
    assert some["reconstruction"] != every["reconstruction"]
    assert some["length_histogram"] == every["length_histogram"], "counts are those of all items"


def test_the_codes_are_those_of_the_tokenizer(tokenizer: Path, file: Path, tmp_path: Path) -> None:
    from capsid.tokenize.item_tokenizer import ItemTokenizer

    answer = capsid("vectors", "encode", tokenizer, "--vectors", file, "--out", tmp_path / "codes", "--shard-rows", 150)
    assert answer.code == 0, answer.err
    assert "400 items in 3 shards" in answer.out
    frame = pl.read_parquet(tmp_path / "codes" / "*.parquet")
    ids = ItemTokenizer.from_pretrained(tokenizer).ids
    assert frame["item_id"].to_list() == list(ids.items)
    assert frame["codes"].to_list() == [row.tolist() for row in ids.codes]
    assert frame["confidences"].list.len().to_list() == ids.codes.lengths.tolist()
    before = contents(tmp_path / "codes")
    again = capsid(
        *("vectors", "encode", tokenizer, "--vectors", file, "--out", tmp_path / "codes"),
        *("--shard-rows", 150, "--json"),
    ).json
    assert (again["written"], again["kept"], again["complete"]) == (0, 3, True)
    assert contents(tmp_path / "codes") == before


@pytest.mark.parametrize("recipe", ["capsid", "rq-kmeans"])
def test_a_fit_writes_the_codes_that_encode_writes(recipe: str, tmp_path: Path) -> None:
    # Codes are equal to the last bit from nine numbers per vector on.
    file = write(tmp_path / "items.parquet", np.random.default_rng(1).normal(size=(200, 12)).astype(np.float32))
    asked = ("--vectors", file, "--shard-rows", 80)
    options = ("--out", tmp_path / "tok", "--codes", tmp_path / "codes", *SMALL[: 8 if recipe == "capsid" else 2])
    answer = capsid("vectors", "fit", recipe, *asked, *options)
    assert answer.code == 0, answer.err
    assert f"capsid vectors ids {tmp_path / 'tok'} --codes {tmp_path / 'codes'}" in answer.out
    assert capsid("vectors", "encode", tmp_path / "tok", *asked, "--out", tmp_path / "again").code == 0
    assert contents(tmp_path / "codes") == contents(tmp_path / "again")


def test_parts_make_the_whole(tokenizer: Path, file: Path, tmp_path: Path) -> None:
    def part(name: str, out: str) -> dict:
        options = ("--out", tmp_path / out, "--shard-rows", 100, "--part", name, "--json")
        return capsid("vectors", "encode", tokenizer, "--vectors", file, *options).json

    assert part("2/2", "two")["complete"] is False
    assert part("1/2", "two") == {
        "folder": str(tmp_path / "two"),
        "shards": 4,
        "written": 2,
        "kept": 0,
        "items": 200,
        "complete": True,
    }
    part("1/1", "one")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_npy_a_seed_and_no_copy(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors())
    keys = []
    for seed in (0, 0, 1):
        options = ("--out", tmp_path / "tok", "--seed", seed, "--no-vectors", "--json", "--force", *SMALL)
        answer = capsid("vectors", "fit", "capsid", "--vectors", tmp_path / "v.npy", *options)
        keys.append(answer.json["key"])
        assert "named by their number" in answer.err
    assert keys[0] == keys[1] != keys[2]
    assert not (tmp_path / "tok" / "vectors.npy").exists()
    assert capsid("tokenizer", "report", tmp_path / "tok", "--json").json["intra_code_similarity"] is None


def test_other_recipes(file: Path, tmp_path: Path) -> None:
    options = ("--vectors", file, "--out", tmp_path / "tok", "--set", "tokenizer.codebooks=8,8")
    assert capsid("vectors", "fit", "rq-kmeans", *options).code == 0
    assert capsid("vectors", "encode", tmp_path / "tok", *options[:2], "--out", tmp_path / "codes").code == 0
    frame = pl.read_parquet(tmp_path / "codes" / "*.parquet")
    assert frame["codes"].list.len().unique().to_list() == [2], "codes without the suffix"


def refused(answer, code: int, *texts: str) -> None:  # type: ignore[no-untyped-def]
    assert answer.code == code
    for text in texts:
        assert text in answer.err
    assert "Traceback" not in answer.err


def test_fit_refuses(file: Path, tmp_path: Path) -> None:
    def fit(recipe: str, source: object, out: str = "tok"):  # type: ignore[no-untyped-def]
        return capsid("vectors", "fit", recipe, "--vectors", source, "--out", tmp_path / out, *SMALL[:2])

    broken = vectors()
    broken[7, 2] = np.nan
    refused(fit("capsid", write(tmp_path / "nan.parquet", broken)), 1, "NaN or infinity: 'i7'", "hint:")
    np.save(tmp_path / "nan.npy", broken)
    refused(fit("capsid", tmp_path / "nan.npy"), 1, "NaN or infinity: '7'")
    refused(fit("capsid", tmp_path / "none.parquet"), 1, "there is no file")
    (tmp_path / "cut.parquet").write_bytes(file.read_bytes()[:-100])
    refused(fit("capsid", tmp_path / "cut.parquet"), 1, "could not be read", "truncated")
    refused(fit("capsids", file), 2, "did you mean 'capsid'")
    (tmp_path / "taken").write_text("mine")
    refused(fit("capsid", file, "taken"), 1, "not a folder")
    answer = capsid("vectors", "fit", "sasrec", "--vectors", file, "--out", tmp_path / "tok")
    refused(answer, 2, "'sasrec' makes ids without vectors")
    assert not (tmp_path / "tok").exists()


def test_encode_refuses(tokenizer: Path, file: Path, tmp_path: Path) -> None:
    def encode(source: object, *options: object, tok: Path = tokenizer):  # type: ignore[no-untyped-def]
        return capsid("vectors", "encode", tok, "--vectors", source, "--out", tmp_path / "codes", *options)

    refused(encode(write(tmp_path / "wide.parquet", np.ones((3, 9), dtype=np.float32))), 1, "9 wide, expected 6")
    refused(encode(file, "--part", "2"), 2, "--part must be I/N, got '2'", "1/2")
    refused(encode(file, "--part", "0/2"), 2, "part 0/2 does not exist")
    refused(encode(file, "--shard-rows", 0), 2, "--shard-rows must be at least 1, got 0")
    refused(encode(file, tok=tmp_path / "nothing"), 1, "there is no folder")
    assert not (tmp_path / "codes").exists()
    assert encode(file, "--shard-rows", 100).code == 0
    refused(encode(file, "--shard-rows", 300), 1, "but this input makes 2 shards", "choose another --out")


def test_ids_of_all_rows(tokenizer: Path, file: Path, tmp_path: Path) -> None:
    codes = ("vectors", "encode", tokenizer, "--vectors", file, "--out", tmp_path / "codes", "--shard-rows", 150)
    assert capsid(*codes).code == 0
    ids = ("vectors", "ids", tokenizer, "--codes", tmp_path / "codes", "--out", tmp_path / "ids")
    about = capsid(*ids, "--json").json
    assert (about["items"], about["shards"], about["complete"]) == (ITEMS, 3, True)
    assert about["collision_rate"] == capsid("tokenizer", "report", tokenizer, "--json").json["collision_rate"]
    exported = capsid("tokenizer", "export", tokenizer, "--out", tmp_path / "ids.jsonl")
    assert exported.code == 0
    tokens = pl.read_ndjson(tmp_path / "ids.jsonl")["tokens"].to_list()
    assert pl.read_parquet(tmp_path / "ids" / "ids-*.parquet")["tokens"].to_list() == tokens
    assert "400 items in 3 shards" in capsid(*ids).out


def test_embed_reads_any_items(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"item_id": "a", "title": "red lamp"}\n{"item_id": "b", "title": "desk"}\n')
    command = ("vectors", "embed", "--items", tmp_path / "items.jsonl", "--out", tmp_path / "text", "--json")
    assert capsid(*command).json["vectors"] == 2
    assert capsid(*command).json["kept"] == 1
    assert pl.read_parquet(tmp_path / "text" / "*.parquet")["item_id"].to_list() == ["a", "b"]
    refused(capsid(*command[:2], "--out", tmp_path / "x"), 2, "give either --data or --items")
    refused(capsid(*command, "--fields", "price"), 2, "no text field 'price'", "title")
    refused(capsid(*command, "--max-tokens", 1), 2, "--max-tokens must be at least 3, got 1")
    refused(capsid(*command, "--model", "./none"), 2, "text model './none' could not be loaded")


@pytest.mark.parametrize("verb", ["fit", "embed", "encode", "ids"])
def test_help_has_examples(verb: str) -> None:
    shown = capsid("vectors", verb, "--help").out
    assert f"capsid vectors {verb} " in shown.split("Examples:")[1]
