"""How a folder of tables is read where it is not in the usual form: names of columns, texts, rows to skip.

Knows neither files nor frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capsid.errors import ConfigError

# What a column may be named for: the roles of interactions, and attributes of items.
ROLES = ("user", "item", "time", "rating")
ATTRIBUTES = ("title", "brand", "categories", "description", "keywords", "price")
HINT = "such as --columns user=Kunde,item=Artikel,time=Datum"
# Findings about single rows, which can be skipped without losing others.
ROWS = ("missing-value", "unknown-id", "duplicate-id", "mixed-types", "not-utf8", "broken-line")


@dataclass(frozen=True)
class TableOptions:
    """`columns`: the column of a role or an attribute. `text`: the columns that make an item's text. `skip_bad`: rows
    that cannot be read are left out. `drop_duplicates`: of equal rows of interactions one is kept."""

    columns: Mapping[str, str] = field(default_factory=dict)
    text: tuple[str, ...] = ()
    skip_bad: bool = False
    drop_duplicates: bool = False

    @classmethod
    def parse(
        cls,
        columns: str | None = None,
        text: str | None = None,
        *,
        skip_bad: bool = False,
        drop_duplicates: bool = False,
    ) -> TableOptions:
        """From `user=Kunde,item=Artikel` and `title,tags`."""
        named: dict[str, str] = {}
        for part in _parts(columns, "--columns"):
            role, equals, column = (piece.strip() for piece in part.partition("="))
            if not equals or not column or role not in (*ROLES, *ATTRIBUTES):
                allowed = ", ".join((*ROLES, *ATTRIBUTES))
                raise ConfigError(f"--columns takes NAME=COLUMN with NAME one of {allowed}, got {part!r}", hint=HINT)
            if role in named or column in named.values():
                raise ConfigError(f"--columns names {role if role in named else column!r} twice", hint=HINT)
            named[role] = column
        return cls(named, tuple(_parts(text, "--text")), skip_bad, drop_duplicates)

    @property
    def roles(self) -> dict[str, str]:
        """The columns of interactions by what the readers call them."""
        names = {"time": "timestamp"}
        return {names.get(role, role): column for role, column in self.columns.items() if role in ROLES}

    @property
    def renamed(self) -> dict[str, str]:
        """Columns of items by the attribute they become."""
        return {column: name for name, column in self.columns.items() if name in ATTRIBUTES}

    @property
    def needed(self) -> str | None:
        """The first option that is not at its default and only tables know."""
        options = {
            "--columns": self.columns,
            "--text": self.text,
            "--skip-bad-rows": self.skip_bad,
            "--drop-duplicates": self.drop_duplicates,
        }
        return next((name for name, value in options.items() if value), None)


PLAIN = TableOptions()


def _parts(text: str | None, option: str) -> list[str]:
    parts = [part.strip() for part in (text or "").split(",")]
    if text is not None and not all(parts):
        raise ConfigError(f"{option} must be names separated by commas, got {text!r}", hint=HINT)
    return parts if text is not None else []
