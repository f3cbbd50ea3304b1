"""Odd values on the command line and in Python: one clear sentence each, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest
from cli_world import capsid, settings

from capsid import Dataset, ItemTokenizer, Recommender
from capsid.errors import CapsidError, ConfigError, DataError
from capsid.tokenize.rivals.lookup import Atomic

BIG = "9" * 5_000
LONG = "x" * 300


def test_every_odd_value_is_one_sentence(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSID_AMAZON_URL", "nonsense")
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path / "home"))
    fit = ["fit", "rq-kmeans", "--data", "planted", "--out", tmp_path / "run"]
    cases: list[list[object]] = [
        *(["recommend", fitted, "--history", "i1", "-k", k] for k in (0, -1, 2**63, 10**20, "²", "ten", BIG)),
        *(["evaluate", fitted, "-k", k] for k in ("0", "²", "\u0661", str(2**63), BIG, "5,,10", "")),
        *(["predict", fitted, "--out", "-", "-k", k] for k in (0, 2**63, "²")),
        ["recommend", fitted, "--history", "x" * 128_000],
        ["recommend", fitted, "--history", f"i1,{LONG}"],
        *([verb, tmp_path / LONG, *more] for verb, more in (("evaluate", []), ("recommend", ["--history", "i1"]))),
        ["fit", "sasrec", "--data", LONG, "--out", tmp_path / "run"],
        ["data", "describe", LONG],
        ["data", "check", tmp_path / LONG],
        ["data", "describe", "amazon-beauty"],
        *([*fit, "--set", f"{name}"] for name in ("tokenizer.restarts=0", "decoder.width=-5")),
        *([*fit, "--set", f"schedule.0.training.{s}"] for s in ("beta2=1", f"steps={BIG}", "steps=²")),
        [*fit, "--seed", BIG],
    ]
    for command in cases:
        answer = capsid(*command)
        assert answer.code in (1, 2), command
        assert answer.err.count("error: ") == answer.err.count("hint: ") == 1, (command, answer.err[:300])
        assert len(answer.err) < 1_500, command
    assert not (tmp_path / "run").exists()


def test_line_breaks_separate_items_too(fitted: Path) -> None:
    several = capsid("recommend", fitted, "--history", "i1\ni2,i3\n", "--json").json
    assert several == capsid("recommend", fitted, "--history", "i1,i2,i3", "--json").json


def test_items_that_have_nothing_but_an_id(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id\n" + "".join(f"i{n}\n" for n in range(9)))
    rows = [f"u{u},i{(u + t) % 9},{t}\n" for u in range(20) for t in range(5)]
    (tmp_path / "interactions.csv").write_text("user,item,timestamp\n" + "".join(rows))
    assert capsid("data", "check", tmp_path).code == 0
    answer = capsid("fit", "popularity", "--data", tmp_path, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err


@pytest.fixture(scope="module")
def recommender(fitted: Path) -> Recommender:
    return Recommender.from_pretrained(fitted)


def test_wrong_types_in_python(recommender: Recommender, tmp_path: Path) -> None:
    wrong: list[tuple[Any, type[CapsidError]]] = [
        (lambda: recommender.recommend(None), DataError),  # type: ignore[arg-type]
        (lambda: recommender.recommend("i1"), DataError),
        (lambda: recommender.recommend(7), DataError),  # type: ignore[arg-type]
        (lambda: recommender.recommend(["i1"], allow="i1"), DataError),
        (lambda: recommender.recommend(["i1"], deny=3), DataError),  # type: ignore[arg-type]
        *((lambda k=k: recommender.recommend(["i1"], k), ConfigError) for k in (0, -1, 1.5, "3", None, True, 2**63)),
        *((lambda ks=ks: recommender.evaluate(ks=ks), ConfigError) for ks in ((), "5", (0,), (1.5,), None, (2**63,))),
        (lambda: list(recommender.predict(k=0)), ConfigError),
        (lambda: Recommender.from_recipe("popularity").fit(), DataError),
        (lambda: Recommender.from_recipe("popularity").fit(7), DataError),
        (lambda: Recommender.from_recipe("popularity").fit(tmp_path / "no"), DataError),
        (lambda: Recommender.from_recipe("popularity").fit("planted", interactions={}), DataError),
        (lambda: ItemTokenizer(tokenizer=Atomic()).fit("no such folder"), DataError),
        (lambda: ItemTokenizer(tokenizer=Atomic()).fit(None), DataError),
    ]
    for number, (call, error) in enumerate(wrong):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.hint, number


def test_numbers_name_items_as_their_texts_do() -> None:
    frame = {
        "user": [u for u in range(12) for _ in range(4)],
        "item": [(u + t) % 6 for u in range(12) for t in range(4)],
    }
    frame["timestamp"] = list(range(48))
    recommender = Recommender.from_recipe("popularity").fit(interactions=frame)
    assert recommender.recommend([1, 2], 2, allow=[3, 4], deny=[]).items  # type: ignore[list-item]
    assert recommender.recommend([1], 2, deny=[3]).items == recommender.recommend(["1"], 2, deny=["3"]).items  # type: ignore[list-item]


def test_an_unknown_id_names_a_few_near_ones(recommender: Recommender) -> None:
    with pytest.raises(DataError) as caught:
        recommender.recommend(["i777"])
    assert caught.value.hint is not None
    assert "did you mean 'i7'" in caught.value.hint
    assert len(caught.value.hint) < 80
    with pytest.raises(DataError) as caught:
        recommender.recommend(["zzz"])
    assert caught.value.hint == "known ids look like 'i0', 'i1', 'i2'"


def test_frames_and_paths_are_first_class(shop: Path) -> None:
    rows = [(f"u{u}", f"i{(u + t) % 9}", t) for u in range(20) for t in range(5)]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("user_id", "item_id", "ts"))}
    items = {"item_id": [f"i{n}" for n in range(9)], "title": [f"film {n}" for n in range(9)]}
    found = []
    for kind in (pl.DataFrame, pandas.DataFrame, dict):
        fitted = Recommender.from_recipe("popularity").fit(interactions=kind(columns), items=kind(items))
        found.append(fitted.recommend(["i1"], 3))
        assert found[-1].titles[0].startswith("film")
    assert found[0] == found[1] == found[2]
    assert Recommender.from_recipe("popularity").fit(pl.DataFrame(columns)).recommend(["i1"], 3).items == found[0].items
    by_path = Recommender.from_recipe("popularity").fit(shop)
    assert by_path.catalogue_.fingerprint == Recommender.from_recipe("popularity").fit(str(shop)).catalogue_.fingerprint
    assert isinstance(Dataset.from_frames(columns), Dataset)
    assert len(ItemTokenizer(tokenizer=Atomic()).fit(shop).ids) == 64


def test_settings_are_looked_at_before_the_data(tmp_path: Path) -> None:
    answer = capsid("fit", "rq-kmeans", "--data", "no-such", "--out", tmp_path / "run", *settings("generator.width=0"))
    assert (answer.code, "generator.width must be" in answer.err) == (2, True)


@pytest.mark.parametrize("ids", [[None, "x"], ["", "x"], ["  ", "x"], [1.5, 2.0], ["i1", "x"], ["x", "x"]])
def test_ids_of_added_items_are_checked_as_in_files(ids: list[Any], fitted: Path) -> None:
    recommender = Recommender.from_pretrained(fitted)
    before = list(recommender.catalogue_.items)
    titles = ["amber 0 birch 0 cedar 0 item 9"] * len(ids)
    with pytest.raises(DataError) as caught:
        recommender.add_items({"item_id": ids, "title": titles})
    assert caught.value.hint
    assert list(recommender.catalogue_.items) == before
    assert len(recommender.recommend(["i1"], 3)) == 3


def test_added_items_have_the_ids_that_a_file_would_give(fitted: Path) -> None:
    recommender = Recommender.from_pretrained(fitted)
    titles = ["amber 0 birch 0 cedar 0 item 9"] * 2
    assert recommender.add_items({"item_id": [7.0, 8.0], "title": titles}) == ["7", "8"]
    assert recommender.add_items({"item_id": [" new ", "other"], "title": titles}) == ["new", "other"]
