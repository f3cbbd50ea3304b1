"""Text vectors in shards: a pure map over items, with the real text model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capsid.base.storage.artifacts import write_bytes, write_json
from capsid.encode.large_vectors import open_vectors
from capsid.encode.text import MINILM, ROWS, embed_texts
from capsid.errors import ArtifactError, ConfigError, DataError
from capsid.scale.engine import run_job
from capsid.scale.jobs import EmbedJob
from capsid.scale.shards import parquet_bytes
from capsid.scale.texts import rows_written

TITLES = ["a red lamp", "lamp", "a long blue garden hose with a brass nozzle at its end", "", "a red lamp", "desk"]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    pl.DataFrame({"item_id": list("abcdef"), "title": TITLES}).write_parquet(tmp_path / "items.parquet")
    return tmp_path / "items.parquet"


def embedded(items: Path, out: Path, rows_per_shard: int) -> dict[str, np.ndarray]:
    job = EmbedJob.prepare(items, ("title",), out, model=MINILM, max_tokens=16, rows_per_shard=rows_per_shard)
    shards, done = run_job(job)
    assert done.complete
    assert rows_written(shards) == 5, "the item without text is left out"
    source = open_vectors(out)
    return dict(zip(source.ids, np.array(source.vectors_ND)))


def test_a_vector_depends_on_its_text_alone(items: Path, tmp_path: Path) -> None:
    one, many = embedded(items, tmp_path / "one", 100), embedded(items, tmp_path / "many", 2)
    assert list(one) == list(many) == list("abcef")
    for name, vector in one.items():
        np.testing.assert_array_equal(vector, many[name], err_msg=name)
    np.testing.assert_array_equal(one["a"], one["e"])
    assert one["a"] @ one["b"] > one["a"] @ one["c"]


def test_place_in_the_batch_does_not_matter() -> None:
    others = [f"thing {n}" for n in range(ROWS + 3)]
    alone = embed_texts(MINILM, ["mint tea"], 16)
    # The text is first, in the middle and last of its batch, and in the second batch.
    for texts in (["mint tea", *others], [*others, "mint tea"], [*(f"zoo {n}" for n in range(70)), "mint tea"]):
        np.testing.assert_array_equal(embed_texts(MINILM, texts, 16)[texts.index("mint tea")], alone[0])


def test_text_vectors_that_are_missing_cut_off_or_of_other_data(tmp_path: Path) -> None:
    """Readers of the folder notice it, and the job makes what is missing."""
    shards, about = tmp_path / "text", {}
    for number in range(3):
        rows = {"item_id": [f"{number}a", f"{number}b"], "vector": [[1.0, number], [2.0, number]]}
        about[number] = {"rows": f"hash {number}", "first": 2 * number}
        write_bytes(
            shards / f"vectors-0000{number}.parquet", parquet_bytes(pl.DataFrame(rows).to_arrow(), about[number])
        )
    with pytest.raises(ArtifactError, match=r"the shards in .*text are not finished: there is no shards\.json"):
        open_vectors(shards)
    files = {f"vectors-0000{number}.parquet": f"hash {number}" for number in range(3)}
    write_json(shards / "shards.json", {"files": files})
    assert len(open_vectors(shards)) == 6
    second = shards / "vectors-00001.parquet"
    whole = second.read_bytes()
    second.unlink()
    with pytest.raises(ArtifactError, match=r"the shard .*vectors-00001\.parquet is missing") as caught:
        open_vectors(shards)
    assert "makes what is missing" in str(caught.value.hint)
    second.write_bytes(whole[:-30])
    with pytest.raises(ArtifactError, match=r"vectors-00001\.parquet could not be read"):
        open_vectors(shards)
    second.write_bytes((shards / "vectors-00000.parquet").read_bytes())
    with pytest.raises(ArtifactError, match=r"vectors-00001\.parquet was made from other data than shards\.json says"):
        open_vectors(shards)
    second.write_bytes(whole)
    (shards / "vectors-00003.parquet").write_bytes(whole)
    with pytest.raises(ArtifactError, match=r"holds vectors-00003\.parquet, which shards\.json does not list"):
        open_vectors(shards)


def test_what_cannot_be_embedded(items: Path, tmp_path: Path) -> None:
    def job(source: Path, *fields: str) -> EmbedJob:
        how = {"model": MINILM, "max_tokens": 16, "rows_per_shard": 2}
        return EmbedJob.prepare(source, fields, tmp_path / "out", **how)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="no text field 'titel'"):
        job(items, "titel")
    with pytest.raises(ConfigError, match="no text fields are given"):
        job(items)
    with pytest.raises(DataError, match=r"there is no \.parquet file"):
        job(tmp_path / "none.parquet", "title")
    (tmp_path / "cut.parquet").write_bytes(items.read_bytes()[:-20])
    with pytest.raises(DataError, match="could not be read"):
        job(tmp_path / "cut.parquet", "title")
    pl.DataFrame({"title": TITLES}).write_parquet(tmp_path / "no_ids.parquet")
    with pytest.raises(DataError, match="no column of ids"):
        job(tmp_path / "no_ids.parquet", "title")
    assert not (tmp_path / "out").exists()
