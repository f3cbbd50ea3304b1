"""Semantic IDs as data: item to tokens and back, ragged, NumPy only.

Holds the codes that a collision policy settled, the suffix that it added, and the token layout. Settled codes are
state: an item's id is read from here and never recomputed. Does not know how codes were found or how tokens are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.config import Kinds, to_dict
from capsid.base.storage import untrusted
from capsid.base.storage.arrays import save_arrays
from capsid.base.storage.artifacts import read_json, write_json
from capsid.base.vocabulary import Vocabulary
from capsid.errors import ConfigError, DataError
from capsid.ids.collisions import Bucket, CollisionPolicy, Costs, Settled, Suffix
from capsid.ids.item_tokens import Beside, ItemRows
from capsid.ids.layout import ABSENT, END, FIRST, TokenLayout, ending_present
from capsid.ids.merges import MergeTable
from capsid.ids.mixtures import Mixtures
from capsid.ids.order import group_numbers, proper_prefixes
from capsid.ids.reading import ItemByItem, Lesson, Reading, TokenBatch, read_histories, read_lesson
from capsid.ids.stored_ids import ARRAYS, ROWS, layout_of, mixtures_of, read_rows, reading_of, write_rows
from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged


@dataclass(frozen=True)
class IdStatistics:
    """How good a set of ids is, before anything is trained. `collision_rate` is on codes, before any policy. Lengths
    count codes; `mean_tokens` counts tokens after merging, the suffix included and the end token not."""

    items: int
    collision_rate: float
    collision_rate_final: float
    items_sharing_an_id: int
    largest_bucket: int
    utilization: tuple[float, ...]
    gini: tuple[float, ...]
    mean_length: float
    length_histogram: dict[int, int]
    mean_tokens: float


@dataclass(frozen=True, eq=False)
class SemanticIds:
    """Ids of a catalogue. `codes` row i belongs to `items[i]`; `suffixes` is None without a suffix policy.

    `reading` says how histories of these items are segmented.
    `unsettled` holds the codes as the tokenizer gave them, where the policy changed any; None: it changed none.
    With `mixtures` the items of a history are soft input; predicted items keep their codes. `others` are other ids of
    the same items: an item of a history is read as the tokens of all, and all are predicted.
    """

    items: Vocabulary
    codes: Ragged
    layout: TokenLayout
    suffixes: np.ndarray | None = None
    reading: Reading = field(default_factory=ItemByItem)
    unsettled: Ragged | None = None
    mixtures: Mixtures | None = None
    others: tuple[SemanticIds, ...] = ()

    @classmethod
    def assign(
        cls,
        items: Vocabulary,
        codes: Ragged,
        sizes: Sequence[int],
        collisions: CollisionPolicy | None = None,
        costs: Costs | None = None,
    ) -> SemanticIds:
        """Ids from codes under a collision policy (default: shared bucket). A code of -1 means that the item has no
        token at that depth. `costs` are the costs of last codes, for policies that change them."""
        if len(codes) != len(items):
            raise DataError(f"{len(codes)} codes for {len(items)} items")
        codes = _checked(codes)
        policy = collisions or Bucket()
        settled = policy.settle(codes, sizes, costs=costs)
        layout = TokenLayout(tuple(int(s) for s in sizes), policy.width(settled.suffixes))
        ids = cls(items, settled.codes, layout, settled.suffixes, unsettled=_if_other(codes, settled.codes))
        ids.tokens  # noqa: B018  (raises now, not after saving, if a code or suffix is out of range)
        return ids

    @property
    def encoded(self) -> Ragged:
        """The codes as the tokenizer gave them, before any policy."""
        return self.codes if self.unsettled is None else self.unsettled

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, item: str) -> tuple[int, ...]:
        return tuple(int(t) for t in self.tokens[self.items.number(item)])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SemanticIds)
            and self.items == other.items
            and self.layout == other.layout
            and self.tokens == other.tokens
        )

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def tokens(self) -> Ragged:
        """Global tokens of every item, without end tokens."""
        return self.layout.tokens(self.codes, self.suffixes)

    @cached_property
    def unmerged(self) -> Ragged:
        return self.layout.plain.tokens(self.codes, self.suffixes)

    @cached_property
    def prefix_free(self) -> Ragged:
        """Tokens, with an end token where the id is a proper prefix of another: no row is a prefix of another. A
        reading may want an end token on every id."""
        if isinstance(self.reading, ItemByItem) and self.reading.every_end:
            return self.tokens.push(END, np.ones(len(self.tokens), dtype=bool))
        return prefix_free(self.tokens)

    @property
    def systems(self) -> tuple[SemanticIds, ...]:
        return (self, *self.others)

    @property
    def entering(self) -> ItemRows:
        return Beside(tuple(ids.prefix_free for ids in self.systems)) if self.others else self.prefix_free

    def read(self, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        return read_histories(self, histories, last=last, variant=variant)

    def lesson(self, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
        """Network input for pieces of sequences, and the items to predict in them; see `read_lesson`."""
        return read_lesson(self, pieces, last=last, rng=rng)

    @cached_property
    def _trie(self) -> Trie:
        return Trie.build(self.prefix_free)

    def lookup(self, tokens: Sequence[int]) -> list[str]:
        """The items that own these tokens (end token optional); empty if none does."""
        trie, node = self._trie, np.array([ROOT])
        wanted = [int(t) for t in tokens if int(t) != END]
        for token in wanted:
            node = trie.walk(node, np.array([token]))
            if node[0] < 0:
                return []
        if not wanted:
            return []
        if not trie.is_leaf(node)[0]:
            # Other ids go on from here; one that ends here has an end token.
            node = trie.walk(node, np.array([END]))
        return self.items.ids(trie.bucket(int(node[0]))) if node[0] >= 0 else []

    def extend(
        self,
        items: Sequence[str],
        codes: Ragged,
        collisions: CollisionPolicy | None = None,
        costs: Costs | None = None,
        mixtures: Mixtures | None = None,
        others: Sequence[SemanticIds] = (),
    ) -> SemanticIds:
        """More items; the tokens of the old ones do not change, and neither does the vocabulary.

        The policy is applied to the new rows only (default: a suffix where the old ids have one, else a shared
        bucket). `mixtures` are those of the new items, needed if the old ones have any; `others` are the other ids of
        old and new items, needed if the old ones have them.
        """
        codes = _checked(codes)
        policy = collisions or (Bucket() if self.suffixes is None else Suffix())
        settled = policy.settle(codes, self.layout.sizes, old=Settled(self.codes, self.suffixes), costs=costs)
        suffixes = None
        if self.suffixes is not None and settled.suffixes is not None:
            suffixes = np.concatenate([self.suffixes, settled.suffixes])
        every = self.codes.append(settled.codes)
        unsettled = _if_other(self.encoded.append(codes), every)
        names = self.items.extended(items)
        grown = replace(
            self, items=names, codes=every, suffixes=suffixes, unsettled=unsettled, mixtures=None, others=()
        )
        if len(others) != len(self.others):
            raise DataError(f"items with {len(self.systems)} ids need all of them for new items", hint="pass others=")
        grown = replace(grown, layout=replace(self.layout, others=()))
        for other in others:
            grown = grown.with_other(other)
        if self.mixtures is not None:
            if mixtures is None:
                raise DataError("ids with soft input need mixtures for new items", hint="pass mixtures=")
            grown = grown.with_mixtures(self.mixtures.append(mixtures))
        grown.tokens  # noqa: B018  (raises now if a code or suffix is out of range)
        return grown

    def with_merges(self, merges: MergeTable) -> SemanticIds:
        """The same codes with these merges (an empty table: no merges)."""
        return replace(self, layout=replace(self.layout, merges=merges))

    @property
    def positions_per_item(self) -> int:
        return self.reading.positions_per_item(self.layout)

    def with_reading(self, reading: Reading) -> SemanticIds:
        """The same ids, whose histories are read in this way."""
        return replace(self, reading=reading)

    def with_mixtures(self, mixtures: Mixtures | None) -> SemanticIds:
        """The same ids, with these mixtures as soft input (None: hard codes)."""
        if mixtures is not None and not isinstance(self.reading, ItemByItem):
            raise ConfigError("soft input needs histories that are read item by item")
        if mixtures is not None and len(mixtures) != len(self):
            raise DataError(f"{len(mixtures)} mixtures for {len(self)} items")
        return replace(self, mixtures=mixtures)

    def with_other(self, other: SemanticIds) -> SemanticIds:
        """The same ids with one more id of every item, whose tokens must come after those that there are."""
        if other.items != self.items:
            raise DataError("other ids must belong to the same items in the same order")
        if not isinstance(self.reading, ItemByItem):
            raise ConfigError("several ids per item need histories that are read item by item")
        layout = replace(self.layout, others=(*self.layout.others, other.layout))
        return replace(self, layout=layout, others=(*self.others, other))

    def numbered_from(self, first: int) -> SemanticIds:
        """The same ids with tokens from `first` on; they must have no merges."""
        return replace(self, layout=replace(self.layout, first=first))

    def statistics(self) -> IdStatistics:
        """Collisions, use of the codebooks, lengths."""
        final = np.bincount(group_numbers(self.tokens))
        usage = self.use_of_codes()
        lengths = self.codes.keep(self.codes.values != ABSENT).lengths
        n = max(len(self), 1)
        return IdStatistics(
            items=len(self),
            collision_rate=1.0 - len(np.unique(group_numbers(self.encoded))) / n,
            collision_rate_final=1.0 - len(final) / n,
            items_sharing_an_id=int(final[final > 1].sum()),
            largest_bucket=int(final.max()) if len(final) else 0,
            utilization=tuple(float((u > 0).mean()) for u in usage),
            gini=tuple(gini(u) for u in usage),
            mean_length=float(lengths.mean()) if len(lengths) else 0.0,
            length_histogram={int(k): int(v) for k, v in zip(*np.unique(lengths, return_counts=True))},
            mean_tokens=float(self.tokens.lengths.mean()) if len(lengths) else 0.0,
        )

    def use_of_codes(self) -> tuple[np.ndarray, ...]:
        """How many ids use each code, by depth. Shapes: (K_l,)."""
        depth = np.where(self.codes.values == ABSENT, ABSENT, self.codes.positions)
        return tuple(
            np.bincount(self.codes.values[depth == d], minlength=size) for d, size in enumerate(self.layout.sizes)
        )

    def save(self, folder: Path) -> None:
        """Write into an open artifact folder, without other ids."""
        write_rows(folder, self.items, self.codes, self.suffixes, self.unsettled)
        arrays: dict[str, np.ndarray] = {}
        if len(self.layout.merges):
            arrays |= {f"merges/{name}": array for name, array in self.layout.merges.state().items()}
        if self.mixtures is not None:
            arrays |= {f"mixtures/{name}": array for name, array in self.mixtures.state().items()}
        save_arrays(folder / ARRAYS, arrays)
        about: dict[str, Any] = {"sizes": list(self.layout.sizes), "suffix": self.layout.suffix}
        # Usual ids are written as they were before there was a choice.
        if self.layout.first != FIRST:
            about["first"] = self.layout.first
        if self.layout.merges.form != MergeTable.form:
            about["merges"] = self.layout.merges.form
        if self.reading != ItemByItem():
            about["reading"] = to_dict(self.reading)
        write_json(folder / "ids.json", about)

    @classmethod
    def load(cls, folder: Path, kinds: Kinds | None = None) -> SemanticIds:
        """Read what `save` wrote; `kinds` adds user-defined readings."""
        with untrusted.interpreting(folder / ROWS, "file of ids"):
            about = untrusted.mapping(read_json(folder / "ids.json"), "ids.json")
            items, arrays = read_rows(folder)
            layout = layout_of(about, arrays, len(items))
            bounds: dict[str, Any] = {"least": ABSENT, "below": max(layout.sizes)}
            codes = untrusted.ragged(arrays, "codes", "offsets", ROWS, count=len(items), **bounds)
            unsettled = None
            if "unsettled" in arrays:
                unsettled = untrusted.ragged(arrays, "unsettled", "offsets", ROWS, **bounds)
            suffixes = None
            if "suffixes" in arrays:
                suffixes = untrusted.integers(arrays, "suffixes", ROWS, count=len(items), below=layout.suffix)
            ids = cls(items, _checked(codes), layout, suffixes, reading_of(about, kinds), unsettled)
            ids.tokens  # noqa: B018  (raises now if a code is outside the codebook of its depth)
            return ids.with_mixtures(mixtures_of(arrays, layout, len(items)))


def _checked(codes: Ragged) -> Ragged:
    codes = ending_present(codes)
    if len(codes) and codes.lengths.min() < 1:
        raise DataError("an item has an empty code", hint="every item needs at least one code")
    return codes


def _if_other(before: Ragged, after: Ragged) -> Ragged | None:
    """The tokenizer's codes if the policy changed any of them, else None."""
    if not np.array_equal(before.offsets, after.offsets):
        raise DataError("a collision policy changed the length of an id", hint="it may only change last codes")
    return None if before == after else before


def prefix_free(tokens: Ragged) -> Ragged:
    """Rows of tokens, with an end token where a row is a proper prefix of another."""
    open_rows = proper_prefixes(tokens)
    return tokens.push(END, open_rows) if open_rows.any() else tokens


def changed_codes(old: SemanticIds, new: SemanticIds) -> int:
    """How many items have other codes than before."""
    return sum(not np.array_equal(a, b) for a, b in zip(old.codes, new.codes))


def churn(old: SemanticIds, new: SemanticIds) -> str:
    """A sentence: how many items have other codes than before."""
    return f"new codes for {changed_codes(old, new):,} of {len(old):,} items"


def code_use(ids: SemanticIds) -> str:
    """A sentence: the share of each codebook that some item uses."""
    return f"use of codebooks {', '.join(f'{100 * share:.0f} %' for share in ids.statistics().utilization)}"


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of code usage: 0 if all codes are used equally, near 1 if one code has all items."""
    total = counts.sum()
    if total == 0:
        return 0.0
    ordered = np.sort(counts)
    n = len(ordered)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * total))
