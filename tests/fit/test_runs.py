"""Fitting into folders, opening them, adding items and comparing kept evaluations, all from Python."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_recipes import small, tiny_world

from capsid.errors import ArtifactError, ConfigError, DataError
from capsid.evaluate.kept import compare_runs, keep_evaluation, kept_evaluation
from capsid.fit.folder import fit_or_reuse, summarise
from capsid.fit.tokenizers import add_items, fit_tokenizer, open_tokenizer
from capsid.recommender import Recommender


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "shop"
    summary = fit_or_reuse(Recommender(small("rq-kmeans", 4)), tiny_world(), out)
    assert not summary.reused
    assert (summary.recipe, summary.seed, summary.steps) == ("rq-kmeans", 0, 4)
    assert [p.name for p in out.parent.iterdir()] == ["shop"], "the working folder is gone"
    return out


def test_a_finished_run_is_reused(run: Path) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    summary = fit_or_reuse(Recommender(small("rq-kmeans", 4)), tiny_world(), run)
    assert summary.reused
    assert summary == summarise(run)
    assert summary.to_dict()["validation_recall@10"] == summary.validation
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_different_run_is_replaced_only_when_asked(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "shop"))
    other = Recommender(small("popularity"), seed=1)
    with pytest.raises(ArtifactError, match="holds another run"):
        fit_or_reuse(other, tiny_world(), copy)
    assert not fit_or_reuse(other, tiny_world(), copy, replace=True).reused
    assert Recommender.from_pretrained(copy).recipe.name == "popularity"
    assert not fit_or_reuse(other, tiny_world(), copy, force=True).reused, "force refits what is there"


def test_a_rewritten_description_does_not_make_another_run(run: Path) -> None:
    recipe = small("rq-kmeans", 4)
    told = dataclasses.replace(recipe, about="As before, told better", paper="Ours", deviations=("none",))
    assert fit_or_reuse(Recommender(told), tiny_world(), run).reused
    with pytest.raises(ArtifactError, match="holds another run"):
        fit_or_reuse(Recommender(dataclasses.replace(recipe, name="other")), tiny_world(), run)


def test_another_seed_does_not_reuse_a_run(run: Path) -> None:
    with pytest.raises(ArtifactError, match="holds another run"):
        fit_or_reuse(Recommender(small("rq-kmeans", 4), seed=1), tiny_world(), run)


def test_evaluations_are_kept_and_runs_compared_by_them(run: Path, tmp_path: Path) -> None:
    first, second = (Path(shutil.copytree(run, tmp_path / name)) for name in ("first", "second"))
    recommender = Recommender.from_pretrained(run)
    cases = recommender.catalogue_.split.test
    result = recommender.evaluate("test", ks=(5,), filter_history=True)
    for path in (first, second):
        assert keep_evaluation(path, result, cases) == path / "evaluations" / "test-filtered"
    kept = kept_evaluation(first, "test", filter_history=True)
    assert np.array_equal(kept.targets, cases.targets)
    assert kept.metric("recall@5").mean() == result.metrics["recall@5"]
    found = compare_runs([first], [second], metric="ndcg@5", filter_history=True)
    assert found.difference == 0
    assert found.to_dict()["significant"] is False
    with pytest.raises(ConfigError, match=r"has no metric 'ndgc@5'"):
        compare_runs([first], [second], metric="ndgc@5", filter_history=True)
    with pytest.raises(ArtifactError, match="has no evaluation 'test'"):
        kept_evaluation(first, filter_history=False)
    keep_evaluation(second, result, cases.take(np.arange(len(cases))[::-1]))
    with pytest.raises(DataError, match="different cases"):
        compare_runs([first], [second], metric="recall@5", filter_history=True)


def test_evaluations_of_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    first, second = (Path(shutil.copytree(run, tmp_path / name)) for name in ("first", "second"))
    recommender = Recommender.from_pretrained(run)
    cases = recommender.catalogue_.split.test
    keep_evaluation(first, recommender.evaluate("test", ks=(5,)), cases)
    shutil.copytree(first / "evaluations", second / "evaluations")
    assert kept_evaluation(second).name == "test-filtered", "a copy of a run is the same run"
    recommender.seed = 7
    recommender.save_pretrained(third := tmp_path / "third")
    shutil.copytree(first / "evaluations", third / "evaluations")
    with pytest.raises(ArtifactError, match=r"'test-filtered' in .*third.* is of another run"):
        compare_runs([first], [third], metric="recall@5")
    keep_evaluation(third, recommender.evaluate("valid", ks=(5,)), recommender.catalogue_.split.valid)
    kept = sorted(p.name for p in (third / "evaluations").glob("*.npz"))
    assert kept == ["valid-filtered.npz"], "the other's are dropped"
    about = json.loads((first / "about.json").read_text())
    (first / "about.json").write_text(json.dumps({**about, "dataset_fingerprint": "other"}))
    with pytest.raises(ArtifactError, match=r"'test-filtered' in .*first.* is of other data"):
        kept_evaluation(first)


def test_a_run_and_a_tokenizer_open_alike(run: Path, tmp_path: Path) -> None:
    tokenizer = fit_tokenizer(small("rq-kmeans", 4), tiny_world(), tmp_path / "ids")
    assert [p.name for p in tmp_path.iterdir()] == ["ids"], "no checkpoint is left"
    alone, inside = open_tokenizer(tmp_path / "ids"), open_tokenizer(run)
    assert alone.tokenizer.ids == inside.tokenizer.ids == tokenizer.ids
    assert [alone.title(n) for n in range(5)] == [inside.title(n) for n in range(5)]
    assert alone.quality().to_dict() == inside.quality().to_dict()


@pytest.mark.parametrize("kind", ["run", "tokenizer"])
def test_added_items_get_ids_and_old_ids_stay(run: Path, tmp_path: Path, kind: str) -> None:
    source = run
    if kind == "tokenizer":
        source = tmp_path / "ids"
        fit_tokenizer(small("rq-kmeans", 4), tiny_world(), source)
    known = open_tokenizer(source)
    title = known.title(0)
    new = pl.DataFrame({"item_id": ["new"], "title": [title]})
    assert add_items(source, new, tmp_path / "more") is None, "k-means does not route, so it tells no drift"
    grown = open_tokenizer(tmp_path / "more")
    assert list(grown.items) == [*known.items, "new"]
    assert grown.title(len(known.items)) == title
    for item in known.items:
        assert grown.tokenizer.ids[item] == known.tokenizer.ids[item]
