"""The example in the room's docstring runs and says the truth."""

from __future__ import annotations

import doctest

from capsid.tokenize import capsules


def test_the_example_of_the_room_runs() -> None:
    found = doctest.testmod(capsules)
    assert found.attempted >= 12
    assert found.failed == 0
