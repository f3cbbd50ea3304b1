"""A folder of tables as a dataset: interactions and optionally items, as Parquet, CSV or JSON lines.

Interactions are one file `interactions.*`, or all files of a folder `interactions/`, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from capsid.data.dataset import Dataset
from capsid.data.events import EventForm, look
from capsid.data.findings import Block, Findings, find_file
from capsid.data.frames import join_tables
from capsid.data.table_files import ENDINGS, BlockSize, table_blocks
from capsid.data.table_options import PLAIN, TableOptions
from capsid.errors import DataError

NAME = "interactions"
INTERACTIONS = tuple(f"{NAME}{ending}" for ending in ENDINGS)
ITEMS = tuple(f"items{ending}" for ending in ENDINGS)


@dataclass(frozen=True)
class TableFiles:
    """The files of a folder of tables. `items` is None if there is no table of items."""

    folder: Path
    interactions: tuple[Path, ...]
    items: Path | None

    @classmethod
    def of(cls, folder: Path) -> TableFiles:
        path, parts = find_file(folder, *INTERACTIONS), folder / NAME
        if path is not None and parts.is_dir():
            raise DataError(
                f"{folder} has both {path.name} and a folder {NAME}", hint="keep the one that holds the interactions"
            )
        if path is None and not parts.is_dir():
            raise DataError(f"{folder} has no {INTERACTIONS[0]} or {INTERACTIONS[1]}, and no folder {NAME}")
        return cls(folder, (path,) if path is not None else _parts(parts), find_file(folder, *ITEMS))

    def blocks(
        self, findings: Findings, size: BlockSize | None = None, *, only: Collection[str] | None = None
    ) -> Iterator[Block]:
        """The interactions in blocks, file after file."""
        for path in self.interactions:
            for block in table_blocks(path, findings, size, only=only):
                name = path.name if path.parent == self.folder else f"{path.parent.name}/{path.name}"
                yield replace(block, file=name)

    def look(self, size: BlockSize, *, min_rating: float | None = None) -> EventForm:
        """How the interactions are read. Parquet says so in its schema, unless times are text."""
        form = look(self._schemas(size), min_rating=min_rating) if self._typed else None
        if form is not None and form.columns[form.names["timestamp"]].kind != "text":
            return form
        only = None if form is None else form.names.values()
        return look(self.blocks(Findings(), size, only=only), min_rating=min_rating)

    def items_block(self, findings: Findings) -> Block | None:
        return None if self.items is None else _whole(table_blocks(self.items, findings), self.folder, findings)

    @property
    def _typed(self) -> bool:
        return self.interactions[0].suffix == ".parquet"

    def _schemas(self, size: BlockSize) -> Iterator[Block]:
        for path in self.interactions:
            yield next(table_blocks(path, Findings(), size))


def is_tables(folder: Path) -> bool:
    """Whether the folder holds interactions."""
    return find_file(folder, *INTERACTIONS) is not None or (folder / NAME).is_dir()


def read_tables(
    folder: Path, findings: Findings, *, min_rating: float | None = None, options: TableOptions = PLAIN
) -> Dataset:
    """Everything that can be read; problems go to `findings`."""
    files = TableFiles.of(folder)
    histories = join_tables(
        [_readable(block, folder, findings) for block in files.blocks(findings)],
        files.items_block(findings),
        findings=findings,
        min_rating=min_rating,
        options=options,
    )
    texts = [n for n, dtype in histories.attributes.schema.items() if dtype in (pl.String, pl.List(pl.String))]
    unknown = next((name for name in options.text if name not in texts), None)
    if unknown is not None:
        hint = f"the items have: {', '.join(texts) or 'none'}"
        raise DataError(f"--text names {unknown!r}, which is no column of text", hint=hint)
    note = provenance(min_rating) | {f"column of {name}": column for name, column in options.columns.items()}
    return Dataset.of(histories, name=folder.resolve().name, text_fields=options.text, provenance=note)


def provenance(min_rating: float | None) -> dict[str, str]:
    """What a dataset of tables says about its origin."""
    return {"format": "tables"} | ({} if min_rating is None else {"min_rating": str(min_rating)})


def _parts(folder: Path) -> tuple[Path, ...]:
    """The files of a folder of parts, which all have one form."""
    paths = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith((".", "_")))
    forms = {path: next((e for e in ENDINGS if path.name.endswith(e)), None) for path in paths}
    odd = next((p.name for p, form in forms.items() if form is None), None)
    if not paths or odd is not None:
        what = f"{folder} has no files" if odd is None else f"{folder} holds {odd}, which is no table"
        raise DataError(what, hint=f"it holds files that end in {', '.join(ENDINGS)}")
    if len(set(forms.values())) > 1:
        raise DataError(
            f"{folder} holds {' and '.join(sorted(map(str, set(forms.values()))))}", hint="write all files in one form"
        )
    return tuple(paths)


def _whole(blocks: Iterator[Block], folder: Path, findings: Findings) -> Block:
    (block,) = blocks
    return _readable(block, folder, findings)


def _readable(block: Block, folder: Path, findings: Findings) -> Block:
    if not block.frame.width:
        # Not a line could be read: why is more useful than which columns are missing.
        findings.raise_first(str(folder))
    return block
