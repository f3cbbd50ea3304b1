"""`capsid tokenizer` where capsules route: why ids end, what capsules stand for, two facets, plots, drift."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import capsid, lines

PLOTS = {"lengths.svg", "usage.svg", "stop-causes.svg", "routing-convergence.svg"}


@pytest.fixture(scope="module")
def routed(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("routed") / "ids"
    small = ("codebooks=8,6,4", "dim=16", "training.steps=20", "training.batch_size=32", "confidence=0.6")
    options = [part for setting in small for part in ("--set", f"tokenizer.{setting}")]
    answer = capsid("tokenizer", "fit", "capsid", "--data", shop, "--out", out, *options)
    assert answer.code == 0, answer.err
    return out


@pytest.fixture(scope="module")
def exported(routed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    file = tmp_path_factory.mktemp("export") / "ids.jsonl"
    assert capsid("tokenizer", "export", routed, "--out", file).code == 0
    return lines(file)


def test_export_has_a_confidence_for_every_code(exported: list[dict]) -> None:
    assert len(exported) == 64
    for row in exported:
        assert len(row["confidences"]) == len(row["codes"])
        assert all(0 < c < 1 for c in row["confidences"])


def test_report(routed: Path, exported: list[dict]) -> None:
    report = capsid("tokenizer", "report", routed, "--json").json
    longest = max(len(row["codes"]) for row in exported)
    assert set(report["stop_causes"]) == {"confidence", "residual", "cap", "prefix"}
    assert sum(report["stop_causes"].values()) == pytest.approx(1)
    for name in ("winner_mass", "norm_increasing_share", "confidences"):
        assert len(report[name]) == longest
    assert len(report["reconstruction"]["soft"]) == len(report["reconstruction"]["hard"]) == longest
    for depth in range(longest):
        sure = [row["confidences"][depth] for row in exported if len(row["codes"]) > depth]
        assert report["confidences"][depth] == pytest.approx(np.mean(sure), abs=1e-5)
    convergence = report["routing_convergence"]
    assert (convergence["items"], convergence["rounds"]) == (64, [1, 2, 3])
    assert convergence["winner_mass"][-1] == pytest.approx(report["winner_mass"], abs=1e-5)
    shown = capsid("tokenizer", "report", routed).out
    assert "stop causes" in shown
    assert "rounds 3: winner mass" in shown


def test_plots(routed: Path, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = capsid("tokenizer", "report", routed, "--json", "--plots", tmp_path / "plots")
    assert answer.json["items"] == 64
    assert {p.name for p in (tmp_path / "plots").iterdir()} == PLOTS
    assert "Why ids end" in (tmp_path / "plots" / "stop-causes.svg").read_text()
    assert str(tmp_path / "plots" / "usage.svg") in answer.err
    before = {p.name: p.read_bytes() for p in (tmp_path / "plots").iterdir()}
    assert capsid("tokenizer", "report", routed, "--plots", tmp_path / "plots").code == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "plots").iterdir()} == before
    # Residual k-means has no stops and no rounds.
    assert capsid("tokenizer", "report", fitted, "--plots", tmp_path / "other").code == 0
    assert {p.name for p in (tmp_path / "other").iterdir()} == {"lengths.svg", "usage.svg"}
    (tmp_path / "file").write_text("")
    answer = capsid("tokenizer", "report", routed, "--plots", tmp_path / "file")
    assert (answer.code, "is not a folder" in answer.err, "hint: " in answer.err) == (1, True, True)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    answer = capsid("tokenizer", "report", routed, "--plots", tmp_path / "none")
    assert answer.code != 0
    assert "capsid-rec[plots]" in answer.err


def test_inspect_tells_the_way_through_the_capsules(routed: Path, exported: list[dict]) -> None:
    report = capsid("tokenizer", "report", routed, "--json").json
    causes = set()
    for row in exported[::8]:
        about = capsid("tokenizer", "inspect", routed, row["item"], "--json").json
        assert {key: about[key] for key in row} == row
        assert [level["code"] for level in about["depths"]] == row["codes"]
        assert [level["token"] for level in about["depths"]] == row["tokens"]
        assert [level["confidence"] for level in about["depths"]] == row["confidences"]
        for depth, level in enumerate(about["depths"]):
            weights = [c["weight"] for c in level["capsules"]]
            # The smallest codebook has four.
            assert len(weights) == 4
            assert weights == sorted(weights, reverse=True)
            assert (level["capsules"][0]["code"], weights[0]) == (level["code"], level["winner_mass"])
            for capsule in level["capsules"]:
                carry = {r["item"] for r in exported if r["codes"][depth : depth + 1] == [capsule["code"]]}
                assert capsule["items"] == len(carry)
                assert {n["item"] for n in capsule["nearest"]} <= carry - {row["item"]}
        stopped = about["stopped"]
        assert stopped["depth"] == len(row["codes"])
        causes.add(stopped["cause"])
        if stopped["cause"] == "confidence":
            assert row["confidences"][-1] >= stopped["rules"]["confidence"] == 0.6
        if stopped["cause"] == "cap":
            assert stopped["depth"] == 3
    assert causes <= {cause for cause, share in report["stop_causes"].items() if share > 0}
    shown = capsid("tokenizer", "inspect", routed, "i5").out
    assert "depth 1: token" in shown
    assert "ends after" in shown


def test_facets(routed: Path, exported: list[dict]) -> None:
    found = capsid("tokenizer", "facets", routed, "-k", 4, "--json").json
    by_item = {row["item"]: row for row in exported}
    assert found["depth"] == 1
    assert 1 <= len(found["items"]) <= 4
    seconds = [about["facets"][1]["weight"] for about in found["items"]]
    assert seconds == sorted(seconds, reverse=True)
    for about in found["items"]:
        first, second = about["facets"]
        assert about["codes"] == by_item[about["item"]]["codes"]
        assert first["code"] == about["codes"][0] != second["code"]
        assert first["weight"] >= second["weight"]
        assert first["weight"] + second["weight"] >= 0.5
        inspected = capsid("tokenizer", "inspect", routed, about["item"], "--json").json["depths"][0]["capsules"]
        assert [c["weight"] for c in inspected[:2]] == [first["weight"], second["weight"]]
    shown = capsid("tokenizer", "facets", routed, "-k", 4).out
    assert found["items"][0]["title"] in shown
    deep = capsid("tokenizer", "facets", routed, "--depth", 2, "--json").json
    assert all(len(about["codes"]) >= 2 for about in deep["items"])


def test_facets_of_what_has_none(routed: Path, fitted: Path) -> None:
    for arguments, text in (
        ([fitted], "does not route"),
        ([routed, "--depth", 4], "depth must be 1 to 3, got 4"),
        ([routed, "--depth", 0], "got 0"),
        ([routed, "-k", 0], "-k must be a whole number from 1 to 100,000, got 0"),
    ):
        answer = capsid("tokenizer", "facets", *arguments)
        assert answer.code in (1, 2)
        assert text in answer.err
        assert "hint: " in answer.err
        assert "Traceback" not in answer.err


def write_items(path: Path, titles: list[str]) -> Path:
    path.write_text("".join(json.dumps({"item_id": f"n{i}", "title": t}) + "\n" for i, t in enumerate(titles)))
    return path


def test_encode_tells_drift(routed: Path, fitted: Path, tmp_path: Path) -> None:
    few = write_items(tmp_path / "few.jsonl", ["amber 1 birch 1 cedar 0 item 2"])
    answer = capsid("tokenizer", "encode", routed, "--items", few)
    (line,) = map(json.loads, answer.out.splitlines())
    assert len(line["confidences"]) == len(line["codes"])
    assert "too few new items (1) to detect drift" in answer.err
    assert "depth 3: confidence" in answer.err
    many = write_items(tmp_path / "many.jsonl", ["wholly different words entirely"] * 60)
    told = capsid("tokenizer", "encode", routed, "--items", many, "--json")
    assert "DRIFT" in told.err
    about = told.json
    assert (about["known"], about["new"], len(about["items"])) == (0, 60, 60)
    assert about["drift"]["large"] is True
    assert len(about["drift"]["shifts"]) == 6
    assert all(0 <= s["ks"] <= 1 and len(s["new"]) == 5 for s in about["drift"]["shifts"])
    told = capsid("tokenizer", "encode", routed, "--items", many, "--json", "--out", tmp_path / "ids.jsonl").json
    assert set(told) == {"known", "new", "drift"}
    assert lines(tmp_path / "ids.jsonl") == about["items"]
    assert capsid("tokenizer", "encode", fitted, "--items", few, "--json").json["drift"] is None
    assert "drift" not in capsid("tokenizer", "encode", fitted, "--items", few).err
