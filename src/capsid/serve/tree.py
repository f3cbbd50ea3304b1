"""Parts of the id tree, on demand: a prefix, a page of its children, and what fits below them. Never the whole tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from capsid.errors import DataError
from capsid.explain.prefixes import Prefixes
from capsid.explain.search import node_of
from capsid.ids.trie import Trie
from capsid.ragged import Ragged
from capsid.serve.errors import Refused
from capsid.serve.snapshot import Snapshot

Of = Literal["tokens", "codes"]
# Longer titles are cut, so that the size of an answer does not depend on the catalogue.
MOST_TITLE = 120


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
                {"item": item, "title": _shortened(title), "retired": self.snapshot.is_retired(item)}
                for item, title in names
            ],
        }


def _shortened(title: str) -> str:
    return title if len(title) <= MOST_TITLE else title[: MOST_TITLE - 1] + "…"
