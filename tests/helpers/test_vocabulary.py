from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.errors import DataError
from capsid.vocabulary import Vocabulary

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
