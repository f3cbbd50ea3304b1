"""Inspects the ids of a fitted tokenizer by the user's own item ids: lines, one item, facets, drift.

Returns values of `capsid.explain.answers`, the same on the command line and over HTTP. Does not load torch, except
to show how a tokenizer routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from capsid.base.vocabulary import Vocabulary
from capsid.errors import ConfigError
from capsid.evaluate.capsule_meaning import Capsule, TitleWords, capsules, two_facets
from capsid.evaluate.capsule_report import Drift, Routing, drift, spread
from capsid.evaluate.tokenizer_quality import TokenizerQuality, quality_of
from capsid.explain.answers import (
    FacetItem,
    Facets,
    IdLine,
    ItemInspection,
    Merges,
    Residual,
    RoutedDepth,
    SharedPrefix,
    ShownCapsule,
    Stopped,
    Titled,
)
from capsid.explain.merged_tokens import merges_of, subwords_of
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.tokenize.base import CAUSES
from capsid.tokenize.item_tokenizer import ItemTokenizer

if TYPE_CHECKING:
    from capsid.tokenize.base import Trace

EXAMPLES = 5
STRONGEST = 5


@dataclass(frozen=True, eq=False)
class OpenTokenizer:
    """`titles` has a text for every item that the tokenizer was fitted on."""

    tokenizer: ItemTokenizer
    titles: list[str]

    @property
    def items(self) -> Vocabulary:
        """All items that have an id."""
        return self.tokenizer.ids.items

    def title(self, number: int) -> str:
        """The display title of an item."""
        return self.titles[number] if number < len(self.titles) else self.items[number]

    @property
    def routing(self) -> tuple[Routing, np.ndarray] | None:
        """The tokenizer and the items' vectors, if it routes and the vectors are stored."""
        tokenizer, vectors = self.tokenizer.tokenizer_, self.tokenizer.vectors_
        return (tokenizer, vectors) if isinstance(tokenizer, Routing) and vectors is not None else None

    @cached_property
    def words(self) -> TitleWords:
        """Words of titles; counted once."""
        return TitleWords(self.titles)

    def lines(self, items: Iterable[str]) -> list[IdLine]:
        """Items as `export` writes them."""
        ids = self.tokenizer.ids
        rows = [ids.items.number(item) for item in items]
        confidence_RL = None
        if self.routing is not None:
            tokenizer, vectors = self.routing
            confidence_RL = tokenizer.trace_vectors(vectors if len(rows) == len(ids) else vectors[rows]).confidence
            confidence_RL = confidence_RL[rows] if len(rows) == len(ids) else confidence_RL
        out = []
        for i, row in enumerate(rows):
            codes, tokens = tuple(ids.codes[row].tolist()), tuple(ids.tokens[row].tolist())
            sure = None if confidence_RL is None else tuple(_plain(confidence_RL[i, : len(codes)]))
            out.append(IdLine(ids.items[row], codes, tokens, sure, _others(ids, row)))
        return out

    def inspect(self, item: str) -> ItemInspection:
        """An item's line, its title, the items that share its first codes, and how it was routed, if it was."""
        ids = self.tokenizer.ids
        row = ids.items.number(item)
        levels = []
        for depth, rows in enumerate(sharing(ids.codes, row)):
            examples = rows[rows != row][:EXAMPLES].tolist()
            codes = tuple(ids.codes[row][: depth + 1].tolist())
            levels.append(SharedPrefix(codes, len(rows), self._titled(examples)))
        line = self.lines([item])[0]
        depths, stopped = (None, None) if self.routing is None else self._routed(row, *self.routing)
        return ItemInspection(
            **vars(line),
            title=self.title(row),
            prefixes=tuple(levels),
            unmerged=None if self.tokenizer.merges_ is None else tuple(ids.unmerged[row].tolist()),
            subwords=subwords_of(self.tokenizer, row),
            depths=depths,
            stopped=stopped,
        )

    def facets(self, *, depth: int, count: int, most: int | None = None) -> Facets:
        """Items whose weight at a depth (from 1) is split between two capsules, with the meaning of both.

        `most` items are searched, spread evenly over the catalogue; None: all.
        """
        if self.routing is None:
            raise ConfigError(
                f"the tokenizer {self.tokenizer.tokenizer_.kind!r} does not route items to several codes",
                hint="facets are for tokenizers with capsules and stored vectors, such as the recipe capsid",
            )
        ids = self.tokenizer.ids
        if not 1 <= depth <= len(ids.layout.sizes):
            raise ConfigError(f"depth must be 1 to {len(ids.layout.sizes)}, got {depth}", hint="1 is the first code")
        tokenizer, vectors = self.routing
        rows = spread(len(vectors), most)
        seen = tokenizer.trace_vectors(vectors if len(rows) == len(vectors) else vectors[rows], strongest=2)
        found = [
            replace(facet, row=int(rows[facet.row]))
            for facet in two_facets(seen, ids.codes.lengths[rows], depth=depth - 1, count=count)
        ]
        wanted = [(depth - 1, code) for facet in found for code in facet.codes]
        known = capsules(tokenizer, vectors, ids.codes, self.words, wanted)
        items = [
            FacetItem(
                item=ids.items[facet.row],
                title=self.title(facet.row),
                codes=tuple(ids.codes[facet.row].tolist()),
                facets=tuple(self._shown(known[depth - 1, c], w) for c, w in zip(facet.codes, facet.weights)),
            )
            for facet in found
        ]
        return Facets(depth, tuple(items))

    def quality(self, *, most: int | None = None) -> TokenizerQuality:
        """Diagnostics; they use the vectors that the ids were made from, if stored, of at most `most` items."""
        return quality_of(self.tokenizer, most=most)

    def merges(self, *, top: int) -> Merges:
        """The most used merged tokens."""
        return merges_of(self.tokenizer, self.title, top=top)

    def use(self) -> tuple[np.ndarray, ...]:
        """How many ids use each code, by depth."""
        return self.tokenizer.ids.use_of_codes()

    def drift(self, items: Sequence[str]) -> Drift | None:
        """Compare these items with those the tokenizer was fitted on."""
        if self.routing is None or not items:
            return None
        tokenizer, vectors = self.routing
        return drift(tokenizer.reference_, tokenizer.trace_vectors(vectors[[self.items.number(i) for i in items]]))

    def _routed(self, row: int, tokenizer: Routing, vectors_NI: np.ndarray) -> tuple[tuple[RoutedDepth, ...], Stopped]:
        """Depth by depth: token, confidence, the strongest capsules and their meaning; then why the id ends."""
        ids = self.tokenizer.ids
        seen = tokenizer.trace_vectors(vectors_NI[row : row + 1], strongest=STRONGEST)
        length = len(ids.codes[row])
        strongest = [list(zip(seen.strongest[0, d].tolist(), seen.strongest_weight[0, d])) for d in range(length)]
        wanted = [(d, code) for d, pairs in enumerate(strongest) for code, _ in pairs]
        known = capsules(tokenizer, vectors_NI, ids.codes, self.words, wanted, without=row)
        depths = tuple(
            RoutedDepth(
                depth=d + 1,
                code=int(ids.codes[row][d]),
                token=int(ids.unmerged[row][d]),
                confidence=_plain(seen.confidence[0, d]),
                winner_mass=_plain(seen.mass[0, d]),
                residual=Residual(soft=_plain(seen.soft[0, d]), hard=_plain(seen.hard[0, d])),
                capsules=tuple(self._shown(known[d, code], weight) for code, weight in strongest[d]),
            )
            for d in range(length)
        )
        return depths, _why(tokenizer, seen)

    def _shown(self, capsule: Capsule, weight: float) -> ShownCapsule:
        return ShownCapsule(
            code=capsule.code,
            weight=_plain(weight),
            items=capsule.items,
            words=tuple(capsule.words),
            nearest=self._titled(capsule.nearest),
        )

    def _titled(self, numbers: Iterable[int]) -> tuple[Titled, ...]:
        return tuple(Titled(self.items[n], self.title(n)) for n in numbers)


def _others(ids: SemanticIds, row: int) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Codes and tokens of an item's other ids."""
    return tuple(
        {"codes": tuple(own.codes[row].tolist()), "tokens": tuple(own.tokens[row].tolist())} for own in ids.others
    )


def _why(tokenizer: Routing, seen: Trace) -> Stopped:
    """Why the only id of a trace ends where it does."""
    stops, rules = tokenizer.stop(seen), tokenizer.rules
    depth = int(stops.lengths[0])
    cause = CAUSES[int(stops.causes[0])]
    residual = seen.soft[0, depth - 1]
    because = {
        "confidence": f"the confidence {seen.confidence[0, depth - 1]:.3f} is at least {rules.confidence:g}",
        "residual": f"the residual {residual:.3f} is at most {rules.residual:g}",
        "cap": f"the longest id has {depth} codes, and no rule ended it before",
        "prefix": f"a rule would have ended it earlier, but more than {rules.max_sharing} distinct code"
        f" {'sequence' if rules.max_sharing == 1 else 'sequences'} of the fitted catalogue began with that prefix",
    }
    return Stopped(cause, depth, because[cause], asdict(rules))


def _plain(value: Any) -> Any:
    """Round a network's output to its meaningful digits."""
    return np.round(np.asarray(value, dtype=np.float64), 6).tolist()


def sharing(codes: Ragged, row: int) -> list[np.ndarray]:
    """For every depth of a row's codes, the rows that share the codes up to that depth, the row included.

    One pass over the first codes; deeper codes are compared only for rows that still match.
    """
    lengths, starts = codes.lengths, codes.offsets[:-1]
    rows, out = np.arange(len(codes)), []
    for depth, code in enumerate(codes[row]):
        rows = rows[lengths[rows] > depth]
        rows = rows[codes.values[starts[rows] + depth] == code]
        out.append(rows)
    return out
