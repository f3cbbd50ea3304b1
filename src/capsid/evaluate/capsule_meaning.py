"""What capsules mean: their most confident items, the words of these items' titles, and items with two facets.

Traces, codes and titles in; row numbers and words out. Knows no file and no item id.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capsid.errors import ConfigError
from capsid.evaluate.capsule_report import Routing, spread
from capsid.ids.order import column
from capsid.ragged import Ragged

if TYPE_CHECKING:
    from capsid.tokenize.base import Trace

NEAREST, WORDS = 3, 5
# How many titles tell how frequent a word is, and how many items of a capsule are routed again and read.
BACKGROUND, MEMBERS = 20_000, 500
# Two capsules with less joint weight than this do not characterise an item.
MOST = 0.5
# A shared word is this many times as frequent in a capsule's titles as in the catalogue, and in several titles.
LIFT, TITLES = 1.5, 2
WORD = re.compile(r"[^\W\d_]{2,}")
# Words that say nothing about an item: grammar, and units of measure.
_PLAIN = (
    "an and are as at be by can for from has have he her his how if in into is it its me my new no not of off on one or"
    " our out she so that the their them they this to up us was we were what when who will with you your"
    " oz ounce ounces fl floz ml lb lbs kg ct pcs pc inch inches cm mm qty vol de la le el les un et"
)
STOP_WORDS = frozenset(_PLAIN.split())


def words_of(title: str) -> frozenset[str]:
    """The words of a title that may say something about an item."""
    return frozenset(WORD.findall(title.lower())) - STOP_WORDS


def informative(
    chosen: Sequence[frozenset[str]], titles_with: Mapping[str, int], titles: int, count: int
) -> tuple[str, ...]:
    """Words that the chosen titles share more than by chance, most informative first.

    `titles_with` says in how many of all `titles` a word occurs. The score is titles * log(lift): how over-represented
    the word is, weighted by how many titles have it.
    """
    scores = {}
    for word, n in Counter(word for words in chosen for word in words).items():
        lift = n * titles / (len(chosen) * titles_with[word]) if titles_with.get(word) else 0.0
        if n >= TITLES and lift >= LIFT:
            scores[word] = n * math.log(lift)
    return tuple(sorted(scores, key=lambda word: (-scores[word], word))[:count])


class TitleWords:
    """Titles, and how frequent their words are: in all titles, or in a sample spread evenly over a large catalogue."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._titles = titles
        known = [words_of(titles[row]) for row in spread(len(titles), BACKGROUND).tolist()]
        self._titles_with, self._known = Counter(word for words in known for word in words), len(known)

    def shared(self, rows: Iterable[int], count: int = WORDS) -> tuple[str, ...]:
        """Words that these titles share more than by chance, most informative first."""
        chosen = [words_of(self._titles[row]) for row in rows if row < len(self._titles)]
        return informative(chosen, self._titles_with, self._known, count)


@dataclass(frozen=True)
class Capsule:
    """A token at a depth (from 0): how many ids have it there, the most confident of them (rows), and their words.

    If many ids have it, a sample of them is looked at.
    """

    depth: int
    code: int
    items: int
    nearest: tuple[int, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class TwoFacets:
    """An item whose weight at one depth is split between two capsules."""

    row: int
    codes: tuple[int, int]
    weights: tuple[float, float]


def capsules(
    tokenizer: Routing,
    vectors_NI: np.ndarray,
    codes: Ragged,
    words: TitleWords,
    wanted: Sequence[tuple[int, int]],
    *,
    without: int = -1,
) -> dict[tuple[int, int], Capsule]:
    """The capsules (depth, code) that are asked for; `codes` are the ids.

    `without` is a row that is not used as an example: the inspected item itself.
    """
    columns = {depth: column(codes, depth) for depth, _ in wanted}
    holders = {pair: np.flatnonzero(columns[pair[0]] == pair[1]) for pair in dict.fromkeys(wanted)}
    sizes = {pair: len(members) for pair, members in holders.items()}
    holders = {pair: members[spread(len(members), MEMBERS)] for pair, members in holders.items()}
    rows = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *holders.values()]))
    # Only items with one of these tokens are routed again.
    mass_RL = tokenizer.trace_vectors(np.asarray(vectors_NI[rows])).mass
    out = {}
    for (depth, code), members in holders.items():
        mass_M = mass_RL[np.searchsorted(rows, members), depth]
        firmest = [int(n) for n in members[np.argsort(-mass_M, kind="stable")] if n != without]
        out[depth, code] = Capsule(
            depth, code, sizes[depth, code], tuple(firmest[:NEAREST]), words.shared(members.tolist())
        )
    return out


def two_facets(trace: Trace, lengths_N: np.ndarray, *, depth: int, count: int) -> tuple[TwoFacets, ...]:
    """Items with the largest second weight at a depth (from 0), where the two strongest hold most of the weight."""
    if trace.strongest.shape[2] < 2:
        raise ConfigError("two facets need two capsules at every depth", hint="codebooks of at least 2 codes")
    weights_N2 = trace.strongest_weight[:, depth, :2]
    rows = np.flatnonzero((weights_N2.sum(1) >= MOST) & (lengths_N > depth))
    best = rows[np.argsort(-weights_N2[rows, 1], kind="stable")][:count]
    return tuple(
        TwoFacets(
            row=int(row),
            codes=(int(trace.strongest[row, depth, 0]), int(trace.strongest[row, depth, 1])),
            weights=(float(weights_N2[row, 0]), float(weights_N2[row, 1])),
        )
        for row in best
    )
