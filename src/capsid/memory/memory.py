"""The memory of transitions as a part of a recipe, and what it learnt.

Items that followed one of the last items of a history in training get a bonus, and so do the items nearest to each of
these last items. It is fitted after the network, which stays what it is, so methods that differ only in their memory
share their weights. Knows item numbers and vectors, no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_arrays, map_arrays, save_arrays
from capsid.base.vocabulary import Vocabulary, id_ranks
from capsid.encode.nearest import grown_neighbours, neighbours_of
from capsid.ids.neighbours import Neighbours
from capsid.memory.followers import Transitions
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting

FILE = "memory.npz"
# Weights are this many times what is optimised, which has about the size of other parameters.
REACH = 10.0


@dataclass(kw_only=True, frozen=True)
class Memory:
    """How much is remembered of the last items of a history."""

    kind: ClassVar[str] = "memory"
    last: int = setting(3, "Items that followed one of so many last items get bonuses.", least=1, most=50)
    neighbours: int = setting(
        100,
        "So many nearest items of each of them, by their vectors, get bonuses too.",
        least=0,
        most=10_000,
    )
    id_order: bool = setting(
        False,
        "Whether remembered items whose ids sort after the last item's get one too: a probe of the data's order.",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def count(self, sequences: Ragged, items: Vocabulary, vectors_ND: np.ndarray | None) -> Transitions:
        """What is remembered of training sequences, and of item vectors."""
        near = neighbours_of(vectors_ND, self.neighbours) if self.neighbours else None
        ranks_N = id_ranks(items) if self.id_order else None
        return replace(Transitions.count(sequences, len(items), self.last), near=near, ranks_N=ranks_N)


@dataclass(frozen=True, eq=False)
class FittedMemory:
    """What followed what, the weights of the bonuses, and the temperature that all scores are divided by.

    One weight for each distance, as many again for neighbours, and one for ranks. A score gets sum_j a_j log(1 + c_j),
    where c_j is how often an item came j positions after the j-th last item, or how much it is like that item.
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
        wanted = transitions.columns
        if weights.shape != (wanted,) or not np.isfinite(weights).all() or not 0 < temperature < np.inf:
            raise untrusted.refuse(f"{FILE}: {wanted} finite weights and a temperature above 0 are needed")
        return cls(transitions, tuple(map(float, weights)), temperature)


def transitions_of(arrays: Mapping[str, np.ndarray], items: int, *, checked: bool = False) -> Transitions:
    """The transitions in a file; their items must be in the catalogue."""
    followers, counts = [], []
    for number in range(sum(name.startswith("transitions/items/") for name in arrays)):
        values, offsets, count = (f"transitions/{name}/{number}" for name in ("items", "offsets", "counts"))
        if checked:
            followers.append(Ragged(arrays[values], arrays[offsets]))
            counts.append(arrays[count])
            continue
        rows = untrusted.ragged(arrays, values, offsets, FILE, count=items, below=items)
        most = {"count": len(rows.values), "least": 1, "below": np.iinfo(np.int32).max}
        followers.append(rows)
        counts.append(untrusted.integers(arrays, count, FILE, **most))
    if not followers:
        raise untrusted.refuse(f"{FILE} has no transitions")
    ranks_N = arrays.get("transitions/ranks")
    if ranks_N is not None and not checked:
        ranks_N = untrusted.integers(arrays, "transitions/ranks", FILE, count=items, least=-1, below=items)
    return Transitions(tuple(followers), tuple(counts), _neighbours_of(arrays, items, checked=checked), ranks_N)


def _neighbours_of(arrays: Mapping[str, np.ndarray], items: int, *, checked: bool) -> Neighbours | None:
    values, offsets, likeness = (f"transitions/near/{name}" for name in ("items", "offsets", "likeness"))
    if values not in arrays:
        return None
    if checked:
        return Neighbours(Ragged(arrays[values], arrays[offsets]), arrays[likeness])
    rows = untrusted.ragged(arrays, values, offsets, FILE, count=items, below=items)
    found = untrusted.finite({likeness: arrays[likeness]}, FILE)[likeness]
    if found.dtype != np.float32 or found.shape != rows.values.shape or (found < 0).any():
        raise untrusted.refuse(f"{FILE}: {likeness} is not one number of at least 0 for each neighbour")
    return Neighbours(rows, found)
