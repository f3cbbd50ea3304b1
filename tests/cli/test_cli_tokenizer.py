"""`capsid tokenizer` on a run and on a tokenizer of its own: the keys that others rely on, and true numbers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from cli_world import capsid, lines, settings

REPORT = {
    "items",
    "collision_rate",
    "collision_rate_final",
    "items_sharing_an_id",
    "utilization",
    "gini",
    "intra_code_similarity",
    "mean_length",
    "length_histogram",
    "stop_causes",
    "winner_mass",
    "norm_increasing_share",
    "reconstruction",
}


@pytest.fixture(scope="module")
def tokenizer(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tok") / "ids"
    answer = capsid("tokenizer", "fit", "rq-kmeans", "--data", shop, "--out", out, *settings())
    assert answer.code == 0, answer.err
    assert f"capsid tokenizer report {out}" in answer.out
    return out


@pytest.fixture(scope="module")
def exported(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    file = tmp_path_factory.mktemp("export") / "ids.jsonl"
    assert capsid("tokenizer", "export", fitted, "--out", file).code == 0
    return lines(file)


def test_export(exported: list[dict]) -> None:
    assert [row["item"] for row in exported] == [f"i{i}" for i in range(64)]
    for row in exported:
        assert set(row) == {"item", "codes", "tokens", "confidences"}
        assert row["confidences"] is None
        # padding 0, end 1, then 8 codes a depth, then the suffix block
        first, second = row["codes"]
        assert row["tokens"][:2] == [2 + first, 10 + second]
        assert row["tokens"][2] >= 18
    assert len({tuple(row["tokens"]) for row in exported}) == 64


def test_report(fitted: Path, exported: list[dict]) -> None:
    report = capsid("tokenizer", "report", fitted, "--json").json
    assert set(report) >= REPORT
    assert report["items"] == 64
    groups = Counter(tuple(row["codes"]) for row in exported)
    assert report["collision_rate"] == pytest.approx(1 - len(groups) / 64)
    assert report["collision_rate_final"] == 0
    assert report["items_sharing_an_id"] == 0
    assert report["mean_length"] == 2
    assert report["length_histogram"] == {"2": 64}
    used = [len({row["codes"][d] for row in exported}) / 8 for d in (0, 1)]
    assert report["utilization"] == pytest.approx(sum(used) / 2)
    assert report["utilization_by_depth"] == pytest.approx(used)
    assert 0 <= report["gini"] < 1
    assert report["intra_code_similarity"] > report["mean_similarity"]
    assert report["stop_causes"] is report["winner_mass"] is report["norm_increasing_share"] is None
    assert report["reconstruction"]["soft"] is None
    first, second = report["reconstruction"]["hard"]
    assert 0 < second < first < 1
    assert "collision rate" in capsid("tokenizer", "report", fitted).out


def test_a_tokenizer_alone_gives_the_same_ids(
    tokenizer: Path, fitted: Path, exported: list[dict], tmp_path: Path
) -> None:
    assert capsid("tokenizer", "export", tokenizer, "--out", tmp_path / "ids.jsonl").code == 0
    assert lines(tmp_path / "ids.jsonl") == exported
    reports = [capsid("tokenizer", "report", path, "--json").json for path in (tokenizer, fitted)]
    assert reports[0] == reports[1]


def test_a_tokenizer_without_vectors_reports_null(shop: Path, tmp_path: Path) -> None:
    assert capsid("tokenizer", "fit", "sasrec", "--data", shop, "--out", tmp_path / "t").code == 0
    report = capsid("tokenizer", "report", tmp_path / "t", "--json").json
    assert report["collision_rate"] == 0
    assert report["intra_code_similarity"] is None
    assert report["reconstruction"] == {"soft": None, "hard": None}


@pytest.mark.parametrize("where", ["tokenizer", "fitted"])
def test_inspect(where: str, exported: list[dict], request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(where)
    about = capsid("tokenizer", "inspect", path, "i5", "--json").json
    row = exported[5]
    assert {key: about[key] for key in row} == row
    assert about["title"].startswith("amber")
    for depth, level in enumerate(about["prefixes"], start=1):
        assert level["codes"] == row["codes"][:depth]
        sharing = [r["item"] for r in exported if r["codes"][:depth] == level["codes"]]
        assert level["items"] == len(sharing)
        assert {e["item"] for e in level["examples"]} <= set(sharing) - {"i5"}
    shown = capsid("tokenizer", "inspect", path, "i5").out
    assert " ".join(map(str, row["codes"])) in shown


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_encode_keeps_known_ids_and_places_new_items(
    tokenizer: Path, exported: list[dict], tmp_path: Path, form: str
) -> None:
    import polars as pl

    about = capsid("tokenizer", "inspect", tokenizer, "i5", "--json").json
    frame = pl.DataFrame({"item_id": ["i5", "new"], "title": ["anything", about["title"]]})
    file = tmp_path / f"items.{form}"
    {"jsonl": frame.write_ndjson, "csv": frame.write_csv, "parquet": frame.write_parquet}[form](file)
    answer = capsid("tokenizer", "encode", tokenizer, "--items", file)
    assert answer.code == 0, answer.err
    known, new = (json.loads(line) for line in answer.out.splitlines())
    assert known == exported[5]
    assert set(new) == set(known)
    assert len(new["codes"]) == 2
    assert new["tokens"] not in [row["tokens"] for row in exported]
    assert "1 known items keep their ids, 1 are new" in answer.err
    assert capsid("tokenizer", "encode", tokenizer, "--items", file, "--out", tmp_path / "out.jsonl").code == 0
    assert (tmp_path / "out.jsonl").read_text() == answer.out
