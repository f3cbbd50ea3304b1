"""Ids from shards of codes are those of the whole catalogue; shards that are not as they should be are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capsid.encode.large_vectors import open_vectors
from capsid.errors import ArtifactError, CapsidError, ConfigError
from capsid.ids.collisions import Bucket, CollisionPolicy, Reassign, Suffix
from capsid.ids.trie import Trie
from capsid.progress import silent
from capsid.scale.engine import Engine, Here, Processes, run_job
from capsid.scale.ids import build_trie
from capsid.scale.jobs import EncodeJob, IdsJob
from capsid.scale.shards import shard_lock
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans

ROWS, PER_SHARD = 130, 50


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32))
    return tmp_path / "v.npy"


def encoded(folder: Path, vectors: Path, collisions: CollisionPolicy) -> ItemTokenizer:
    """A tokenizer in `tok` and the codes of all rows in `codes`."""
    fitted = ItemTokenizer(tokenizer=ResidualKMeans(codebooks=(4, 4)), collisions=collisions)
    fitted.fit(open_vectors(vectors).table()).save_pretrained(folder / "tok")
    run_job(EncodeJob.prepare(folder / "tok", vectors, folder / "codes", PER_SHARD, silent))
    return fitted


def make_ids(folder: Path, out: str, engine: Engine | None = None) -> dict[str, bytes]:
    job, _ = IdsJob.prepare(folder / "tok", folder / "codes", folder / out, silent)
    shards, done = run_job(job, engine or Here())
    assert done.complete
    build_trie(shards, silent)
    return {str(p.relative_to(folder / out)): p.read_bytes() for p in (folder / out).rglob("*") if p.is_file()}


@pytest.mark.parametrize("collisions", [Suffix(), Bucket()])
def test_ids_are_those_of_the_whole_catalogue(collisions: CollisionPolicy, vectors: Path, tmp_path: Path) -> None:
    whole = encoded(tmp_path, vectors, collisions).ids
    here = make_ids(tmp_path, "here")
    frame = pl.read_parquet(tmp_path / "here" / "ids-*.parquet")
    assert frame["item_id"].to_list() == list(whole.items)
    assert frame["codes"].to_list() == [row.tolist() for row in whole.codes]
    assert frame["tokens"].to_list() == [row.tolist() for row in whole.tokens]
    assert Trie.load(tmp_path / "here" / "trie").holds(whole.prefix_free)
    about = json.loads(here["shards.json"])
    assert (about["vocabulary"], about["suffix"]) == (whole.layout.vocabulary, whole.layout.suffix)
    assert make_ids(tmp_path, "here") == here, "again: nothing changes"


def test_processes_write_the_same_ids(vectors: Path, tmp_path: Path) -> None:
    encoded(tmp_path, vectors, Suffix())
    assert make_ids(tmp_path, "two", Processes(2)) == make_ids(tmp_path, "one")


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CapsidError, match=match) as caught:
        make_ids(folder, "out")
    assert caught.value.hint
    assert not (folder / "out").exists()


def test_shards_that_are_missing_cut_off_or_of_other_data(vectors: Path, tmp_path: Path) -> None:
    encoded(tmp_path, vectors, Suffix())
    shard, other = tmp_path / "codes" / "codes-00001.parquet", tmp_path / "codes" / "codes-00000.parquet"
    whole = shard.read_bytes()
    shard.unlink()
    refused(tmp_path, r"the shard .*codes-00001.parquet is missing")
    shard.write_bytes(whole[:-40])
    refused(tmp_path, r"codes-00001.parquet could not be read")
    # The footer is whole, the pages before it are not.
    shard.write_bytes(whole[:4] + b"\0" * 200 + whole[204:])
    refused(tmp_path, r"codes-00001.parquet could not be read")
    shard.write_bytes(other.read_bytes())
    refused(tmp_path, r"codes-00001.parquet was made from other data than shards.json says")
    shard.unlink()
    (tmp_path / "codes" / "shards.json").unlink()
    refused(tmp_path, "is not a finished folder of codes")
    # The job can go on: what is missing is made, with the same bytes.
    run_job(EncodeJob.prepare(tmp_path / "tok", vectors, tmp_path / "codes", PER_SHARD, silent))
    assert shard.read_bytes() == whole
    make_ids(tmp_path, "out")


def test_codes_of_another_tokenizer(vectors: Path, tmp_path: Path) -> None:
    encoded(tmp_path, vectors, Suffix())
    other = ItemTokenizer(tokenizer=ResidualKMeans(codebooks=(3, 3)))
    other.fit(open_vectors(vectors).table()).save_pretrained(tmp_path / "other")
    with pytest.raises(ArtifactError, match="were made by another tokenizer"):
        IdsJob.prepare(tmp_path / "other", tmp_path / "codes", tmp_path / "out", silent)


def test_a_policy_that_needs_vectors(vectors: Path, tmp_path: Path) -> None:
    encoded(tmp_path, vectors, Reassign())
    with pytest.raises(ConfigError, match="'reassign' needs the vectors"):
        IdsJob.prepare(tmp_path / "tok", tmp_path / "codes", tmp_path / "out", silent)


def test_ids_that_are_made_twice_at_once(vectors: Path, tmp_path: Path) -> None:
    """The second command must not replace the suffixes that workers of the first one read."""
    encoded(tmp_path, vectors, Suffix())
    job, _ = IdsJob.prepare(tmp_path / "tok", tmp_path / "codes", tmp_path / "out", silent)
    suffixes = tmp_path / "out" / ".suffixes.npy"
    before = suffixes.stat().st_mtime_ns
    with shard_lock(tmp_path / "out", (1, 1)), pytest.raises(ArtifactError, match="another capsid process is writing"):
        IdsJob.prepare(tmp_path / "tok", tmp_path / "codes", tmp_path / "out", silent)
    assert suffixes.stat().st_mtime_ns == before
    assert run_job(job)[1].complete


def test_codes_that_change_under_a_job(vectors: Path, tmp_path: Path) -> None:
    encoded(tmp_path, vectors, Suffix())
    job, _ = IdsJob.prepare(tmp_path / "tok", tmp_path / "codes", tmp_path / "out", silent)
    summary = tmp_path / "codes" / "shards.json"
    summary.write_text(summary.read_text() + "\n")
    with pytest.raises(ArtifactError, match="changed after the job was started"):
        job.open()
