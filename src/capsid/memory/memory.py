"""The memory of transitions as a part of a recipe, what it learnt, and a network with a memory beside it.

Items that followed one of the last items of a history in training get a bonus, and so do the items nearest to each of
these last items. Followers are counted by distance: 1 for the next item, 2 for the one after it. When weights are
fitted, the pair that is predicted does not count for its own prediction (leave one out); otherwise every target would
have been seen before. The memory is fitted after the network, which stays what it is, so methods that differ only in
their memory share their weights. On a trie the counts of a node are the sums over its items, so that every prefix of a
likely item rises. Knows the decoder's protocol instead of a network. Shapes: N items, C cases (histories, or items to
predict), J distances or weights (twice as many with neighbours), E entries, otherwise as in
`capsid.generate.open_items`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_arrays, map_arrays, save_arrays
from capsid.base.vocabulary import Vocabulary, id_ranks
from capsid.decode.model import Decodable, PredictsSystems
from capsid.encode.nearest import Neighbours, grown_neighbours, neighbours_of
from capsid.errors import ConfigError
from capsid.generate.open_items import OpenItems, padded_items
from capsid.ids.item_tokens import ItemRows
from capsid.ids.reading import Lesson, ReadableIds, TokenBatch
from capsid.ragged import Ragged
from capsid.settings import Checked, setting

# The most followers that are kept per item and distance, so that a request costs the same in every catalogue.
MOST_FOLLOWERS = 200


@dataclass(frozen=True, eq=False)
class Followers:
    """For each case, the items that followed its last items in training (one row per case), and `own`, their tokens.
    `counts_EJ[e, j]` says how often item e came j + 1 positions after the item that is j + 1 positions before the case.
    With neighbours, as many columns follow: how much item e is like that item. With ranks, one more: whether item e
    ranks after the last item."""

    items: Ragged
    counts_EJ: np.ndarray
    own: Ragged

    def take(self, cases: np.ndarray) -> Followers:
        """Those of the given cases, in the given order."""
        entry = Ragged(np.arange(len(self.counts_EJ)), self.items.offsets).take(cases).values
        return Followers(self.items.take(cases), self.counts_EJ[entry], self.own.take(entry))

    def seen_as(self, tokens: ItemRows) -> Followers:
        """The same items with other ids; `tokens` has those of the whole catalogue."""
        return replace(self, own=tokens.take(self.items.values))


@dataclass(frozen=True, eq=False)
class Transitions:
    """For each distance: the followers of every item (one row per item, ascending), and how often each followed.
    `near`: which items are alike, if that is remembered too. `ranks_N`: an order of the items, if that counts too."""

    followers: tuple[Ragged, ...]
    counts: tuple[np.ndarray, ...]
    near: Neighbours | None = None
    ranks_N: np.ndarray | None = None

    @classmethod
    def count(cls, sequences: Ragged, items: int, distances: int) -> Transitions:
        """Counts over whole sequences of item numbers."""
        found = [_pairs(sequences, items, distance) for distance in range(1, distances + 1)]
        return cls(tuple(rows for rows, _ in found), tuple(counts for _, counts in found))

    def __len__(self) -> int:
        return len(self.followers[0])

    @property
    def distances(self) -> int:
        return len(self.followers)

    @property
    def columns(self) -> int:
        """How many numbers an entry has, each with a weight."""
        return self.distances * (1 if self.near is None else 2) + (self.ranks_N is not None)

    def grown(self, items: int, near: Neighbours | None = None) -> Transitions:
        """The same counts for a catalogue of `items` items; the new ones follow nothing and nothing follows them.
        `near` are the neighbours in the grown catalogue, needed if there are any now. New items rank before all."""
        added = items - len(self)
        more = Ragged.from_lengths(np.zeros(0, np.int32), np.zeros(added, np.int64))
        ranks_N = None if self.ranks_N is None else np.append(self.ranks_N, np.full(added, -1))
        return Transitions(tuple(rows.append(more) for rows in self.followers), self.counts, near, ranks_N)

    def following(self, histories: Ragged, tokens: ItemRows) -> Followers:
        """The followers of whole histories; `tokens` are those of the whole catalogue."""
        return self.after(last_items(histories, histories.lengths, np.arange(len(histories)), self.distances), tokens)

    def before(self, lesson: Lesson, tokens: ItemRows, *, counted: bool) -> Followers:
        """The followers of what comes before each item of a lesson. `counted`: its transitions are among those here."""
        last_CJ = last_items(lesson.batch.items, lesson.before_M, lesson.row_M, self.distances)
        return self.after(last_CJ, tokens, lesson.item_M if counted else None)

    def after(self, last_CJ: np.ndarray, tokens: ItemRows, targets_C: np.ndarray | None = None) -> Followers:
        """The followers of cases whose last items are `last_CJ`, the most recent first (-1: none). `tokens` are those
        of the whole catalogue. With `targets` every case is a transition of the training sequences, which does not
        count for itself."""
        columns = list(zip(self.followers, self.counts))
        if self.near is not None:
            columns += [(self.near.items, self.near.likeness)] * self.distances
        parts = [
            _at(rows, counts, last_CJ[:, number % self.distances]) for number, (rows, counts) in enumerate(columns)
        ]
        stride = len(self)
        # One entry for each pair of case and follower, whatever the distances at which it was found.
        key_E, entry = np.unique(np.concatenate([case * stride + item for case, item, _ in parts]), return_inverse=True)
        counts_EJ = np.zeros((len(key_E), len(parts)), dtype=np.float32)
        column = np.repeat(np.arange(len(parts)), [len(case) for case, _, _ in parts])
        counts_EJ[entry, column] = np.concatenate([count for _, _, count in parts])
        case_E, item_E = np.divmod(key_E, stride)
        if targets_C is not None:
            own_E = np.flatnonzero(targets_C[case_E] == item_E)
            counted = (own_E, slice(self.distances))
            counts_EJ[counted] = np.maximum(counts_EJ[counted] - 1, 0)
        seen = counts_EJ.any(1)
        case_E, item_E, counts_EJ = case_E[seen], item_E[seen], counts_EJ[seen]
        if self.ranks_N is not None:
            later_E = self.ranks_N[item_E] > self.ranks_N[last_CJ[case_E, 0]]
            counts_EJ = np.column_stack([counts_EJ, later_E.astype(np.float32)])
        return Followers(Ragged.grouped(item_E, case_E, len(last_CJ)), counts_EJ, tokens.take(item_E))

    def state(self) -> dict[str, np.ndarray]:
        counted = {
            f"{name}/{number}": array
            for number, (rows, counts) in enumerate(zip(self.followers, self.counts))
            for name, array in (("items", rows.values), ("offsets", rows.offsets), ("counts", counts))
        }
        near = {} if self.near is None else {f"near/{name}": array for name, array in self.near.state().items()}
        return counted | near | ({} if self.ranks_N is None else {"ranks": self.ranks_N})


def last_items(items: Ragged, ends: np.ndarray, rows: np.ndarray, distances: int) -> np.ndarray:
    """The items at the last positions before `ends` of rows, the most recent first; -1: none. Shape: (C, J)."""
    position_CJ = ends[:, None] - 1 - np.arange(distances)
    out = np.full(position_CJ.shape, -1, dtype=np.int64)
    there = position_CJ >= 0
    out[there] = items.values[(items.offsets[rows][:, None] + position_CJ)[there]]
    return out


def _at(rows: Ragged, counts: np.ndarray, last_C: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cases, the items of their last items' rows, and the counts of these items."""
    there = np.flatnonzero(last_C >= 0)
    last = last_C[there]
    # Numbers of the entries themselves, so that counts can be taken with the items.
    entry = Ragged.ranges(rows.offsets[last], rows.lengths_of(last))
    return there[entry.row_numbers], rows.values[entry.values].astype(np.int64), counts[entry.values]


def _pairs(sequences: Ragged, items: int, distance: int) -> tuple[Ragged, np.ndarray]:
    """The followers of every item at one distance, and their counts."""
    row, value = sequences.row_numbers, sequences.values.astype(np.int64)
    together = np.flatnonzero(row[distance:] == row[:-distance]) if len(row) > distance else np.zeros(0, np.int64)
    key, count = np.unique(value[together] * items + value[together + distance], return_counts=True)
    first, later = np.divmod(key, items)
    # Ranks among the followers of an item, the most frequent first; equal counts by item number.
    order = np.lexsort((later, -count, first))
    rank = np.empty(len(key), dtype=np.int64)
    rank[order] = Ragged.from_lengths(order, np.bincount(first, minlength=items)).positions
    kept = rank < MOST_FOLLOWERS
    rows = Ragged.from_lengths(later[kept].astype(np.int32), np.bincount(first[kept], minlength=items))
    return rows, count[kept].astype(np.int32)


FILE = "memory.npz"
# Weights are this many times what is optimised, which has about the size of other parameters.
REACH = 10.0


@dataclass(kw_only=True, frozen=True)
class Memory(Checked):
    """How much is remembered of the last items of a history."""

    kind: ClassVar[str] = "memory"
    last: int = setting(3, "Items that followed one of so many last items get bonuses.", least=1, most=50)
    neighbours: int = setting(100, "So many nearest items of each, by vectors, get bonuses too.", least=0, most=10_000)
    id_order: bool = setting(
        False,
        "Whether remembered items whose ids sort after the last item's get one too: a probe of the data's order.",
    )

    def count(self, sequences: Ragged, items: Vocabulary, vectors_ND: np.ndarray | None) -> Transitions:
        """What is remembered of training sequences, and of item vectors."""
        near = neighbours_of(vectors_ND, self.neighbours) if self.neighbours else None
        ranks_N = id_ranks(items) if self.id_order else None
        return replace(Transitions.count(sequences, len(items), self.last), near=near, ranks_N=ranks_N)


@dataclass(frozen=True, eq=False)
class FittedMemory:
    """What followed what, the weights of the bonuses, and the temperature that all scores are divided by. One weight
    for each distance, as many again for neighbours, and one for ranks. A score gets sum_j a_j log(1 + c_j), where c_j
    is how often an item came j positions after the j-th last item, or how much it is like that item."""

    transitions: Transitions
    weights: tuple[float, ...]
    temperature: float = 1.0

    @cached_property
    def weights_J(self) -> Tensor:
        """The weights, as they were optimised."""
        return REACH * (torch.tensor(self.weights, dtype=torch.float32) / REACH)

    def bonus(self, counts_EJ: Tensor) -> Tensor:
        """What is added to scores. Shape: (E,)."""
        return counts_EJ.log1p() @ self.weights_J

    def cooled(self, scores: Tensor) -> Tensor:
        """Scores with bonuses, divided by the temperature."""
        return scores / self.temperature if self.temperature != 1.0 else scores

    def grown(self, items: int, vectors_ND: np.ndarray | None) -> FittedMemory:
        """The same memory for a catalogue of `items` items with these vectors. New items have neighbours at once."""
        near = grown_neighbours(self.transitions.near, vectors_ND)
        return replace(self, transitions=self.transitions.grown(items, near))

    def save(self, folder: Path) -> None:
        arrays = {f"transitions/{name}": array for name, array in self.transitions.state().items()}
        numbers = {"weights": np.array(self.weights), "temperature": np.array(self.temperature)}
        save_arrays(folder / FILE, {**arrays, **numbers})

    @classmethod
    def load(cls, folder: Path, items: int, *, checked: bool = False) -> FittedMemory:
        """Read what `save` wrote; `checked`: another process has checked the file, so its arrays are mapped."""
        arrays = map_arrays(folder / FILE, lambda _: True) if checked else load_arrays(folder / FILE)
        return cls.of(arrays, arrays["weights"], float(arrays["temperature"]), items, checked=checked)

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, np.ndarray],
        weights: np.ndarray,
        temperature: float,
        items: int,
        *,
        checked: bool = False,
    ) -> FittedMemory:
        """From stored arrays and numbers; refuses values that cannot be right."""
        transitions = transitions_of(arrays, items, checked=checked)
        wanted = transitions.columns
        if weights.shape != (wanted,) or not np.isfinite(weights).all() or not 0 < temperature < np.inf:
            raise untrusted.refuse(f"{FILE}: {wanted} finite weights and a temperature above 0 are needed")
        return cls(transitions, tuple(map(float, weights)), temperature)


def transitions_of(arrays: Mapping[str, np.ndarray], items: int, *, checked: bool = False) -> Transitions:
    """The transitions in a file; their items must be in the catalogue."""
    followers, counts = [], []
    for number in range(sum(name.startswith("transitions/items/") for name in arrays)):
        values, offsets, count = (f"transitions/{name}/{number}" for name in ("items", "offsets", "counts"))
        rows = _rows(arrays, values, offsets, items, checked=checked)
        most = {"count": len(rows.values), "least": 1, "below": np.iinfo(np.int32).max}
        followers.append(rows)
        counts.append(arrays[count] if checked else untrusted.integers(arrays, count, FILE, **most))
    if not followers:
        raise untrusted.refuse(f"{FILE} has no transitions")
    ranks_N = arrays.get("transitions/ranks")
    if ranks_N is not None and not checked:
        ranks_N = untrusted.integers(arrays, "transitions/ranks", FILE, count=items, least=-1, below=items)
    return Transitions(tuple(followers), tuple(counts), _neighbours_of(arrays, items, checked=checked), ranks_N)


def _rows(arrays: Mapping[str, np.ndarray], values: str, offsets: str, items: int, *, checked: bool) -> Ragged:
    if checked:
        return Ragged(arrays[values], arrays[offsets])
    return untrusted.ragged(arrays, values, offsets, FILE, count=items, below=items)


def _neighbours_of(arrays: Mapping[str, np.ndarray], items: int, *, checked: bool) -> Neighbours | None:
    values, offsets, likeness = (f"transitions/near/{name}" for name in ("items", "offsets", "likeness"))
    if values not in arrays:
        return None
    rows = _rows(arrays, values, offsets, items, checked=checked)
    if checked:
        return Neighbours(rows, arrays[likeness])
    found = untrusted.finite({likeness: arrays[likeness]}, FILE)[likeness]
    if found.dtype != np.float32 or found.shape != rows.values.shape or (found < 0).any():
        raise untrusted.refuse(f"{FILE}: {likeness} is not one number of at least 0 for each neighbour")
    return Neighbours(rows, found)


@dataclass(frozen=True, eq=False)
class RememberedItems(OpenItems):
    """The remembered items of every user, as far as each beam may still become them."""

    counts_UPJ: Tensor
    memory: FittedMemory

    @classmethod
    def of(cls, found: Followers, memory: FittedMemory) -> RememberedItems:
        tokens_UPT, lengths_UP, open_UWP = padded_items(found.items, found.own)
        counts_UPJ = torch.zeros(*lengths_UP.shape, found.counts_EJ.shape[1])
        counts_UPJ[found.items.row_numbers, found.items.positions] = torch.as_tensor(found.counts_EJ)
        return cls(tokens_UPT, lengths_UP, open_UWP, counts_UPJ, memory)

    def numbers(self, depth: int, stride: int) -> tuple[Tensor, Tensor]:
        """The bonus of every token that leads to a remembered item."""
        key_E, user_E, item_E = self.keys(depth, stride, self.lengths_UP > 0)
        key_C, entry_E = key_E.unique(return_inverse=True)
        counts_CJ = torch.zeros(len(key_C), self.counts_UPJ.shape[2])
        counts_CJ.index_add_(0, entry_E, self.counts_UPJ[user_E, item_E])
        return key_C, self.memory.bonus(counts_CJ)


@dataclass(frozen=True, eq=False)
class _State:
    """The network's state, the remembered items, and how many tokens every beam has."""

    inner: Any
    items: RememberedItems
    depth: int = 0


@dataclass(frozen=True, eq=False)
class Remembering:
    """A network and a memory as one, see `capsid.decode.model.Decodable`."""

    network: Decodable
    memory: FittedMemory
    item_ids: ReadableIds

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[_State, Tensor]:
        inner, rows_U1D = self.network.start(histories, inputs_RD)
        return _State(inner, self._remembered(histories, 0)), rows_U1D

    def in_system(self, state: _State, histories: TokenBatch, system: int) -> _State:
        if not isinstance(self.network, PredictsSystems):
            raise ConfigError("the generator predicts the first id of an item alone", hint="set generator=timeline")
        return _State(self.network.in_system(state.inner, histories, system), self._remembered(histories, system))

    def step(self, state: _State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[_State, Tensor]:
        inner, rows_UWD = self.network.step(state.inner, parents_UW, tokens_UW)
        items = state.items.on(parents_UW, tokens_UW, state.depth)
        return replace(state, inner=inner, items=items, depth=state.depth + 1), rows_UWD

    def scores(self, state: _State, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        scores = self.network.scores(state.inner, rows_UWD, row_R)
        return self.memory.cooled(state.items.added_to(scores, state.depth, row_R))

    def scores_of(self, state: _State, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        scores_E = self.network.scores_of(state.inner, rows_UWD, row_E, token_E)
        return self.memory.cooled(state.items.added_to_pairs(scores_E, row_E, token_E, state.depth))

    def _remembered(self, histories: TokenBatch, system: int) -> RememberedItems:
        tokens = self.item_ids.systems[system].prefix_free
        return RememberedItems.of(self.memory.transitions.following(histories.items, tokens), self.memory)
