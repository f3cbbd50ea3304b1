"""External id <-> dense number. The only place where a user's ids become row numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from capsid.errors import DataError, UnknownIdError, nearest


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
        """The number of one id; an unknown id is an error that names its neighbours."""
        try:
            return self._numbers[id_]
        except KeyError:
            sample = nearest(id_, self._ids[:2000]).split(" allowed:")[0] if len(self._ids) <= 2000 else None
            raise UnknownIdError(f"unknown id {id_!r}", hint=sample) from None

    def numbers(self, ids: Iterable[str], *, missing: str = "raise") -> np.ndarray:
        """Numbers of many ids. `missing`: "raise", or "drop" the unknown ones, or "negative" (-1)."""
        if missing == "raise":
            return np.array([self.number(i) for i in ids], dtype=np.int64)
        found = np.array([self._numbers.get(i, -1) for i in ids], dtype=np.int64)
        return found[found >= 0] if missing == "drop" else found

    def ids(self, numbers: Iterable[int]) -> list[str]:
        """Ids of many numbers."""
        return [self._ids[int(n)] for n in numbers]
