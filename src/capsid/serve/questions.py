"""Queries of a snapshot that need no search: an item, items by words, a part of the id tree.

Plain functions of a snapshot that return plain values; the routes only pass them on.
"""

from __future__ import annotations

import heapq
import math
from pathlib import Path
from typing import Any

import numpy as np

import capsid
from capsid.answering import Query
from capsid.errors import DataError
from capsid.explaining.search import explain, node_of
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.serve.errors import Refused
from capsid.serve.snapshot import Snapshot

EXAMPLES = 3
# A prefix may hold millions of items: its examples are the most popular of the first ones, up to this number.
LOOKED_AT = 2_000


def found(snapshot: Snapshot, number: int) -> dict[str, Any]:
    """An item for a list."""
    catalogue = snapshot.recommender.catalogue_
    name = catalogue.items[number]
    return {"item": name, "title": catalogue.title(number), "retired": snapshot.is_retired(name)}


def number_of(snapshot: Snapshot, item: str) -> int:
    """An item's row; an unknown item is a 404."""
    try:
        return snapshot.recommender.catalogue_.items.number(item)
    except DataError as error:
        hint = error.hint or "GET /v1/items?q= finds items"
        raise Refused(404, "unknown_item", f"there is no item {item[:200]!r}", hint=hint) from None


def about_item(snapshot: Snapshot, item: str) -> dict[str, Any]:
    """An item with its attributes and the meaning of its id, as `capsid tokenizer inspect` gives it."""
    number = number_of(snapshot, item)
    attributes = snapshot.recommender.catalogue_.attributes.row(number, named=True)
    return {
        **snapshot.tokenizer.inspect(item).to_dict(),
        "retired": snapshot.is_retired(item),
        "attributes": {name: value for name, value in attributes.items() if _says_something(value)},
    }


def _says_something(value: Any) -> bool:
    """Replace numbers that JSON cannot express (not finite)."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def search_items(snapshot: Snapshot, text: str, limit: int, offset: int) -> dict[str, Any]:
    """Items whose id is the text or whose title has all of its words; best: the id, then titles that begin with it."""
    catalogue = snapshot.recommender.catalogue_
    words = text.lower().split()
    start = text.lower().strip()
    matches = [
        (name != text, not title.lower().startswith(start), -int(count), number)
        for number, (name, title, count) in enumerate(zip(catalogue.items, catalogue.titles, catalogue.counts))
        if name == text or all(word in title.lower() for word in words)
    ]
    best = heapq.nsmallest(offset + limit, matches)[offset:]
    return {"items": [found(snapshot, number) for *_, number in best], "total": len(matches)}


def tree(snapshot: Snapshot, prefix: list[int], limit: int) -> dict[str, Any]:
    """A prefix of ids and its largest children; never the whole tree."""
    fitted = snapshot.recommender.fitted
    trie, layout = fitted.trie, fitted.tokenizer.ids.layout
    node = node_at(trie, prefix)
    children = trie.children(np.array([node])).node
    sizes = trie.high[children].astype(np.int64) - trie.low[children]
    largest = children[np.argsort(-sizes, kind="stable")][:limit]
    shown = []
    for child in largest.tolist():
        path = [*prefix, int(trie.token[child])]
        shown.append(
            {
                "token": path[-1],
                "prefix": path,
                "codes": layout.codes(Ragged.from_rows([path]))[0].tolist(),
                **_below(snapshot, trie, child),
            }
        )
    return {"prefix": prefix, "children": shown, "total_children": len(children), **_below(snapshot, trie, node)}


def node_at(trie: Trie, prefix: list[int]) -> int:
    """The node at the end of a prefix; a prefix that no id has is a 404."""
    try:
        return node_of(trie, prefix)
    except DataError as error:
        raise Refused(404, "unknown_prefix", error.message, hint="GET /v1/tree") from None


def _below(snapshot: Snapshot, trie: Trie, node: int) -> dict[str, Any]:
    low, high = int(trie.low[node]), int(trie.high[node])
    counts = snapshot.recommender.catalogue_.counts
    rows = trie.items[low : min(high, low + LOOKED_AT)]
    best = rows[np.argsort(-counts[rows], kind="stable")][:EXAMPLES]
    return {
        "items": high - low,
        "leaf": bool(trie.is_leaf(np.array([node]))[0]),
        "examples": [found(snapshot, int(n)) for n in best],
    }


def explained(snapshot: Snapshot, query: Query, prefix: list[int], influence: bool, shown: int) -> dict[str, Any]:
    """An answer and the search behind it."""
    answerer = snapshot.answerer
    node_at(answerer.retriever.reader.trie, prefix)
    told = explain(answerer, query, prefix=prefix, influence=influence, shown=shown)
    found = told.recommendation
    paths = told.paths or ((),) * len(found)
    ranked = zip(found.items, found.titles, found.scores, paths)
    out = told.to_dict()
    del out["recommendation"], out["paths"]
    return {
        "items": [{"item": i, "title": t, "score": s, "tokens": list(path)} for i, t, s, path in ranked],
        "personal": found.personal,
        "version": snapshot.version,
        **out,
    }


def info(snapshot: Snapshot, run: Path, versions: list[int], limits: dict[str, float]) -> dict[str, Any]:
    """What is served."""
    recommender, catalogue = snapshot.recommender, snapshot.recommender.catalogue_
    layout = recommender.fitted.tokenizer.ids.layout
    return {
        "service": "capsid",
        "package": capsid.__version__,
        "run": run.name,
        "recipe": recommender.recipe.name,
        "about": recommender.recipe.about,
        "dataset": catalogue.name,
        "items": len(catalogue.items),
        "retired": len(catalogue.retired),
        "attributes": catalogue.attributes.columns,
        "vocabulary": layout.vocabulary,
        "version": snapshot.version,
        "versions": versions,
        "limits": limits,
    }
