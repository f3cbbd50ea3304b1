from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.storage.mapped_arrays import TextsWriter, map_texts
from capsid.base.vocabulary import Vocabulary, text_hash, text_hashes
from capsid.errors import DataError

IDS = st.lists(st.text(max_size=4), unique=True, max_size=20)


@given(ids=IDS)
def test_numbers_and_ids_are_inverse(ids: list[str]) -> None:
    vocabulary = Vocabulary(ids)
    assert vocabulary.ids(vocabulary.numbers(ids)) == ids
    assert vocabulary.numbers(ids).tolist() == list(range(len(ids)))
    assert [vocabulary[i] for i in range(len(ids))] == ids
    assert all(i in vocabulary for i in ids)
    assert vocabulary == Vocabulary(ids)
    assert hash(vocabulary) == hash(Vocabulary(ids))


def test_order_matters() -> None:
    assert Vocabulary(["a", "b"]) != Vocabulary(["b", "a"])


def test_unknown_ids() -> None:
    vocabulary = Vocabulary(["apple", "bread"])
    with pytest.raises(DataError, match="unknown id 'appel'") as caught:
        vocabulary.numbers(["bread", "appel"])
    assert caught.value.hint is not None
    assert "'apple'" in caught.value.hint
    assert vocabulary.numbers(["bread", "?", "apple"], missing="drop").tolist() == [1, 0]
    assert vocabulary.numbers(["bread", "?", "apple"], missing="negative").tolist() == [1, -1, 0]
    assert "?" not in vocabulary


def test_a_large_vocabulary_names_a_few_ids() -> None:
    with pytest.raises(DataError) as caught:
        Vocabulary(str(i) for i in range(5000)).number("x")
    assert caught.value.hint == "known ids look like '0', '1', '2'"


def test_ids_must_be_unique() -> None:
    with pytest.raises(DataError, match="id 'b' occurs twice"):
        Vocabulary(["a", "b", "c", "b"])


@given(ids=IDS, start=st.integers(0, 20), stop=st.integers(0, 20))
def test_the_quick_hash_is_the_plain_one(ids: list[str], start: int, stop: int) -> None:
    part = Vocabulary(ids).part(start, min(stop, len(ids)))
    assert part[:] == tuple(ids[start:stop])
    assert text_hashes(part.column).tolist() == [text_hash(i.encode()) for i in part]


def test_ids_with_the_same_hash() -> None:
    """The Thue-Morse word and its complement agree under every polynomial hash modulo a power of two."""
    bits = [bin(n).count("1") % 2 for n in range(4096)]
    word, other = ("".join("ab"[b ^ flip] for b in bits) for flip in (0, 1))
    assert text_hash(word.encode()) == text_hash(other.encode())
    vocabulary = Vocabulary(["x", word, other])
    assert [vocabulary.number(i) for i in ("x", word, other)] == [0, 1, 2]
    assert vocabulary.numbers(Vocabulary([other, "y", word]), missing="negative").tolist() == [2, -1, 1]
    assert word not in Vocabulary([other])
    with pytest.raises(DataError, match="occurs twice"):
        Vocabulary([word, other, word])


@given(ids=IDS, asked=IDS)
def test_many_ids_are_found_as_one_by_one(ids: list[str], asked: list[str]) -> None:
    vocabulary = Vocabulary(ids)
    single = [ids.index(i) if i in ids else -1 for i in asked]
    assert vocabulary.numbers(asked, missing="negative").tolist() == single
    assert vocabulary.numbers(Vocabulary(asked), missing="negative").tolist() == single


def test_more_ids_come_after() -> None:
    few = Vocabulary(["a", "b"])
    assert few.extended(["c"]) == Vocabulary(["a", "b", "c"])
    assert few.extended([]) == few
    with pytest.raises(DataError, match="'b' already has an id"):
        few.extended(["c", "b"])
    with pytest.raises(DataError, match="'c' occurs twice"):
        few.extended(["c", "c"])


def test_what_is_no_id() -> None:
    vocabulary = Vocabulary(pl.Series(["a", "b"]))
    assert 3 not in vocabulary
    assert "\ud800" not in vocabulary
    assert (vocabulary[-1], vocabulary[::-1]) == ("b", ("b", "a"))
    with pytest.raises(IndexError):
        vocabulary[2]
    with pytest.raises(DataError, match="ids must be strings"):
        Vocabulary(["a", "\ud800"])
    with pytest.raises(DataError, match="1 ids are missing"):
        Vocabulary(["a", None])  # type: ignore[list-item]


@given(ids=IDS, step=st.integers(1, 7))
def test_mapped_texts(ids: list[str], step: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.mktemp("texts") / "ids"
    every = Vocabulary(ids)
    with TextsWriter(path) as writer:
        for start in range(0, len(ids), step):
            writer.add(every.part(start, min(start + step, len(ids))).column)
    assert Vocabulary.of_unique(map_texts(path)) == every
