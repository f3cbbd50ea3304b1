from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from worlds import Watcher

from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode import text as text_module
from capsid.encode.text import HashingEncoder, TextEncoder, item_texts
from capsid.errors import ConfigError, DataError
from encode.catalogue import make_table, some


def titled(titles: list[str | None], **columns: list) -> ItemTable:
    frame = pl.DataFrame({"title": titles, **columns}, schema_overrides={"title": pl.String})
    return ItemTable.new_items(Vocabulary(f"i{n}" for n in range(len(titles))), frame, tuple(frame.columns))


def test_one_template_for_all_items() -> None:
    table = titled(
        ["Red  Shoe.", None, "Hat", ""],
        brand=["Acme", "Acme", None, None],
        categories=[["A", "B"], None, [], ["C"]],
        price=[1.5, None, 2.0, None],
    )
    assert item_texts(table) == ["Red Shoe. Acme. A > B. 1.5", "Acme", "Hat. 2.0", "C"]
    assert item_texts(table, ("categories", "title")) == ["A > B. Red Shoe", "", "Hat", "C"]
    assert item_texts(table, ("unknown",)) == [""] * 4


def test_several_paths_of_categories() -> None:
    table = titled(["x"], categories=[[["A", "B"], ["C"]]])
    assert item_texts(table) == ["x. A > B; C"]


def test_minilm_knows_meaning() -> None:
    table = titled(["nail varnish", "fingernail lacquer", "garden hose", "watering pipe"])
    vectors = TextEncoder().fit(table).transform(table)
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    assert cosines.argmax(axis=1).tolist() == [1, 0, 3, 2]


def test_text_is_cut_at_max_tokens() -> None:
    table = titled(["red nail polish with glitter", "red nail polish with a very different end"])
    short, long = (TextEncoder(max_tokens=n).fit(table).transform(table) for n in (5, 64))
    np.testing.assert_allclose(short[0], short[1], atol=1e-5)
    assert long[0] @ long[1] < 0.95


def test_equal_texts_are_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Model:
        max_seq_length = 0

        def encode(self, batch: list[str], **_: object) -> np.ndarray:
            seen.extend(batch)
            return np.array([[len(t), 1.0] for t in batch])

    monkeypatch.setattr(text_module, "load_model", lambda name: Model())
    watcher = Watcher()
    table = titled(["long title here", "a", "long title here", "bb"])
    vectors = TextEncoder(batch_size=2).fit(table).transform(table, progress=watcher)
    assert seen == ["a", "bb", "long title here"], "each text once, short ones first"
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert "3 of 3 texts" in watcher.updates[-1]
    assert "items/s" in watcher.updates[-1]
    assert "left" in watcher.updates[-1]


@pytest.mark.parametrize("make", [TextEncoder, HashingEncoder])
def test_a_few_blank_items_are_zeros_many_are_an_error(make: type) -> None:
    few = titled([*(f"title {n}" for n in range(20)), None])
    vectors = make().fit(few).transform(few)
    assert not vectors[20].any()
    assert np.any(vectors[:20] != 0, axis=1).all()
    with pytest.raises(DataError, match=r"2 of 4 items have no text in title: 'i1', 'i3'"):
        make().fit(titled(["a", None, "b", " "]))


@pytest.mark.parametrize("make", [TextEncoder, HashingEncoder])
def test_fields_are_fixed_at_fit_and_checked(make: type) -> None:
    table = make_table()
    with pytest.raises(ConfigError, match="no text field 'titel'") as caught:
        make(fields=("titel",)).fit(table)
    assert "title" in str(caught.value.hint)
    with pytest.raises(DataError, match="have no text"):
        make().fit(replace(table, text_fields=()))
    encoder = make(fields=("title",)).fit(table)
    alone = some(table, [3])
    np.testing.assert_array_equal(encoder.transform(alone), encoder.transform(replace(alone, text_fields=("brand",))))


def test_missing_package_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    text_module.load_model.cache_clear()
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    table = titled(["x"])
    with pytest.raises(ConfigError, match="sentence_transformers") as caught:
        TextEncoder().fit(table).transform(table)
    assert "capsid-rec[text]" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["./no-such-model", "no-such-owner/no-such-model"])
def test_unknown_model_is_a_config_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    table = titled(["x"])
    with pytest.raises(ConfigError, match="no-such-model' could not be loaded"):
        TextEncoder(model=name).fit(table).transform(table)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    text_module.load_model.cache_clear()
    table = titled(["quiet please"])
    TextEncoder().fit(table).transform(table)
    assert capfd.readouterr() == ("", "")


def test_bad_numbers_are_config_errors() -> None:
    with pytest.raises(ConfigError):
        TextEncoder(batch_size=0)
    with pytest.raises(ConfigError):
        HashingEncoder(dim=0)


def test_hashing_sees_shared_words_and_spellings() -> None:
    table = titled(["red nail polish", "nail polishes in red", "garden hose", "gardening hoses", *"abcdefgh"])
    vectors = HashingEncoder(dim=512).fit(table).transform(table)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.3 > cosines[0, 2]
    assert cosines[2, 3] > 0.3 > cosines[1, 3]


def test_hashing_is_the_same_in_every_process() -> None:
    # Python's own hash() would give another number in each; this one must also survive releases.
    assert text_module._bucket("nail") == 1133708198 % text_module.BUCKETS


def test_rare_words_weigh_more_than_common_ones() -> None:
    table = titled(["common zebra", *(f"common {word}" for word in ("apple", "pear", "plum", "fig", "lime")), "zebra"])
    vectors_ND = HashingEncoder().fit(table).transform(table)
    unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    alike_N = unit_ND @ unit_ND[0]
    assert alike_N[6] > alike_N[1:6].max()
