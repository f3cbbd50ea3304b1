"""Explains a search: which prefixes of ids it scored, why it cut some, and which items of the history mattered.

It records the same search that answers queries. Influence is measured by leaving out one item of the history at a time
and scoring the same results again; it shows what the model reacts to, not why a user chose an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from capsid.answering import Answerer, Query, Recommendation
from capsid.decode.beam import BeamSearch
from capsid.decode.filters import Filter
from capsid.decode.fusion import BeamFusion, dense_parts
from capsid.decode.model import FittedModel
from capsid.decode.ranked import RankedItems, expand
from capsid.decode.watch import FATES, KEPT, RESULT, Recorder, fates
from capsid.errors import ConfigError, DataError
from capsid.explain.picture import Influence, Prefix, ScoreParts, Step, draw
from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged

# Maximum number of cut prefixes shown per depth, best first; counts are always complete.
SHOWN = 50
# How many of the latest items of a history are left out in turn.
LEFT_OUT = 50
LOOKED_AT = 2_000


@dataclass(frozen=True)
class Explanation:
    """A recommendation and the search behind it. `paths[r]` are the tokens of result r.

    `parts[r]` are the parts of its score where ids and item vectors are fused; elsewhere there are none.
    """

    recommendation: Recommendation
    paths: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    influences: tuple[Influence, ...]
    prefix: tuple[int, ...]
    parts: tuple[ScoreParts, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_svg(self) -> str:
        """A picture of the search, for a notebook or a file."""
        return draw(self.paths, self.steps, self.influences)

    def _repr_svg_(self) -> str:
        return self.to_svg()


def explain(
    answerer: Answerer,
    query: Query,
    *,
    prefix: Sequence[int] = (),
    influence: bool = True,
    shown: int = SHOWN,
) -> Explanation:
    """Answer a query and explain the search. With `prefix`, only ids that begin with these tokens are searched."""
    ranker, model = answerer.retriever.ranker, answerer.retriever.model
    if not isinstance(ranker, (BeamSearch, BeamFusion)):
        raise ConfigError(
            f"the decoder {ranker.kind!r} does not search step by step",
            hint="only runs with decoder=beam or decoder=fusion can be explained",
        )
    node = node_of(model.trie, prefix)
    query = _below(answerer, query, node) if prefix else query
    rows = answerer.rows(query)
    if not len(rows.history) or answerer.nothing_left(rows):
        return Explanation(answerer.answer([query])[0], (), (), (), tuple(prefix))
    allowed = answerer.allowed([rows])
    found = _searched(ranker, model, Ragged.from_rows([rows.history], np.int64), query.k, allowed)
    items = found.ranked.items_UK[0][found.ranked.items_UK[0] >= 0]
    return Explanation(
        answerer.personal(found.ranked, 0, query.k),
        tuple(tuple(int(t) for t in model.ids.prefix_free[int(i)]) for i in items),
        # A leaf whose items all come after the k-th is no result, though the search has returned it.
        _steps(answerer, found, model.trie.leaf_of(items), shown),
        _influences(answerer, rows.history, items) if influence else (),
        tuple(prefix),
        tuple(found.parts[int(item)] for item in items) if found.parts else (),
    )


@dataclass(frozen=True, eq=False)
class _Searched:
    """A recorded search for `k` leaves with a beam of `width`. `found` are its leaves if items were ranked further."""

    recorder: Recorder
    ranked: RankedItems
    width: int
    k: int
    found: np.ndarray | None = None
    parts: Mapping[int, ScoreParts] = field(default_factory=dict)


def _searched(
    ranker: BeamSearch | BeamFusion, model: FittedModel, history: Ragged, k: int, allowed: Filter | None
) -> _Searched:
    recorder, leaves = Recorder(), min(k, len(model.trie))
    if isinstance(ranker, BeamSearch):
        found = ranker.leaves(model, history, leaves, allowed, recorder)
        ranked = expand(model.trie, found, k, allowed).items
        return _Searched(recorder, ranked, max(ranker.width, leaves), leaves)
    fused = ranker.fuse(model, history, k, allowed, recorder)
    parts = {
        int(item): ScoreParts(float(beam), float(dense), float(cosine))
        for item, beam, dense, cosine in zip(fused.item_E, fused.beam_E, fused.dense_E, fused.cosine_E)
    }
    leaves = min(max(ranker.width, k), len(model.trie))
    return _Searched(recorder, fused.best(k), max(ranker.width, leaves), leaves, fused.leaves.leaves_UF[0], parts)


def node_of(trie: Trie, prefix: Sequence[int]) -> int:
    """The node at the end of a prefix of tokens."""
    node = np.array([ROOT])
    for place, token in enumerate(prefix):
        node = trie.walk(node, np.array([token]))
        if node[0] < 0:
            message = f"no id begins with the tokens {list(prefix[: place + 1])}"
            raise DataError(message, hint="`capsid tokenizer inspect` shows the tokens of an item")
    return int(node[0])


def _below(answerer: Answerer, query: Query, node: int) -> Query:
    """The query, restricted to items below a node."""
    trie = answerer.retriever.model.trie
    names = answerer.catalogue.items.ids(trie.items[trie.low[node] : trie.high[node]])
    if query.allow is not None:
        wanted = set(query.allow)
        names = [name for name in names if name in wanted]
    return replace(query, allow=tuple(names))


def _steps(answerer: Answerer, searched: _Searched, results: np.ndarray, shown: int) -> tuple[Step, ...]:
    trie, layout = answerer.retriever.model.trie, answerer.retriever.model.ids.layout
    levels = searched.recorder.levels(0)
    met = fates(levels, results, width=searched.width, k=searched.k, trie=trie, found=searched.found)
    out = []
    for depth, (level, fate) in enumerate(zip(levels, met)):
        counts = {name: int((fate == number).sum()) for number, name in enumerate(FATES)}
        survived = (fate == KEPT) | (fate == RESULT)
        best = np.flatnonzero(survived | (np.cumsum(~survived) <= shown))
        paths = [trie.path(int(node)) for node in level.node[best]]
        codes = layout.codes(Ragged.from_rows(paths))
        prefixes = tuple(
            Prefix(
                tuple(path),
                tuple(codes[n].tolist()),
                float(level.score[e]),
                FATES[fate[e]],
                int(trie.high[level.node[e]] - trie.low[level.node[e]]),
                _example(answerer, int(level.node[e])),
            )
            for n, (e, path) in enumerate(zip(best, paths))
        )
        out.append(Step(depth, counts, prefixes))
    return tuple(out)


def _example(answerer: Answerer, node: int) -> str:
    """The title of the most popular of the first items below a node."""
    trie, catalogue = answerer.retriever.model.trie, answerer.catalogue
    low = int(trie.low[node])
    rows = trie.items[low : min(int(trie.high[node]), low + LOOKED_AT)]
    return catalogue.title(int(rows[np.argmax(catalogue.counts[rows])]))


def _influences(answerer: Answerer, history: np.ndarray, items: np.ndarray) -> tuple[Influence, ...]:
    """Leave out each item that the model reads in turn and score the same results again, all in one batch."""
    model, ranker, catalogue = answerer.retriever.model, answerer.retriever.ranker, answerer.catalogue
    fusion = ranker if isinstance(ranker, BeamFusion) else None
    read = history[-min(model.history, LEFT_OUT) :]
    if len(read) < 2 or not len(items):
        return ()
    rows = [read, *(np.delete(read, place) for place in range(len(read)))]
    only = Filter.build(model.trie, len(rows), allow=items)
    recorder = Recorder()
    wide = BeamSearch(width=max(len(items), ranker.width))
    wide.leaves(model, Ragged.from_rows(rows, np.int64), min(len(items), len(model.trie)), only, recorder)
    scores_URD = np.stack([_path_scores(model.trie, recorder, user, items) for user in range(len(rows))])
    steps_URD = np.diff(scores_URD, axis=2, prepend=0.0)
    dense_UR = np.zeros(steps_URD.shape[:2])
    if fusion is not None:
        steps_URD = fusion.beam_temperature * steps_URD
        dense_UR = dense_parts(fusion, model, Ragged.from_rows(rows, np.int64), items).astype(np.float64)
    out = []
    for place, item in enumerate(read.tolist()):
        falls_RD = steps_URD[0] - steps_URD[place + 1]
        dense_R = dense_UR[0] - dense_UR[place + 1]
        falls_R = np.nansum(falls_RD, axis=1) + dense_R
        steps = tuple(tuple(float(x) for x in row[~np.isnan(row)]) for row in falls_RD)
        name, title = catalogue.items[item], catalogue.title(item)
        vectors = () if fusion is None else tuple(dense_R.tolist())
        out.append(Influence(name, title, float(falls_R.mean()), tuple(falls_R.tolist()), steps, vectors))
    return tuple(sorted(out, key=lambda i: -abs(i.mean)))


def _path_scores(trie: Trie, recorder: Recorder, user: int, items: np.ndarray) -> np.ndarray:
    """Cumulative scores along the ids of items, NaN after the end of an id. Shape: (items, depths)."""
    levels = recorder.levels(user)
    leaves = trie.leaf_of(items)
    known = [dict(zip(level.node.tolist(), level.score.tolist())) for level in levels]
    out = np.full((len(items), len(levels)), np.nan)
    for r, leaf in enumerate(leaves.tolist()):
        node, path = leaf, []
        while node != ROOT:
            path.append(node)
            node = int(np.searchsorted(trie.first_child, node, side="right")) - 1
        for depth, at in enumerate(reversed(path)):
            out[r, depth] = known[depth].get(at, np.nan)
    return out
