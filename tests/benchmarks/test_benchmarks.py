"""Tiny runs of the benchmarks: what they compare must be equal, and what they write must be whole."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

# The twins are those of transformers.
pytest.importorskip("transformers")


def test_decode_variants_agree_and_the_catalogue_grows(load, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    decode = load("decode")
    monkeypatch.setattr(decode, "GROWTH", (300, 5_000))
    options = {"users": 5, "beam": 12, "k": 6, "repeat": 1, "threads": 1, "items": 700, "out": tmp_path / "decode.json"}
    result = decode.main(["--quick", *(f"--{name}={value}" for name, value in options.items())])
    compared = result["compare"]
    assert set(compared["agreement"]) == {decode.COPIES, decode.DICTS, decode.THEIRS}
    for how in compared["agreement"].values():
        assert how["users_equal"] == 1.0
        assert how["largest_score_difference"] < 1e-4
    assert compared["largest_logit_difference"] < 1e-4
    assert set(compared["users_per_second"]) == {decode.OURS, *compared["agreement"]}
    small, large = result["growth"]
    assert (small["items"], small["steps"], large["steps"]) == (300, 4, 4)
    assert large["trie_bytes"] > small["trie_bytes"]
    written = json.loads((tmp_path / "decode.json").read_text())
    assert written["config"]["beam"] == 12
    assert written["compare"] == compared


def test_other_weights_or_items_are_noticed(load) -> None:  # type: ignore[no-untyped-def]
    made, decode, twins = load("_made"), load("decode"), load("_twins")
    world = made.made_world(3, items=400)
    batch = world.batch()
    assert decode.logits_differ(world, batch) < 1e-4
    theirs = twins.Transformers(world.generator.network, world.ids.prefix_free)
    with torch.no_grad():
        world.generator.network.depth.weight[1, 0] += 2.0
        ours = world.generator.scores(*world.generator.start(batch))[:, 0]
    assert float((theirs.logits(batch) - ours).abs().max()) > 1e-2
    one = (np.arange(6).reshape(2, 3), np.zeros((2, 3)))
    other = (np.array([[0, 1, 2], [3, 5, 4]]), np.full((2, 3), 0.25))
    assert decode.equality(one, other) == {"users_equal": 0.5, "largest_score_difference": 0.25}


def test_the_dict_trie_answers_as_the_trie(load) -> None:  # type: ignore[no-untyped-def]
    made, twins = load("_made"), load("_twins")
    trie = made.made_world(1, items=600).trie
    dicts = twins.DictTrie(trie)
    inner = np.flatnonzero(~trie.is_leaf(np.arange(trie.nodes)))
    nodes = np.random.default_rng(0).choice(inner, 100)
    for name in ("parent", "token", "node"):
        np.testing.assert_array_equal(
            getattr(dicts.children(nodes), name), getattr(trie.children(nodes), name), err_msg=name
        )
    np.testing.assert_array_equal(dicts.is_leaf(np.arange(trie.nodes)), trie.is_leaf(np.arange(trie.nodes)))


def test_made_histories_are_like_beautys(load) -> None:  # type: ignore[no-untyped-def]
    lengths = load("_made").made_histories(20_000, 50, np.random.default_rng(0)).lengths
    assert (lengths.min(), lengths.max()) == (4, 50)
    assert 7 < lengths.mean() < 8
    assert np.median(lengths) == 5


def test_trie_is_measured_in_processes_of_its_own(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trie = load("trie")
    result = trie.main(["--items", "3000", "--dict-items", "2000", "--out", str(tmp_path / "trie.json")])
    assert [result[n]["items"] for n in ("csr", "csr_at_dict_size", "dict")] == [3000, 2000, 2000]
    for measured in (result["csr"], result["dict"]):
        assert 0 < measured["peak_without_rows_bytes"] < measured["peak_bytes"]
        assert measured["peak_bytes"] >= measured["after_build_bytes"] > measured["rows_bytes"]
        assert measured["walks_per_second"] > 0
    # A process that carried torch along would have several times this much.
    assert result["csr"]["before_build_bytes"] < 150e6
    assert result["csr"]["nodes"] > 3000
    assert json.loads((tmp_path / "trie.json").read_text())["csr"] == result["csr"]


def test_variants_take_turns(load) -> None:  # type: ignore[no-untyped-def]
    common = load("common")
    seen: list[str] = []
    times = common.side_by_side({name: lambda name=name: seen.append(name) for name in "abc"}, 3)
    assert "".join(seen) == "abc" + "aabbcc" + "ccbbaa" + "aabbcc", "quick calls come twice, the second is timed"
    assert all(len(t.wall) == len(t.cpu) == 3 for t in times.values())
    assert common.Times((3.0, 1.0, 2.0), (0.5, 0.1, 0.2)).summary()["seconds"] == 2.0


def test_results_name_no_host_and_no_path(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    common = load("common")
    path = common.write_result("x", tmp_path / "new" / "x.json", {"users": 3}, {"machine": common.machine(2)})
    text = path.read_text()
    assert json.loads(text)["config"] == {"users": 3}
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_t5_lists_equal_those_of_generate(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = load("t5").main(["--quick", "--out", str(tmp_path / "t5.json")])["compare"]
    assert result["agreement"]["users_equal"] == 1.0
    assert result["agreement"]["largest_score_difference"] < 1e-4
    assert result["largest_logit_difference"] < 1e-4
    assert result["times_slower_than_ours"]["cpu"] > 0
    assert json.loads((tmp_path / "t5.json").read_text())["config"]["beam"] == 8


def test_a_made_catalogue_is_skewed_copied_and_made_in_any_order(load) -> None:  # type: ignore[no-untyped-def]
    made = load("_catalogue")
    whole, longer = made.Catalogue(3_000), made.Catalogue(5_000)
    vectors = whole.vectors(0)
    np.testing.assert_array_equal(vectors, longer.vectors(0)[:3_000])
    assert not np.array_equal(vectors, made.Catalogue(3_000, seed=1).vectors(0))
    copies = len(vectors) - len(np.unique(vectors, axis=0))
    assert copies == whole.copied(0)
    assert 0.07 < copies / 3_000 < 0.13
    shares = np.sort(whole._leaf_shares)[::-1]
    assert shares[0] > 100 * shares[1_000]
    noise = vectors - vectors.mean(0)
    variances = np.sort(np.linalg.eigvalsh(noise.T @ noise))[::-1]
    assert variances[0] > 10 * variances[-1]


def test_the_industrial_table_on_a_small_catalogue(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = load("industrial").main(["--quick", "--out", str(tmp_path / "made.json")])["rows"]
    assert [(row["items"], row["tokenizer"]) for row in rows] == [
        (size, name) for size in (2_000, 4_000) for name in ("capsules", "residual k-means")
    ]
    for row in rows:
        assert row["collision_rate"] >= row["copies"] > 0.07, "copies share their original's id"
        assert set(row["cpu_seconds"]) == {"fit", "encode", "ids", "trie"}
    assert "recall" not in (tmp_path / "made.json").read_text().lower()
