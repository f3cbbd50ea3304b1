"""Questions about a snapshot: an item, items by words, a test history, an explained search, what is being served.

Plain functions of a snapshot that return plain values; the routes only pass them on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

import capsid
from capsid.answering import Query
from capsid.errors import ArtifactError, DataError
from capsid.evaluate.kept import kept_evaluation
from capsid.evaluate.significance import paired_bootstrap
from capsid.explain.prefixes import Prefixes
from capsid.explain.search import explain, node_of
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.recommender import Recommender
from capsid.serve.errors import Refused
from capsid.serve.snapshot import Snapshot

Of = Literal["tokens", "codes"]
# Longer titles are cut, so that the size of an answer does not depend on the catalogue.
MOST_TITLE = 120
# Items of a test history that are listed, the latest.
MOST_SHOWN = 50
# Draws of the bootstrap: enough for two digits of p.
DRAWS = 2_000


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
    """Whether an attribute has a value that JSON can express."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def titled(snapshot: Snapshot, history: Sequence[str]) -> list[dict[str, Any]]:
    """The items of a history with their titles; an unknown one has its id instead."""
    catalogue = snapshot.recommender.catalogue_
    return [
        {"item": item, "title": catalogue.title(catalogue.items.number(item)) if known else item, "known": known}
        for item, known in ((item, item in catalogue.items) for item in history)
    ]


def search_items(snapshot: Snapshot, text: str, limit: int, offset: int) -> dict[str, Any]:
    """Items whose id is the text or whose title has all of its words; best: the id, then titles that begin with it.

    Among equals the popular ones come first, then the order of the catalogue.
    """
    catalogue, titles = snapshot.recommender.catalogue_, snapshot.lowered
    matches = np.ones(len(titles), dtype=bool)
    for word in text.lower().split():
        matches &= titles.str.contains(word, literal=True).to_numpy()
    exact = catalogue.items.number(text) if text in catalogue.items else -1
    if exact >= 0:
        matches[exact] = True
    rows = np.flatnonzero(matches)
    begins = titles.gather(rows).str.starts_with(text.lower().strip()).to_numpy()
    # One number per row, the smallest first: begins with the text, then popularity, then place.
    counts = catalogue.counts[rows].astype(np.int64)
    keys = (~begins * (1 + counts.max(initial=0)) - counts) * max(len(titles), 1) + rows
    keys[rows == exact] = np.iinfo(np.int64).min
    best = rows[_smallest(keys, offset + limit)][offset:]
    return {"items": [found(snapshot, int(row)) for row in best], "total": len(rows)}


def _smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """Where the smallest keys are, in order."""
    first = np.argpartition(keys, count)[:count] if count < len(keys) else np.arange(len(keys))
    return first[np.argsort(keys[first], kind="stable")]


def example_history(snapshot: Snapshot, number: int) -> dict[str, Any]:
    """The history of a user of the test split, and the item that was held out. Users are not named."""
    cases = snapshot.recommender.catalogue_.split.test
    if number >= len(cases):
        hint = f"numbers go from 0 to {len(cases) - 1}" if len(cases) else "this run has no test split"
        raise Refused(404, "unknown_history", f"there is no test history {number}", hint=hint)
    rows = cases.histories[number][-MOST_SHOWN:]
    return {
        "number": number,
        "total": len(cases),
        "history": [found(snapshot, int(row)) for row in rows],
        "next": found(snapshot, int(cases.targets[number])),
    }


def explained(snapshot: Snapshot, query: Query, prefix: list[int], influence: bool, shown: int) -> dict[str, Any]:
    """An answer and the search behind it."""
    answerer = snapshot.answerer
    node_at(answerer.retriever.model.trie, prefix)
    told = explain(answerer, query, prefix=prefix, influence=influence, shown=shown)
    found = told.recommendation
    paths = told.paths or ((),) * len(found)
    out = told.to_dict()
    parts = out["parts"] or (None,) * len(found)
    ranked = zip(found.items, found.titles, found.scores, paths, parts)
    del out["recommendation"], out["paths"], out["parts"]
    return {
        "history": titled(snapshot, query.history),
        "items": [
            {"item": i, "title": t, "score": s, "tokens": list(path), "parts": own} for i, t, s, path, own in ranked
        ],
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
        "merges": len(layout.merges),
        "histories": len(catalogue.split.test),
        "version": snapshot.version,
        "versions": versions,
        "limits": limits,
    }


@dataclass(frozen=True, eq=False)
class OtherRun:
    """A run to compare with. It is read-only: edits apply to the served run."""

    path: Path
    recommender: Recommender

    @classmethod
    def load(cls, path: str) -> OtherRun:
        return cls(Path(path), Recommender.from_pretrained(path))


def compared(served: Path, snapshot: Snapshot, others: list[OtherRun], query: Query) -> dict[str, Any]:
    """What each run recommends. A run that cannot answer (it lacks the items of an allow list) says why."""
    runs = [(served, snapshot.recommender), *((other.path, other.recommender) for other in others)]
    answers = [{"run": path.name, **_answer(recommender, query)} for path, recommender in runs]
    return {"history": titled(snapshot, query.history), "runs": answers}


def _answer(recommender: Recommender, query: Query) -> dict[str, Any]:
    about: dict[str, Any] = {"recipe": recommender.recipe.name, "items": [], "personal": False, "problem": None}
    try:
        (found,) = recommender.answerer.answer([query])
    except DataError as error:
        return {**about, "problem": error.message}
    ranked = zip(found.items, found.titles, found.scores)
    items = [{"item": item, "title": title, "score": score} for item, title, score in ranked]
    return {**about, "items": items, "personal": found.personal}


def listed(served: Path, snapshot: Snapshot, others: list[OtherRun]) -> dict[str, Any]:
    """All runs, with their metrics on the test split if they were evaluated."""
    runs = [(served, snapshot.recommender), *((other.path, other.recommender) for other in others)]
    return {
        "runs": [
            {
                "run": path.name,
                "served": path == served,
                "recipe": recommender.recipe.name,
                "dataset": recommender.catalogue_.name,
                "seed": recommender.seed,
                "items": len(recommender.catalogue_.items),
                "metrics": {"plain": _metrics(path, False), "filtered": _metrics(path, True)},
                "differences": {
                    "plain": None if path == served else _differences(path, served, False),
                    "filtered": None if path == served else _differences(path, served, True),
                },
            }
            for path, recommender in runs
        ]
    }


def _metrics(run: Path, filter_history: bool) -> dict[str, dict[str, float]] | None:
    """Mean and standard error over users of every kept metric; None where the run was not evaluated."""
    try:
        kept = kept_evaluation(run, filter_history=filter_history)
    except ArtifactError:
        return None
    return {
        name: {"mean": float(np.mean(values)), "error": float(np.std(values) / max(len(values), 1) ** 0.5)}
        for name, values in kept.values.items()
    }


def _differences(run: Path, served: Path, filter_history: bool) -> dict[str, dict[str, float]] | None:
    """Every metric minus that of the served run; None where the two were not evaluated on the same users."""
    try:
        kept = [kept_evaluation(path, filter_history=filter_history) for path in (run, served)]
    except ArtifactError:
        return None
    # The bootstrap takes a moment and evaluations rarely change: results are kept under the values themselves.
    values = [{name: values.tobytes() for name, values in one.values.items()} for one in kept]
    if not all(np.array_equal(getattr(kept[0], name), getattr(kept[1], name)) for name in ("users", "targets")):
        return None
    return {name: dict(_difference(values[0][name], values[1][name])) for name in values[0] if name in values[1]}


@lru_cache(maxsize=256)
def _difference(first: bytes, second: bytes) -> tuple[tuple[str, float], ...]:
    told = paired_bootstrap([np.frombuffer(first)], [np.frombuffer(second)], draws=DRAWS)
    return ("difference", told.difference), ("low", told.low), ("high", told.high), ("p", told.p)


def tree(
    snapshot: Snapshot, prefix: list[int], limit: int, *, offset: int = 0, levels: int = 1, of: Of = "tokens"
) -> dict[str, Any]:
    """A prefix of ids and a page of its children, the largest first.

    With more levels, children have children of their own, as many as their share of the page's items allows. The tree
    of `codes` is that of the ids before merging.
    """
    pruner = _Pruner(snapshot, snapshot.prefixes if of == "tokens" else snapshot.unmerged_prefixes, limit)
    node = node_at(pruner.trie, prefix)
    children = pruner.children(node)
    page = children[offset : offset + limit]
    sizes = pruner.sizes(page)
    shown = [
        pruner.nested(child, [*prefix], levels - 1, share) for child, share in zip(page.tolist(), sizes / sizes.sum())
    ]
    path = [pruner.described(n, prefix[: place + 1], 1) for place, n in enumerate(pruner.way(prefix))]
    return {
        "prefix": prefix,
        **pruner.described(node, prefix, pruner.examples),
        "path": path[:-1],
        "offset": offset,
        "children": shown,
        "total_children": len(children),
    }


def node_at(trie: Trie, prefix: list[int]) -> int:
    """The node at the end of a prefix; a prefix that no id has is a 404."""
    try:
        return node_of(trie, prefix)
    except DataError as error:
        raise Refused(404, "unknown_prefix", error.message, hint="GET /v1/tree") from None


@dataclass(frozen=True, eq=False)
class _Pruner:
    snapshot: Snapshot
    prefixes: Prefixes
    limit: int
    examples: int = 3

    @property
    def trie(self) -> Trie:
        return self.prefixes.trie

    def sizes(self, nodes: np.ndarray) -> np.ndarray:
        return self.trie.high[nodes].astype(np.int64) - self.trie.low[nodes]

    def children(self, node: int) -> np.ndarray:
        """All children, the largest first, then by token."""
        children = self.trie.children(np.array([node])).node
        return children[np.argsort(-self.sizes(children), kind="stable")]

    def way(self, prefix: list[int]) -> list[int]:
        """The nodes on the way to a prefix, without the root."""
        return [node_of(self.trie, prefix[: place + 1]) for place in range(len(prefix))]

    def nested(self, node: int, above: list[int], levels: int, share: float) -> dict[str, Any]:
        """A child and, where levels are left, its own largest children in proportion to its share."""
        path = [*above, int(self.trie.token[node])]
        out = self.described(node, path, self.examples if not levels else 1)
        children = self.children(node)
        out["total_children"] = len(children)
        if levels:
            most = int(np.ceil(2 * self.limit * share))
            shown = children[:most]
            parts = share * self.sizes(shown) / max(int(self.sizes(children).sum()), 1)
            out["children"] = [
                self.nested(child, path, levels - 1, float(part)) for child, part in zip(shown.tolist(), parts)
            ]
        return out

    def described(self, node: int, path: list[int], examples: int) -> dict[str, Any]:
        """A prefix with what lies below it."""
        below = self.prefixes.below(node)
        layout = self.snapshot.recommender.fitted.tokenizer.ids.layout
        catalogue = self.snapshot.recommender.catalogue_
        names = [(catalogue.items[row], catalogue.title(row)) for row in below.examples[:examples]]
        return {
            "token": path[-1] if path else None,
            "prefix": path,
            "codes": layout.codes(Ragged.from_rows([path]))[0].tolist() if path else [],
            "items": below.items,
            "taken": below.taken,
            "leaf": below.leaf,
            "words": list(below.words),
            "similarity": below.similarity,
            "examples": [
                {
                    "item": item,
                    "title": title if len(title) <= MOST_TITLE else f"{title[: MOST_TITLE - 1]}…",
                    "retired": self.snapshot.is_retired(item),
                }
                for item, title in names
            ],
        }
