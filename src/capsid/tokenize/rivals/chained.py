"""Attributes as the first codes of an id, then the codes of another tokenizer (chain of attributes: UniRec, Wang et al.
2026, arXiv 2604.12234).

The first codes come from an item's metadata. The inner tokenizer sees vectors only and does not know about them. A
value that was not in the catalogue at `fit` gets code 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.data.fields import Field, FieldValues, field_numbers, learn_fields, tell_fields
from capsid.data.item_table import ItemTable
from capsid.encode.base import below, fitted, fresh, pack_strings, require_items, unpack_strings
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.base import ReadsBlock, Tokenizer, summed_centres
from capsid.tokenize.kmeans import class_means
from capsid.tokenize.rivals.quantisers import ResidualKMeans


@dataclass(kw_only=True)
class Chained(Checked):
    """One code for each field, then the inner tokenizer's."""

    kind: ClassVar[str] = "chained"
    fields: tuple[Field, ...] = setting((), "Fields whose values are the first codes, in this order.")
    inner: Tokenizer = setting(factory=ResidualKMeans, about="Makes the codes that follow the fields.")

    @property
    def block(self) -> str:
        """Name of the vectors that the inner tokenizer reads."""
        return self.inner.block if isinstance(self.inner, ReadsBlock) else "item"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of every field, including unknown, then the inner sizes."""
        return (*map(len, self._fitted()), *self.inner_.sizes)

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Chained:
        """Learn the values of each field, and fit the inner tokenizer."""
        require_items(table)
        learnt = learn_fields(self.fields, table.attributes)
        numbers_NF = field_numbers(learnt, table.attributes)
        tell_fields(learnt, numbers_NF, progress)
        self.inner_: Any = fresh(self.inner).fit(table, seed=seed, progress=progress, checkpoint=checkpoint)
        self.centres_ = _field_centres(numbers_NF, list(map(len, learnt)), self.inner_, table)
        self.values_: tuple[FieldValues, ...] = learnt
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """Codes of the item's field values, then the inner codes."""
        numbers_NF = field_numbers(self._fitted(), table.attributes)
        inner: Ragged = self.inner_.encode(table)
        lengths_N = inner.lengths + len(self.fields)
        out = Ragged.from_lengths(np.empty(int(lengths_N.sum()), dtype=np.int32), lengths_N)
        first = out.positions < len(self.fields)
        out.values[first], out.values[~first] = numbers_NF.ravel(), inner.values
        return out

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """Vectors of the inner codes; the fields add nothing."""
        self._fitted()
        lengths_N = np.maximum(codes.lengths - len(self.fields), 0)
        starts_N = np.minimum(len(self.fields), codes.lengths)
        return self.inner_.decode(codes.slices(starts_N, lengths_N))

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """For each value the mean of its items in the space of the inner centres; then the inner centres."""
        self._fitted()
        inner = self.inner_.centres()
        return None if inner is None else (*self.centres_, *inner)

    def state(self) -> dict[str, np.ndarray]:
        """Names and centres of the values, and the inner state."""
        names = {f"names.{f}": pack_strings(values.names) for f, values in enumerate(self._fitted())}
        centres = {f"centres.{f}": centres_VD for f, centres_VD in enumerate(self.centres_)}
        return {**names, **centres, **{f"inner.{name}": array for name, array in self.inner_.state().items()}}

    def load_state(self, state: dict[str, np.ndarray]) -> Chained:
        self.values_ = tuple(
            FieldValues(field, tuple(unpack_strings(state[f"names.{f}"]))) for f, field in enumerate(self.fields)
        )
        self.inner_ = fresh(self.inner).load_state(below(state, "inner."))
        self.centres_ = tuple(array for _, array in sorted(below(state, "centres.").items(), key=lambda i: int(i[0])))
        return self

    def _fitted(self) -> tuple[FieldValues, ...]:
        return fitted(getattr(self, "values_", None), self)


def _field_centres(numbers_NF: np.ndarray, sizes: list[int], inner: Tokenizer, table: ItemTable) -> tuple:
    """For each value the mean, over its items, of the sum of their inner centres; zeros for a value without items."""
    centres = inner.centres()
    if centres is None:
        return ()
    whole_ND = summed_centres(inner.encode(table), centres)
    nothing = [np.zeros((size, whole_ND.shape[1])) for size in sizes]
    return tuple(class_means(whole_ND, number_N, none_VD) for number_N, none_VD in zip(numbers_NF.T, nothing))
