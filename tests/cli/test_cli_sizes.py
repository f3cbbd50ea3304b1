"""Small data fits itself: the command says which sizes it uses, stores them, and obeys what the user names."""

from __future__ import annotations

import json
from pathlib import Path

from cli_world import capsid

QUICK = [
    part
    for setting in (
        "encoder=hashing",
        "generator.layers=1",
        "generator.width=16",
        "generator.feedforward=32",
        "schedule.0.training.steps=20",
    )
    for part in ("--set", setting)
]


def test_fit_says_and_stores_the_sizes_it_uses(shop: Path, tmp_path: Path) -> None:
    fit = ("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", *QUICK)
    answer = capsid(*fit)
    assert answer.code == 0, answer.err
    (told,) = (line for line in answer.err.splitlines() if line.startswith("sizes that suit"))
    assert "64 items" in told
    assert "tokenizer.codebooks 256,256,256 -> 16,16,16" in told
    assert "schedule.0.training.batch_size 64 -> 8" in told
    assert "training.steps" not in told, "the user named it"
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["tokenizer"]["codebooks"] == [16, 16, 16]
    training = recipe["schedule"][0]["training"]
    assert (training["batch_size"], training["steps"], training["validate_every"]) == (8, 20, 2)
    assert "already finished" in capsid(*fit).err
    assert capsid(*fit, "--exact").code == 1, "the recipe's own sizes make another run"


def test_what_fit_would_use_can_be_shown(shop: Path) -> None:
    answer = capsid("recipes", "show", "capsid", "--data", shop, "--set", "schedule.0.training.batch_size=32", "--json")
    assert answer.json["tokenizer"]["codebooks"] == [16, 16, 16, 16]
    assert answer.json["schedule"][0]["training"]["batch_size"] == 32
    assert "sizes that suit 64 items" in answer.err
    assert "nothing is changed" in capsid("recipes", "show", "popularity", "--data", shop).err


def test_a_tokenizer_alone_is_sized_as_in_a_run(shop: Path, tmp_path: Path) -> None:
    fit = ("tokenizer", "fit", "rq-kmeans", "--data", shop, "--set", "encoder=hashing", "--out")
    answer = capsid(*fit, tmp_path / "ids")
    assert answer.code == 0
    assert "tokenizer.codebooks 256,256,256 -> 16,16,16\n" in answer.err, "training is no matter of a tokenizer alone"
    about = json.loads((tmp_path / "ids" / "tokenizer.json").read_text())
    assert about["tokenizer"]["codebooks"] == [16, 16, 16]
