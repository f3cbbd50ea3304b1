"""The items of `capsid vectors embed`: a Parquet file that workers read in slices, and the fields of the text."""

from __future__ import annotations

from pathlib import Path

from capsid.errors import ConfigError
from capsid.progress import Progress


def text_items(data: str | None, items: Path | None, fields: str, progress: Progress) -> tuple[Path, tuple[str, ...]]:
    """The file or folder of items and the columns of their text; other forms are rewritten as Parquet once."""
    from capsid.base.storage.artifacts import file_hash
    from capsid.cli.items_file import read_items_file
    from capsid.data.dataset import choose_text_fields
    from capsid.data.sources import as_dataset
    from capsid.scale.texts import stored_items

    if (data is None) == (items is None):
        raise ConfigError("give either --data or --items", hint="such as --data movies, or --items items.parquet")
    named = tuple(field.strip() for field in fields.split(",") if field.strip())
    if data is not None:
        dataset = as_dataset(data, progress=progress)
        chosen = _known(named or dataset.text_fields, dataset.attributes.columns)
        return stored_items(dataset.items, dataset.attributes, chosen, dataset.fingerprint), chosen
    assert items is not None
    if items.is_dir() or items.suffix == ".parquet":
        return items, named or _usual(items)
    ids, attributes = read_items_file(items)
    chosen = _known(named or choose_text_fields(attributes), attributes.columns)
    return stored_items(ids, attributes, chosen, file_hash(items)), chosen


def _usual(items: Path) -> tuple[str, ...]:
    """The usual fields, judged by the first rows of the first file."""
    import polars as pl

    from capsid.data.dataset import choose_text_fields
    from capsid.errors import DataError

    files = sorted(items.glob("*.parquet")) if items.is_dir() else [items]
    try:
        return choose_text_fields(pl.read_parquet(files[0], n_rows=1000)) if files else ()
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0][:200]
        raise DataError(f"{files[0]} could not be read: {reason}", hint="the file may be truncated") from None


def _known(fields: tuple[str, ...], columns: list[str]) -> tuple[str, ...]:
    from capsid.errors import nearest

    for field in fields:
        if field not in columns:
            raise ConfigError(f"the items have no text field {field!r}", hint=nearest(field, columns))
    return fields
