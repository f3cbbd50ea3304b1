"""Maps external ids to dense numbers and back. The only place where a user's ids become row numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from capsid.errors import DataError, UnknownIdError


class Vocabulary(Sequence[str]):
    """An ordered set of ids; number i stands for the i-th id."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids: tuple[str, ...] = tuple(ids)
        self._numbers = {id_: i for i, id_ in enumerate(self._ids)}
        if len(self._numbers) != len(self._ids):
            seen: set[str] = set()
            double = next(i for i in self._ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise DataError(f"id {double!r} occurs twice", hint="ids must be unique")

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._ids[index]

    def __contains__(self, id_: object) -> bool:
        return id_ in self._numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)

    def number(self, id_: str) -> int:
        """The number of one id; an unknown id is an error that suggests similar ids."""
        try:
            return self._numbers[id_]
        except KeyError:
            raise UnknownIdError(f"unknown id {id_!r:.100}", hint=self._near(id_)) from None

    def _near(self, id_: Any) -> str:
        """A few known ids that look like this one, else the first few."""
        # Comparing ids is slow, so only the first ids of a large catalogue are considered.
        close = difflib.get_close_matches(str(id_), self._ids[:20_000], n=3, cutoff=0.6)
        if close:
            return f"did you mean {' or '.join(map(repr, close))}?"
        return f"known ids look like {', '.join(map(repr, self._ids[:3]))}" if self._ids else "there are no ids"

    def numbers(self, ids: Iterable[str], *, missing: str = "raise") -> np.ndarray:
        """Numbers of many ids. For unknown ids, `missing` is "raise", "drop" or "negative" (-1)."""
        if missing == "raise":
            return np.array([self.number(i) for i in ids], dtype=np.int64)
        found = np.array([self._numbers.get(i, -1) for i in ids], dtype=np.int64)
        return found[found >= 0] if missing == "drop" else found

    def ids(self, numbers: Iterable[int]) -> list[str]:
        """Ids of many numbers."""
        return [self._ids[int(n)] for n in numbers]
