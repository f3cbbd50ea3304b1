"""Values from files of others."""

from __future__ import annotations

from typing import Any

import pytest

from capsid.base.storage import untrusted
from capsid.errors import ArtifactError


@pytest.mark.parametrize("value", ["\x1b[2J\x1b[31mred\x07", True, 1.0, None, 0, 11, [1], "7"])
def test_what_is_no_whole_number_is_quoted_without_control_characters(value: Any) -> None:
    with pytest.raises(ArtifactError, match=r"size is .*, not a whole number from 1 to 10") as caught:
        untrusted.whole(value, "size", least=1, most=10)
    assert caught.value.message.isprintable()


def test_long_values_are_cut() -> None:
    with pytest.raises(ArtifactError) as caught:
        untrusted.whole("a" * 10_000, "size", least=1, most=10)
    assert len(caught.value.message) < 120


def test_whole_numbers() -> None:
    assert [untrusted.whole(n, "size", least=1, most=10) for n in (1, 10)] == [1, 10]
