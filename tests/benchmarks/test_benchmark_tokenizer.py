"""A tiny run of the tokenizer benchmark: everything is compared on the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

TINY = {"items": 600, "width": 8, "codebook": 8, "depths": 2, "steps": 6, "vae_steps": 6, "sizes": "200,500"}


def test_all_variants_are_measured(load, monkeypatch, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    tokenizer = load("tokenizer")
    asked: list[tuple[str, int]] = []

    def here(kind: str, items: int, args) -> dict:  # type: ignore[no-untyped-def]
        """A process for each would take most of the test's time; what it runs is the same."""
        asked.append((kind, items))
        folder = tmp_path / f"{len(asked)}"
        folder.mkdir()
        tokenizer.write_vectors(folder / "vectors.npy", items, args.width)
        return tokenizer.measure(tokenizer.argparse.Namespace(**{**vars(args), "measure": kind, "folder": folder}))

    monkeypatch.setattr(tokenizer, "measured_apart", here)
    monkeypatch.setattr(tokenizer, "QUICK", TINY)
    result = tokenizer.main(["--quick", "--out", str(tmp_path / "out.json")])
    names = {tokenizer.OURS, tokenizer.KMEANS, tokenizer.VAE, tokenizer.FAISS_ONE, tokenizer.FAISS_DEFAULT}
    assert result["fit"]["steps"] == 6
    assert result["fit"]["over_residual_kmeans"][tokenizer.KMEANS] == 1
    assert set(result["encode"]["items_per_second"]) == set(result["encode"]["unexplained"]) == names
    assert result["encode"]["beam"][tokenizer.FAISS_ONE] == 1 < result["encode"]["beam"][tokenizer.FAISS_DEFAULT]
    assert all(0 < left < 1 for left in result["encode"]["unexplained"].values())
    assert {kind for kind, items in asked if items == 600} == names
    assert [g["items"] for g in result["growth"]] == [200, 500]
    assert [len(list((tmp_path / f"{n}" / "codes").glob("*.parquet"))) for n in (6, 7)] == [1, 1]
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["growth"] == result["growth"]
    assert written["config"]["depths"] == 2
    assert "folder" not in written["config"]
    assert "residual k-means" in capsys.readouterr().out


def test_a_process_of_its_own(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tokenizer = load("tokenizer")
    args = tokenizer.parser().parse_args(["--scratch", str(tmp_path)])
    vars(args).update(TINY)
    measured = tokenizer.measured_apart(tokenizer.KMEANS, 500, args)
    assert measured["items"] == 500
    assert measured["matrix_bytes"] == 500 * 8 * 4
    assert measured["peak_bytes"] >= measured["before_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_made_vectors_do_not_depend_on_when_they_are_made(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write = load("tokenizer").write_vectors
    one = np.load(write(tmp_path / "a.npy", 300, 6, block=100))
    np.testing.assert_array_equal(one, np.load(write(tmp_path / "b.npy", 300, 6, block=100)))
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-5)
    assert len(np.unique(one, axis=0)) == 300


def test_the_rqvae_is_the_houses_with_the_sizes_and_steps_asked_for(load) -> None:  # type: ignore[no-untyped-def]
    tokenizer = load("tokenizer")
    args = tokenizer.parser().parse_args(["--codebook", "8", "--depths", "2"])
    made = tokenizer.rqvae(args, 7)
    assert made.kind == "rq-vae"
    assert made.codebooks == (8, 8)
    assert (made.training.steps, made.training.batch_size) == (7, tokenizer.capsules(args).training.batch_size)
    assert made.hidden == type(made)().hidden


def test_codebooks_that_faiss_cannot_count(load) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit):
        load("tokenizer").main(["--codebook", "100"])
