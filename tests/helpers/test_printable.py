"""Text from data never moves a cursor; letters of all languages stay."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from capsid.base.printable import json_text, one_line, printable


def is_safe(text: str, allowed: str = "") -> bool:
    return all(c in allowed or unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in text) and not any(
        c in text for c in "\u202e\u2066\u200f\ufeff"
    )


@given(st.text(st.characters(codec=None)))
def test_no_control_character_is_left(text: str) -> None:
    assert is_safe(printable(text), allowed="\n\t")
    assert is_safe(one_line(text))
    assert is_safe(json_text([text], indent=1), allowed="\n")


@given(st.text())
def test_json_says_the_same(text: str) -> None:
    assert json.loads(json_text({text: [text]})) == {text: [text]}


def test_letters_stay() -> None:
    for text in ("Amélie", "東京物語", "Ёлки", "👍🏽", "فيلم", "a b"):
        assert printable(text) == one_line(text) == text
    assert printable("a\x1b[2Jb\rc\x9bd\x7f") == "a\\x1b[2Jb\\rc\\x9bd\\x7f"
    assert one_line("a\nb\tc") == "a\\nb\\tc"
