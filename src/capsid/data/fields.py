"""Categorical fields of items: one value per item, from a column of text, numbers or category paths.

Rare values, missing values and values that only added items have all count as one value: unknown. Knows no file and no
model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from capsid.errors import ConfigError, DataError, nearest
from capsid.progress import Progress
from capsid.settings import check_settings, setting

UNKNOWN = 0


@dataclass(kw_only=True, frozen=True)
class Field:
    """A column; if it holds lists (category paths), one level of them."""

    kind: ClassVar[str] = "field"
    column: str = setting("categories", "Column of the items that holds the values.", count=(1, None))
    level: int = setting(0, "Which list element to use, from 0; a column without lists has only level 0.", least=0)
    least: int = setting(5, "Values of fewer items than this count as unknown.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def name(self) -> str:
        """Name for messages and reports."""
        return f"{self.column}[{self.level}]" if self.level else self.column

    def values(self, attributes: pl.DataFrame) -> list[str | None]:
        """The value of every item as text; None if missing."""
        if self.column not in attributes.columns:
            return [None] * len(attributes)
        rows = (value if isinstance(value, list) else [value] for value in attributes[self.column].to_list())
        found = (levels[self.level] if self.level < len(levels) else None for levels in rows)
        return [None if value is None or value == "" else str(value) for value in found]


@dataclass(frozen=True)
class FieldValues:
    """The known values of a field, numbered from 1 in alphabetical order; 0 is unknown."""

    field: Field
    names: tuple[str, ...]

    @classmethod
    def learn(cls, field: Field, attributes: pl.DataFrame) -> FieldValues:
        """From a catalogue. The column must exist and must not be empty."""
        if field.column not in attributes.columns:
            raise ConfigError(
                f"the items have no column {field.column!r}, which a field needs",
                hint=nearest(field.column, attributes.columns),
            )
        values = field.values(attributes)
        counts = Counter(value for value in values if value is not None)
        if values and not counts:
            raise DataError(
                f"no item has a value of the field {field.name}", hint="choose another column or level, or add metadata"
            )
        return cls(field, tuple(sorted(name for name, count in counts.items() if count >= field.least)))

    def __len__(self) -> int:
        return len(self.names) + 1

    def numbers(self, attributes: pl.DataFrame) -> np.ndarray:
        """The number of every item's value. Shape: (items,)."""
        number = {name: n for n, name in enumerate(self.names, UNKNOWN + 1)}
        return np.array([number.get(v, UNKNOWN) if v is not None else UNKNOWN for v in self.field.values(attributes)])


def learn_fields(fields: Sequence[Field], attributes: pl.DataFrame) -> tuple[FieldValues, ...]:
    """The values of every field."""
    return tuple(FieldValues.learn(field, attributes) for field in fields)


def field_numbers(fields: Sequence[FieldValues], attributes: pl.DataFrame) -> np.ndarray:
    """The numbers of every item's values. Shape: (items, fields)."""
    columns = [values.numbers(attributes) for values in fields]
    return np.stack(columns, axis=1).astype(np.int32) if columns else np.zeros((len(attributes), 0), dtype=np.int32)


def tell_fields(fields: Sequence[FieldValues], numbers_NF: np.ndarray, progress: Progress) -> None:
    """How many values each field has and how often they are unknown; whether a field carries no information."""
    for values, number_N in zip(fields, numbers_NF.T):
        name, unknown = values.field.name, 100 * float((number_N == UNKNOWN).mean())
        progress.line(f"field {name}: {len(values.names):,} values, unknown for {unknown:.1f} % of items")
        if len(np.unique(number_N)) == 1:
            progress.line(f"field {name} has one value for all items, so it carries no information")
