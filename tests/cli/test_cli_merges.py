"""`capsid tokenizer` where tokens are merged: the list of merges, report, inspect, export, new items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_world import capsid, lines

SMALL = (
    "tokenizer.codebooks=8,6,4",
    "tokenizer.training.steps=10",
    "tokenizer.training.batch_size=32",
    "merges.size=10",
    "merges.min_count=5",
    "merges.theta=0.5,0.0",
    "merges.training.steps=40",
)
FIRST = 2 + 8 + 6 + 4


@pytest.fixture(scope="module")
def merged(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merged") / "ids"
    options = [part for setting in SMALL for part in ("--set", setting)]
    answer = capsid("tokenizer", "fit", "capsid-bpe", "--data", shop, "--out", out, *options)
    assert answer.code == 0, answer.err
    assert "merges: " in answer.err
    assert [p.name for p in out.parent.iterdir()] == ["ids"], "no checkpoint is left"
    return out


@pytest.fixture(scope="module")
def exported(merged: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    file = tmp_path_factory.mktemp("export") / "ids.jsonl"
    assert capsid("tokenizer", "export", merged, "--out", file).code == 0
    return lines(file)


def unmerged(codes: list[int]) -> list[int]:
    return [base + code for base, code in zip((2, 10, 16), codes)]


def test_merges_and_export_agree(merged: Path, exported: list[dict]) -> None:
    found = capsid("tokenizer", "merges", merged, "--top", 100, "--json").json
    assert 0 < found["count"] == len(found["merges"]) <= 10
    codes_of = {m["token"]: (m["depth"], m["codes"]) for m in found["merges"]}
    assert min(codes_of) >= FIRST
    for row in exported:
        written = []
        for token in row["tokens"]:
            depth, codes = codes_of.get(token, (0, []))
            written += unmerged([0] * (depth - 1) + codes)[depth - 1 :] if codes else [token]
        assert written == unmerged(row["codes"])
        assert len(row["confidences"]) == len(row["codes"])
    assert any(token >= FIRST for row in exported for token in row["tokens"])
    for m in found["merges"]:
        carry = {row["item"] for row in exported if m["token"] in row["tokens"]}
        assert m["items"] == len(carry)
        assert {e["item"] for e in m["examples"]} <= carry
        assert len(m["examples"]) == min(3, len(carry))
        assert set(m["tiers"]) == {"head", "torso", "tail"}
    taken = [m["taken"] for m in found["merges"]]
    assert taken == sorted(taken, reverse=True)
    before = sum(len(row["codes"]) for row in exported) / 64
    after = sum(len(row["tokens"]) for row in exported) / 64
    assert found["tokens_an_item"] == pytest.approx({"before": before, "after": after})
    shown = capsid("tokenizer", "merges", merged, "--top", 2).out
    assert f"{found['count']} merges, {before:.3f} -> {after:.3f} tokens per item" in shown
    assert f"token {found['merges'][0]['token']} = " in shown
    assert found["merges"][0]["examples"][0]["title"] in shown
    assert shown.count("token ") == 2


def test_report(merged: Path, exported: list[dict], fitted: Path) -> None:
    report = capsid("tokenizer", "report", merged, "--json").json
    assert report["mean_tokens"] == pytest.approx(sum(len(row["tokens"]) for row in exported) / 64)
    assert report["mean_length"] == pytest.approx(sum(len(row["codes"]) for row in exported) / 64)
    merges = report["merges"]
    assert {"count", "used", "candidates", "above_theta", "precision", "recall", "tokens", "tiers"} == set(merges)
    assert 0 < merges["used"] <= merges["count"] <= merges["candidates"]
    assert merges["tokens"]["item_after"] == pytest.approx(report["mean_tokens"])
    shown = capsid("tokenizer", "report", merged).out
    assert "merges: candidates" in shown
    assert "merges: tokens per interaction, tail" in shown
    plain = capsid("tokenizer", "report", fitted, "--json").json
    assert plain["merges"] is None
    assert plain["mean_tokens"] == 3, "two codes and a suffix"


def test_inspect(merged: Path, exported: list[dict], fitted: Path) -> None:
    row = next(row for row in exported if max(row["tokens"]) >= FIRST)
    about = capsid("tokenizer", "inspect", merged, row["item"], "--json").json
    assert {key: about[key] for key in row} == row
    assert about["unmerged"] == unmerged(row["codes"]) == [level["token"] for level in about["depths"]]
    assert [s["token"] for s in about["subwords"]] == row["tokens"]
    assert [code for s in about["subwords"] for code in s["codes"]] == row["codes"]
    for subword in about["subwords"]:
        assert subword["merged"] == (subword["token"] >= FIRST)
        assert subword["items"] == sum(subword["token"] in other["tokens"] for other in exported)
    shown = capsid("tokenizer", "inspect", merged, row["item"]).out
    assert f"before merging: {' '.join(map(str, about['unmerged']))}" in shown
    assert "merged, " in shown
    assert "unmerged" not in capsid("tokenizer", "inspect", fitted, "i5", "--json").json


def test_new_items_are_merged_too(merged: Path, tmp_path: Path, exported: list[dict]) -> None:
    row = next(row for row in exported if max(row["tokens"]) >= FIRST)
    title = capsid("tokenizer", "inspect", merged, row["item"], "--json").json["title"]
    (tmp_path / "new.jsonl").write_text(json.dumps({"item_id": "new", "title": title}) + "\n")
    out = tmp_path / "grown"
    assert capsid("tokenizer", "add", merged, "--items", tmp_path / "new.jsonl", "--out", out).code == 0
    report = capsid("tokenizer", "report", out, "--json").json
    assert report["items"] == 65
    assert capsid("tokenizer", "merges", out, "--json").json["count"] == report["merges"]["count"]
    assert "new" in capsid("tokenizer", "inspect", out, "new").out


def test_wrong_use(merged: Path, fitted: Path) -> None:
    for arguments, text in (
        ([fitted], "have no merges"),
        ([merged, "--top", 0], "--top must be a whole number from 1 to 100,000, got 0"),
    ):
        answer = capsid("tokenizer", "merges", *arguments)
        assert (answer.code, "Traceback" in answer.err, "hint: " in answer.err) == (2, False, True)
        assert text in answer.err
    assert "capsid tokenizer merges runs/films --top 50 --json" in capsid("tokenizer", "merges", "--help").out


def test_nothing_was_merged(shop: Path, tmp_path: Path) -> None:
    options = [part for setting in (*SMALL, "merges.min_count=100000") for part in ("--set", setting)]
    answer = capsid("tokenizer", "fit", "capsid-bpe", "--data", shop, "--out", tmp_path / "ids", *options)
    assert answer.code == 0, answer.err
    assert "so none is merged" in answer.err
    assert capsid("tokenizer", "report", tmp_path / "ids", "--json").json["merges"]["count"] == 0
    assert capsid("tokenizer", "merges", tmp_path / "ids", "--json").json["merges"] == []
    assert "0 merges" in capsid("tokenizer", "merges", tmp_path / "ids").out
    assert capsid("tokenizer", "inspect", tmp_path / "ids", "i5").code == 0
