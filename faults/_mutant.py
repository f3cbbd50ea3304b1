"""A mistake to plant: a file, a text that occurs in it once, its replacement, and the tests that should notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`tests` are files or folders below `tests/`, or single tests (`file::test`): the narrowest that should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


# File -> (name, text that stands in it once, what it becomes, tests that should notice, separated by spaces).
Mistakes = dict[str, tuple[tuple[str, str, str, str], ...]]


def mutants(*lists: Mistakes) -> Iterator[Mutant]:
    """The mistakes of several lists, named after their files."""
    for mistakes in lists:
        for file, found in mistakes.items():
            for name, old, new, tests in found:
                yield Mutant(f"{file}: {name}", file, old, new, tuple(tests.split()))
