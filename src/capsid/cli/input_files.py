"""Files that verbs read: histories of users, items, and settings in TOML.

Settings have the same fields as in `--set`, with tables instead of dotted names:

[tokenizer]
codebooks = [64, 64, 64]
[[schedule]]
training = { steps = 5000 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsid.base.vocabulary import Vocabulary
from capsid.errors import ConfigError, DataError, UnknownIdError
from capsid.progress import Progress

if TYPE_CHECKING:
    import polars as pl

    from capsid.data.dataset import Dataset
    from capsid.stored import Catalogue

FORMS = (".jsonl", ".jsonl.gz", ".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")


@dataclass(frozen=True)
class UserHistories:
    """Users and the ids of their items, oldest first."""

    users: Sequence[str]
    histories: Sequence[Sequence[str]]

    def only(self, user: str) -> UserHistories:
        """One of the users; an unknown one is an error that names similar ones."""
        try:
            number = Vocabulary(self.users).number(user)
        except UnknownIdError as error:
            message = f"there is no user {user!r:.100} among the {len(self.users):,} users"
            raise UnknownIdError(message, hint=error.hint) from None
        return UserHistories((user,), (self.histories[number],))

    def unknown(self, items: Vocabulary) -> int:
        """How many of the interactions name items that are not among these."""
        return sum(item not in items for history in self.histories for item in history)


def of_run(catalogue: Catalogue) -> UserHistories:
    """All users of a run with all their stored items, including held-out ones."""
    return UserHistories(catalogue.users, [catalogue.items.ids(row) for row in catalogue.histories()])


def of_dataset(data: str, progress: Progress) -> UserHistories:
    """All users of a dataset."""
    from capsid.data.sources import load_dataset

    return _of(load_dataset(data, progress=progress))


def read_histories(path: Path) -> UserHistories:
    """All users of a table with the columns user, item and timestamp, in any form that `--data` reads."""
    from capsid.data.dataset import Dataset
    from capsid.data.findings import Findings
    from capsid.data.frames import join_tables
    from capsid.data.table_files import ENDINGS, read_table

    _check_file(path, "--histories", "a table", ENDINGS)
    findings = Findings()
    block = read_table(path, findings)
    findings.raise_first()
    histories = join_tables([block], None, findings=findings)
    findings.raise_first()
    return _of(Dataset.of(histories, name=path.name))


def _check_file(path: Path, option: str, what: str, endings: tuple[str, ...]) -> None:
    if not path.is_file():
        raise DataError(f"there is no file {path}", hint=f"{option} takes {what}: {', '.join(endings)}")
    if not path.name.endswith(endings):
        raise DataError(f"{option} must end in {' or '.join(endings)}, got {path.name}", hint="convert the file")


def _of(dataset: Dataset) -> UserHistories:
    return UserHistories(dataset.users, [dataset.items.ids(row) for row in dataset.sequences])


def read_items_file(path: Path) -> tuple[Vocabulary, pl.DataFrame]:
    """Ids and attributes, in the same order."""
    from capsid.data.findings import Findings
    from capsid.data.frames import read_catalogue
    from capsid.data.prepared import read_items
    from capsid.data.table_files import read_table

    _check_file(path, "--items", "a file", FORMS)
    findings = Findings()
    if ".jsonl" in path.name:
        names, attributes = read_items(path, findings, spaces=True)
    else:
        ids, attributes = read_catalogue(read_table(path, findings), {}, findings)
        names = Vocabulary(ids)
    findings.raise_first()
    return names, attributes


def all_settings(config: Path | None, settings: Sequence[str] | None) -> tuple[str, ...]:
    """`part.field=value` texts: the file's come first, so that `--set` overrides them."""
    return (*(() if config is None else read_settings(config)), *(settings or ()))


def read_settings(path: Path) -> tuple[str, ...]:
    """The settings of a file, as `--set` takes them."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="--config takes a TOML file") from None
    except (ValueError, RecursionError) as error:  # broken TOML or UTF-8, numbers of 5,000 digits, deep nesting
        raise ConfigError(
            f"{path} is not valid TOML: {error}", hint='write [tokenizer] and codebooks = "64,64"'
        ) from None
    return tuple(f"{name}={_text(value)}" for name, value in _leaves(content, ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and values; a list of tables is numbered."""
    tables = isinstance(value, list) and any(isinstance(v, dict) for v in value)
    if not isinstance(value, dict) and not tables:
        yield name, value
        return
    # The kind of a part comes first: it decides which fields the other settings can name.
    pairs = sorted(value.items(), key=lambda p: p[0] != "kind") if isinstance(value, dict) else enumerate(value)
    for key, child in pairs:
        if key == "kind" and name:
            yield name, child
        else:
            yield from _leaves(child, f"{name}.{key}" if name else str(key))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)
