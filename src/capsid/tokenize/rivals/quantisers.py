"""Tokenizers of k-means alone: residual k-means, product quantisation, and attributes before the codes of another one.

Residual k-means quantizes, subtracts the centre and quantizes the residual (QARM, arXiv 2411.11739; OneRec,
2502.18965). Product quantisation cuts whitened principal components, rotated, into equal parts, with k-means of every
part; the rotation is learnt with the centres (OPQ, Ge et al. 2013, "Optimized product quantization", algorithm 1). Its
codes are independent features of an item, not a path from coarse to fine. Chained codes begin with an item's metadata
(chain of attributes: UniRec, Wang et al. 2026, arXiv 2604.12234): the inner tokenizer sees vectors only, and a value
that was not in the catalogue at `fit` gets code 0. Codes do not depend on the other items of a batch. Shapes: N items,
I width of the input, D width after whitening, K centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.fields import Field, FieldValues, field_numbers, learn_fields, tell_fields
from capsid.data.item_table import ItemTable
from capsid.encode.base import below, fitted, fresh, pack_strings, require_items, unpack_strings, vectors_of
from capsid.encode.factorised import principal_axes
from capsid.ids.collisions import Costs
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.base import ReadsBlock, Tokenizer, summed_centres
from capsid.tokenize.kmeans import (
    balanced_kmeans,
    class_means,
    kmeans,
    nearby_codes,
    nearest,
    padded_blocks,
    squared_distances,
)

ITERATIONS, CAPACITY_ITERATIONS = 25, 20


@dataclass(kw_only=True)
class ResidualKMeans(Checked):
    """Centres by depth, each depth fitted to the residuals of the earlier depths."""

    kind: ClassVar[str] = "residual-kmeans"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256), "Number of centres at each depth, fewer where there are fewer items.", least=1, count=(1, None)
    )
    restarts: int = setting(3, "Restarts of k-means; the best run is kept.", least=1)
    capacity: float | None = setting(
        None, "Largest load of a centre over the mean; an item weighs its count plus 1; none: no limit.", least=1
    )
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(c) for c in self._fitted())

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> ResidualKMeans:
        """k-means on the vectors, then on the residuals, depth by depth."""
        require_items(table)
        learnt, codes = [], []
        residual = vectors_of(table, self.block)
        for depth, size in enumerate(self.codebooks):
            if size > len(residual):
                progress.line(
                    f"residual k-means: {len(residual):,} items, so {size:,} codes are reduced to that number"
                )
            centres = kmeans(residual, min(size, len(residual)), ITERATIONS, self.restarts, seed + depth)
            centres, labels_N = self._assigned(residual, centres, table.counts + 1, progress)
            learnt.append(centres)
            codes.append(labels_N)
            residual -= centres[labels_N]
            left = float(np.linalg.norm(residual, axis=1).mean())
            progress.line(f"residual k-means: depth {depth + 1}/{len(self.codebooks)}, {left:.3f} of the norm left")
        self.centres_: tuple[np.ndarray, ...] = tuple(learnt)
        self.items_, self.codes_ = table.items, np.stack(codes, axis=1).astype(np.int32)
        return self

    def _assigned(
        self, residual: np.ndarray, centres: np.ndarray, loads_N: np.ndarray, progress: Progress
    ) -> tuple[np.ndarray, np.ndarray]:
        """Centres and the codes of the catalogue: the nearest, or within capacity (UniRec, arXiv 2604.12234)."""
        if self.capacity is None:
            return centres, nearest(residual, centres)
        most = self.capacity * loads_N.sum() / len(centres)
        found = balanced_kmeans(residual, centres, most, weights_N=loads_N, iterations=CAPACITY_ITERATIONS)
        over = int((np.bincount(found.labels_N, loads_N, minlength=len(centres)) > most).sum())
        if over:
            progress.line(f"residual k-means: {over:,} of {len(centres):,} centres hold more than {most:,.0f}")
        return found.centres_KD, found.labels_N

    def encode(self, table: ItemTable) -> Ragged:
        """Nearest centre at every depth; with a capacity, known items have the codes that `fit` gave them."""
        codes_ND = self._nearest_codes(table)
        if self.capacity is not None:
            row_N = self.items_.numbers(table.items, missing="negative")
            codes_ND = np.where(row_N[:, None] >= 0, self.codes_[row_N], codes_ND)
        return Ragged.from_dense(codes_ND)

    def _nearest_codes(self, table: ItemTable) -> np.ndarray:
        residual = vectors_of(table, self.block, dim=self._fitted()[0].shape[1])
        codes_ND = np.empty((len(residual), len(self.centres_)), dtype=np.int32)
        for depth, centres in enumerate(self.centres_):
            codes_ND[:, depth] = nearest(residual, centres)
            residual -= centres[codes_ND[:, depth]]
        return codes_ND

    def strongest_codes(self, table: ItemTable, strongest: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest codes of every item at every depth, weighted by distance."""
        return nearby_codes(vectors_of(table, self.block, dim=self._fitted()[0].shape[1]), self._fitted(), strongest)

    def last_costs(self, table: ItemTable, codes: Ragged) -> Costs:
        """Squared distances from the residuals of the earlier depths to the centres of the last depth. Capacity is
        ignored, so another code may cost less than an item's own."""
        *earlier, last = self._fitted()
        vectors, codes_ND = table.vectors(self.block), codes.dense()

        def costs(rows: np.ndarray) -> np.ndarray:
            residual = np.array(vectors[rows], dtype=np.float32)
            for depth, centres in enumerate(earlier):
                residual -= centres[codes_ND[rows, depth]]
            return squared_distances(residual, last)

        return costs

    def decode(self, codes: Ragged) -> np.ndarray:
        return summed_centres(codes, self._fitted())

    def centres(self) -> tuple[np.ndarray, ...]:
        return self._fitted()

    def state(self) -> dict[str, np.ndarray]:
        """Centres by name; with a capacity also the codes of the catalogue."""
        centres = {f"centres_{d}": c for d, c in enumerate(self._fitted())}
        if self.capacity is None:
            return centres
        return {**centres, "items": pack_strings(self.items_), "codes": self.codes_}

    def load_state(self, state: dict[str, np.ndarray]) -> ResidualKMeans:
        self.centres_ = tuple(state[f"centres_{d}"] for d in range(sum(name.startswith("centres_") for name in state)))
        if self.capacity is not None:
            self.items_, self.codes_ = Vocabulary(unpack_strings(state["items"])), state["codes"]
        return self

    def _fitted(self) -> tuple[np.ndarray, ...]:
        return fitted(getattr(self, "centres_", None), self)


BLOCK = 1024


@dataclass(kw_only=True)
class ProductQuantizer(Checked):
    """Centres of every part of the whitened and rotated vectors."""

    kind: ClassVar[str] = "product"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256, 256), "Centres of each part, fewer where there are fewer items.", least=1, count=(1, None)
    )
    dims: int = setting(128, "Principal components that are kept, divided evenly among the parts.", least=1)
    rounds: int = setting(20, "Rounds that improve rotation and centres in turn; 0: a random rotation.", least=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(c) for c in self._fitted())

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> ProductQuantizer:
        """Whiten, then learn rotation and centres."""
        require_items(table)
        vectors = vectors_of(table)
        self.mean_: np.ndarray = vectors.mean(0)
        white_ID = _whitening(vectors - self.mean_, self.dims, len(self.codebooks))
        x_ND = ((vectors - self.mean_).astype(np.float64) @ white_ID).astype(np.float32)
        width = white_ID.shape[1]
        rotation_DD = np.linalg.qr(numpy_rng(seed, "rotation").standard_normal((width, width)))[0]
        parts = np.split(x_ND @ rotation_DD.astype(np.float32), len(self.codebooks), axis=1)
        centres = [
            kmeans(part, min(size, len(part)), ITERATIONS, 1, seed + number)
            for number, (part, size) in enumerate(zip(parts, self.codebooks))
        ]
        for _ in range(self.rounds):
            codes = [nearest(part, own) for part, own in zip(parts, centres)]
            centres = [_means(part, code, own) for part, code, own in zip(parts, codes, centres)]
            meant_ND = np.concatenate([own[code] for own, code in zip(centres, codes)], axis=1)
            # The rotation that brings the vectors closest to their centres (orthogonal Procrustes problem).
            left, _, right = np.linalg.svd(x_ND.T.astype(np.float64) @ meant_ND)
            rotation_DD = left @ right
            parts = np.split(x_ND @ rotation_DD.astype(np.float32), len(self.codebooks), axis=1)
        self.axes_: np.ndarray = (white_ID @ rotation_DD).astype(np.float32)
        self.centres_: tuple[np.ndarray, ...] = tuple(centres)
        found = [own[nearest(part, own)] for part, own in zip(parts, centres)]
        lost = sum(float(((part - own) ** 2).sum()) for part, own in zip(parts, found))
        share = lost / max(float((x_ND**2).sum()), 1e-12)
        progress.line(f"product quantisation: {width} dimensions in {len(centres)} parts, {share:.3f} of the norm left")
        return self

    def encode(self, table: ItemTable) -> Ragged:
        vectors = vectors_of(table, dim=len(self._axes()))
        blocks = [(x_BI.numpy() @ self.axes_)[:rows] for x_BI, rows in padded_blocks(vectors - self.mean_, BLOCK)]
        z_ND = np.concatenate([np.zeros((0, self.axes_.shape[1]), dtype=np.float32), *blocks])
        parts = np.split(z_ND, len(self.centres_), axis=1)
        codes = [nearest(np.ascontiguousarray(part), own) for part, own in zip(parts, self.centres_)]
        return Ragged.from_dense(np.stack(codes, axis=1).astype(np.int32))

    def decode(self, codes: Ragged) -> np.ndarray:
        """The vectors that the codes' centres stand for; a part without a code counts as the mean."""
        back_DI = np.linalg.pinv(self._axes().astype(np.float64))
        return (summed_centres(codes, self.centres()) @ back_DI + self.mean_).astype(np.float32)

    def centres(self) -> tuple[np.ndarray, ...]:
        width = self._axes().shape[1]
        out, begin = [], 0
        for own in self._fitted():
            whole = np.zeros((len(own), width), dtype=np.float32)
            whole[:, begin : begin + own.shape[1]] = own
            begin += own.shape[1]
            out.append(whole)
        return tuple(out)

    def state(self) -> dict[str, np.ndarray]:
        centres = {f"centres_{d}": c for d, c in enumerate(self._fitted())}
        return {"mean": self.mean_, "axes": self.axes_, **centres}

    def load_state(self, state: dict[str, np.ndarray]) -> ProductQuantizer:
        self.mean_, self.axes_ = state["mean"], state["axes"]
        self.centres_ = tuple(state[f"centres_{d}"] for d in range(sum(name.startswith("centres_") for name in state)))
        return self

    def _fitted(self) -> tuple[np.ndarray, ...]:
        return fitted(getattr(self, "centres_", None), self)

    def _axes(self) -> np.ndarray:
        self._fitted()
        return self.axes_


def _whitening(centred_NI: np.ndarray, dims: int, parts: int) -> np.ndarray:
    """Principal axes over their deviations, as many as divide evenly; zeros where there are fewer axes than parts."""
    axes_ID, deviations_D = principal_axes(centred_NI, dims)
    axes_ID = axes_ID / np.maximum(deviations_D, 1e-12)
    width = max(axes_ID.shape[1] // parts, 1) * parts
    out = np.zeros((len(axes_ID), width))
    out[:, : min(width, axes_ID.shape[1])] = axes_ID[:, :width]
    return out


def _means(part_ND: np.ndarray, codes_N: np.ndarray, centres_KD: np.ndarray) -> np.ndarray:
    """The mean of the vectors of every code; a code without vectors keeps its centre."""
    groups = Ragged.grouped(np.arange(len(codes_N)), codes_N, len(centres_KD))
    counts_K1 = groups.lengths[:, None]
    sums_KD = groups.sums(part_ND[groups.values])
    return np.where(counts_K1 > 0, sums_KD / np.maximum(counts_K1, 1), centres_KD).astype(np.float32)


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
