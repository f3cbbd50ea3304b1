"""Inspects the ids of a fitted tokenizer by the user's own item ids: lines, one item, facets, drift.

Returns values of `capsid.explain.answers`, the same on the command line and over HTTP. Does not load torch, except
to show how a tokenizer routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from capsid.base.popularity import TIERS
from capsid.base.vocabulary import Vocabulary
from capsid.errors import ConfigError
from capsid.evaluate.capsule_report import Capsule, Drift, Routing, TitleWords, capsules, drift, spread, two_facets
from capsid.evaluate.merge_report import MergeUse, merge_uses
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
    Shortened,
    ShownCapsule,
    ShownMerge,
    Stopped,
    Subword,
    Titled,
)
from capsid.ragged import Ragged
from capsid.tokenize.base import CAUSES
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.item_tokenizer import ItemTokenizer

if TYPE_CHECKING:
    from capsid.tokenize.base import Trace


SHOWN = 3
Title = Callable[[int], str]
EXAMPLES = 5
STRONGEST = 5


@dataclass(frozen=True, eq=False)
class OpenTokenizer:
    """`titles` has a text for every item that the tokenizer was fitted on."""

    tokenizer: ItemTokenizer
    titles: list[str]

    @property
    def items(self) -> Vocabulary:
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
            others = tuple(
                {"codes": tuple(own.codes[row].tolist()), "tokens": tuple(own.tokens[row].tolist())}
                for own in ids.others
            )
            sure = None if confidence_RL is None else tuple(_plain(confidence_RL[i, : len(codes)]))
            out.append(IdLine(ids.items[row], codes, tokens, sure, others))
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


def merges_of(tokenizer: ItemTokenizer, title: Title, *, top: int) -> Merges:
    """The merged tokens most frequent in training, and the effect of merging on lengths."""
    if tokenizer.merges_ is None:
        raise ConfigError("these ids have no merges", hint="fit a recipe with merges, such as capsid-bpe")
    ids, merges = tokenizer.ids, tokenizer.merges_
    if not isinstance(merges, SemanticBPE):
        raise ConfigError(
            f"merges={merges.kind} join codes of neighbouring items, so an item does not show what they mean",
            hint="`capsid tokenizer inspect` shows the merged tokens of an item",
        )
    uses = merge_uses(ids, merges)
    best = sorted(uses, key=lambda use: (-use.taken, -len(use.items), use.token))[:top]
    return Merges(
        count=len(uses),
        tokens_an_item=Shortened(float(ids.unmerged.lengths.mean()), float(ids.tokens.lengths.mean())),
        merges=tuple(_shown(use, merges.counts_, ids.items, title) for use in best),
    )


def subwords_of(tokenizer: ItemTokenizer, row: int) -> tuple[Subword, ...] | None:
    """The codes behind each token of an item; None without merges."""
    if tokenizer.merges_ is None:
        return None
    ids, merges = tokenizer.ids, tokenizer.merges_
    tokens = ids.tokens[row].tolist()
    # Not the carriers of all tokens: a large catalogue has many.
    carriers = {
        t: np.searchsorted(ids.tokens.offsets, np.flatnonzero(ids.tokens.values == t), "right") - 1 for t in tokens
    }
    counts_N = np.zeros(len(ids), dtype=np.int64)
    counts_N[: len(merges.counts_)] = merges.counts_
    return tuple(
        Subword(
            token=token,
            depth=int(ids.layout.depth_of[token]) + 1,
            codes=tuple(ids.layout.codes_of(token)),
            merged=bool(len(ids.layout.merges)) and token >= ids.layout.merges.first,
            items=len(carriers[token]),
            taken=int(counts_N[carriers[token]].sum()),
        )
        for token in tokens
    )


def _shown(use: MergeUse, counts_N: np.ndarray, items: Vocabulary, title: Title) -> ShownMerge:
    # Most popular first: readers recognise those.
    known = sorted(use.items, key=lambda n: (-int(counts_N[n]) if n < len(counts_N) else 0, n))[:SHOWN]
    return ShownMerge(
        token=use.token,
        depth=use.depth + 1,
        codes=tuple(use.codes),
        strength=round(use.strength, 6),
        count=use.count,
        cosine=round(use.cosine, 6),
        items=len(use.items),
        taken=use.taken,
        tiers=dict(zip(TIERS, use.tiers)),
        tokens_before=use.tokens_before,
        tokens_after=use.tokens_after,
        examples=tuple(Titled(items[n], title(n)) for n in known),
    )
