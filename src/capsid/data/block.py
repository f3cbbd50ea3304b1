"""Rows of a table, and where a message says that a row stands: on a line of a text file, else by its number.

Knows neither how files are read nor what the columns mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Block:
    """Rows of a file or a frame; `first` is the number of the first one, counted from 1.

    In a text file, `line_of` gives the line on which a row begins, as an editor counts. Broken lines, blank lines and
    fields with line breaks make it differ from the number of the row.
    """

    file: str
    first: int
    frame: pl.DataFrame
    line_of: Callable[[int], int] | None = None

    def where(self, row: int) -> str:
        """The place of a row of this block, counted from 0."""
        if self.line_of is None:
            return f"{self.file} row {self.first + row}"
        return f"{self.file}:{self.line_of(row)}"
