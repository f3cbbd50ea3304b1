"""The memory of transitions as a part of a recipe, what it learnt, and a network with a memory beside it.

Items that followed one of the last items of a history in training get a bonus, and so do the items nearest to each of
these last items. It is fitted after the network, which stays what it is, so methods that differ only in their memory
share their weights. On a trie the counts of a node are the sums over its items, so that every prefix of a likely item
rises. Knows the decoder's protocol instead of a network. Shapes: J weights, as in `capsid.generate.open_items`.
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
from capsid.decode.protocol import Decodable, PredictsSystems
from capsid.encode.nearest import Neighbours, grown_neighbours, neighbours_of
from capsid.errors import ConfigError
from capsid.generate.open_items import OpenItems, padded_items
from capsid.ids.reading import ReadableIds, TokenBatch
from capsid.memory.followers import Followers, Transitions
from capsid.ragged import Ragged
from capsid.settings import Checked, setting

FILE = "memory.npz"
# Weights are this many times what is optimised, which has about the size of other parameters.
REACH = 10.0


@dataclass(kw_only=True, frozen=True)
class Memory(Checked):
    """How much is remembered of the last items of a history."""

    kind: ClassVar[str] = "memory"
    last: int = setting(3, "Items that followed one of so many last items get bonuses.", least=1, most=50)
    neighbours: int = setting(
        100, "So many nearest items of each of them, by their vectors, get bonuses too.", least=0, most=10_000
    )

    def count(self, sequences: Ragged, items: int, vectors_ND: np.ndarray | None) -> Transitions:
        """What is remembered of training sequences, and of item vectors."""
        counted = Transitions.count(sequences, items, self.last)
        return replace(counted, near=neighbours_of(vectors_ND, self.neighbours) if self.neighbours else None)


@dataclass(frozen=True, eq=False)
class FittedMemory:
    """What followed what, the weights of the bonuses, and the temperature that all scores are divided by.

    One weight for each distance, and as many again for neighbours. A score gets sum_j a_j log(1 + c_j), where c_j is
    how often an item came j positions after the j-th last item, or how much it is like that item.
    """

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
        """Write `memory.npz`."""
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
        wanted = transitions.distances * (1 if transitions.near is None else 2)
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
    return Transitions(tuple(followers), tuple(counts), _neighbours_of(arrays, items, checked=checked))


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
        """The state before the first token."""
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
    """A network and a memory as one, see `capsid.decode.protocol.Decodable`."""

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
        """Scores of all tokens, with bonuses."""
        scores = self.network.scores(state.inner, rows_UWD, row_R)
        return self.memory.cooled(state.items.added_to(scores, state.depth, row_R))

    def scores_of(self, state: _State, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """Scores of the tokens asked about, with bonuses."""
        scores_E = self.network.scores_of(state.inner, rows_UWD, row_E, token_E)
        return self.memory.cooled(state.items.added_to_pairs(scores_E, row_E, token_E, state.depth))

    def _remembered(self, histories: TokenBatch, system: int) -> RememberedItems:
        tokens = self.item_ids.systems[system].prefix_free
        return RememberedItems.of(self.memory.transitions.following(histories.items, tokens), self.memory)
