"""One version of the catalogue, and how an edit makes the next.

A snapshot never changes: a search that began with a version ends with it, and dropping the last reference frees it.
Edits are plain values that a journal can hold: add items, retire or restore some, go back to an earlier version.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import polars as pl

from capsid.answering import Answerer, Query
from capsid.errors import DataError, nearest
from capsid.explain.items import OpenTokenizer
from capsid.explain.prefixes import Prefixes
from capsid.ids.semantic_ids import prefix_free
from capsid.ids.trie import Trie
from capsid.recommender import Recommender
from capsid.serve.errors import Refused

logger = logging.getLogger("capsid.serve")
Operation = Literal["add", "retire", "restore", "rollback", "reload"]
CANARIES = 10
# The operation of a journal's line that holds a whole state instead of an edit.
WHOLE = "state"


@dataclass(frozen=True)
class Edit:
    """`rows` are new items with their attributes, `items` ids to retire or restore, `to` a version to go back to.

    `mark` tells reloads apart, which read the run's folder at different times.
    """

    operation: Operation
    rows: tuple[Mapping[str, Any], ...] = ()
    items: tuple[str, ...] = ()
    to: int = 0
    mark: str = ""

    @property
    def slow(self) -> bool:
        """Whether a version with this edit takes long to build."""
        return self.operation in ("add", "reload")

    def marked(self) -> Edit:
        """The edit; a reload gets a mark of its own."""
        return dataclasses.replace(self, mark=secrets.token_hex(8)) if self.operation == "reload" else self

    @property
    def named(self) -> tuple[str, ...]:
        """The ids of the items that are added, retired or restored."""
        return tuple(str(row["item_id"]) for row in self.rows) + self.items

    def to_line(self, version: int) -> dict[str, Any]:
        """The journal's form of the edit, with the version it created."""
        line: dict[str, Any] = {"version": version, "operation": self.operation}
        for name, value in (("rows", self.rows), ("items", self.items), ("to", self.to), ("mark", self.mark)):
            if value:
                line[name] = list(value) if isinstance(value, tuple) else value
        return line

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Edit:
        """Rebuild the edit from a line of the journal; raises ValueError if it is not exactly such a line."""
        operation = line["operation"]
        if operation not in FIELDS:
            raise ValueError(f"unknown operation {operation!r}")
        own = {name: value for name, value in line.items() if name not in ("version", "operation")}
        # Reloads of release 0.1 had no mark.
        if own.keys() != FIELDS[operation] and not (operation == "reload" and not own):
            raise ValueError(f"fields must be {sorted(FIELDS[operation])}, got {sorted(own)}")
        to, mark = own.get("to", 0), own.get("mark", "")
        if type(to) is not int or not isinstance(mark, str):
            raise ValueError("`to` must be a version, and `mark` a text")
        return cls(operation, _rows(own.get("rows", [])), _texts(own.get("items", [])), to, mark)


# The fields of an edit's line beside version and operation.
FIELDS: Mapping[str, set[str]] = {
    "add": {"rows"},
    "retire": {"items"},
    "restore": {"items"},
    "rollback": {"to"},
    "reload": {"mark"},
}


def _rows(rows: Any) -> tuple[Mapping[str, Any], ...]:
    """New items of a line: objects with an id."""
    if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("item_id"), str) for r in rows):
        raise ValueError("rows must be a list of items with an item_id")
    return tuple(rows)


def _texts(texts: Any) -> tuple[str, ...]:
    """Item ids of a line."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("items must be a list of ids")
    return tuple(texts)


@dataclass(frozen=True)
class State:
    """The effect of all edits on a run's own catalogue: items added, in order, ids retired, and ids restored.

    A difference to the run, so that it applies to the run as it is in its folder at any time.
    """

    added: tuple[Mapping[str, Any], ...] = ()
    retired: frozenset[str] = frozenset()
    restored: frozenset[str] = frozenset()

    def after(self, *edits: Edit) -> State:
        """The state after edits that add, retire or restore."""
        rows = tuple(row for edit in edits if edit.operation == "add" for row in edit.rows)
        last = {item: edit.operation for edit in edits for item in edit.named}
        retired = frozenset(item for item, operation in last.items() if operation == "retire")
        restored = frozenset(item for item, operation in last.items() if operation == "restore")
        return State(self.added + rows, self.retired.difference(last) | retired, (self.restored - retired) | restored)

    def to_line(self, version: int, before: State) -> dict[str, Any]:
        """The journal's form of a whole state. It does not repeat the first rows that `before` has too."""
        pairs = zip(self.added, before.added)
        kept = next((n for n, (own, other) in enumerate(pairs) if own is not other and own != other), None)
        kept = min(len(self.added), len(before.added)) if kept is None else kept
        lists = {"rows": list(self.added[kept:]), "retired": sorted(self.retired), "restored": sorted(self.restored)}
        return {"version": version, "operation": WHOLE, "kept": kept, **lists}

    @classmethod
    def from_line(cls, line: Mapping[str, Any], before: State) -> State:
        """Rebuild the state from a line and the state of the line before it."""
        kept = line["kept"]
        if type(kept) is not int or not 0 <= kept <= len(before.added):
            raise ValueError(f"kept must be from 0 to {len(before.added)}, got {kept!r}")
        rows = before.added[:kept] + _rows(line["rows"])
        return cls(rows, frozenset(_texts(line["retired"])), frozenset(_texts(line["restored"])))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A version of the catalogue with everything that answers need."""

    version: int
    recommender: Recommender
    state: State

    @cached_property
    def answerer(self) -> Answerer:
        return self.recommender.answerer

    @cached_property
    def tokenizer(self) -> OpenTokenizer:
        return OpenTokenizer(self.recommender.fitted.tokenizer, self.recommender.catalogue_.titles)

    @cached_property
    def prefixes(self) -> Prefixes:
        """Describes prefixes of the ids that the search walks."""
        return self._prefixes(self.recommender.fitted.model.trie)

    @cached_property
    def unmerged_prefixes(self) -> Prefixes:
        """Describes prefixes of the ids before merging; the same ones where ids have no merges."""
        ids = self.recommender.fitted.tokenizer.ids
        if not len(ids.layout.merges):
            return self.prefixes
        return self._prefixes(Trie.build(prefix_free(ids.unmerged)))

    def _prefixes(self, trie: Trie) -> Prefixes:
        catalogue = self.recommender.catalogue_
        names = catalogue.attributes.columns
        categories = catalogue.attributes["categories"] if "categories" in names else None
        vectors = self.recommender.fitted.tokenizer.vectors_
        return Prefixes(trie, catalogue.titles, catalogue.counts, categories, vectors)

    @cached_property
    def lowered(self) -> pl.Series:
        """Titles in lower case, for searches."""
        titles = self.recommender.catalogue_.titles
        return pl.Series("title", [title.lower() for title in titles], dtype=pl.String)

    def is_retired(self, item: str) -> bool:
        """Whether an item is retired, so never recommended."""
        return item in self.recommender.catalogue_.retired

    def then(self, edit: Edit) -> Snapshot:
        """The next version. The edited items must exist; rollback and reload need more than one snapshot."""
        grown = copy.copy(self.recommender)
        if edit.operation == "add":
            grown.add_items(accepted_frame(edit.rows, self.recommender.catalogue_.attributes))
        elif edit.operation == "retire":
            grown.retire(edit.items)
        elif edit.operation == "restore":
            grown.restore(edit.items)
        after = Snapshot(self.version + 1, grown, self.state.after(edit))
        if edit.operation != "add":
            after.__dict__.update({name: self.__dict__[name] for name in _OF_ITEMS if name in self.__dict__})
        return after

    def check(self, added: Sequence[str] = ()) -> None:
        """Run a search that must succeed before this version is served."""
        catalogue = self.recommender.catalogue_
        popular = catalogue.items[int(catalogue.counts.argmax())]
        queries = [Query((popular,), 10)]
        if added:
            queries.append(Query((popular,), CANARIES, allow=tuple(added[:CANARIES]), filter_history=False))
        failed = Refused(500, "canary", "a trial search over the edited catalogue failed; the edit was not made")
        try:
            found = self.answerer.answer(queries)
        except Exception as error:
            raise failed from error
        broken = [a for a in found if any(self.is_retired(i) for i in a.items) or not all(map(math.isfinite, a.scores))]
        if broken or (added and not set(found[1].items) == set(added[:CANARIES])):
            raise failed


# What a snapshot derives from its items alone, so that it stays when items are retired. It takes a while to make.
_OF_ITEMS = ("tokenizer", "prefixes", "unmerged_prefixes", "lowered")


def item_frame(rows: Sequence[Mapping[str, Any]], like: pl.DataFrame) -> pl.DataFrame:
    """New items as a table with the columns and types of the catalogue's attributes; missing values are null."""
    allowed = {"item_id", *like.columns}
    for row in rows:
        for name in row:
            if name not in allowed:
                raise DataError(f"items of this run have no attribute {name!r}", hint=nearest(name, allowed))
    columns = [pl.Series("item_id", [row["item_id"] for row in rows], dtype=pl.String)]
    return pl.DataFrame([*columns, *(_column(name, [row.get(name) for row in rows], like) for name in like.columns)])


def accepted_frame(rows: Sequence[Mapping[str, Any]], like: pl.DataFrame) -> pl.DataFrame:
    """Items that were accepted before, perhaps by a newer or older run: what this run has no place for is left out."""
    try:
        return item_frame(rows, like)
    except DataError:
        fitting = [{name: row[name] for name in row if _fits(name, row[name], like)} for row in rows]
    left_out = sorted({name for row, kept in zip(rows, fitting) for name in row if name not in kept})
    logger.warning("attributes of added items that do not fit this run are left out: %s", ", ".join(left_out))
    return item_frame(fitting, like)


def _fits(name: str, value: Any, like: pl.DataFrame) -> bool:
    if name not in like.columns:
        return name == "item_id"
    try:
        _column(name, [value], like)
    except DataError:
        return False
    return True


def _column(name: str, values: list[Any], like: pl.DataFrame) -> pl.Series:
    dtype = like.schema[name]
    try:
        return pl.Series(name, values, dtype=dtype, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        raise DataError(f"attribute {name!r} must be of type {dtype}", hint=f"got {values[0]!r}"[:200]) from None


def with_state(recommender: Recommender, state: State, version: int) -> Snapshot:
    """A run's own catalogue with all edits applied at once. Items that the run already contains are not added."""
    known = recommender.catalogue_.items
    grown = copy.copy(recommender)
    rows = [row for row in state.added if row["item_id"] not in known]
    if rows:
        grown.add_items(accepted_frame(rows, recommender.catalogue_.attributes))
    grown.restore(i for i in state.restored if i in grown.catalogue_.items)
    grown.retire(i for i in state.retired if i in grown.catalogue_.items)
    return Snapshot(version, grown, state)
