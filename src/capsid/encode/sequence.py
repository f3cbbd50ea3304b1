"""Item vectors learnt from training sequences: the item embeddings of a small SASRec, or embeddings of masked fields.

`SequenceEncoder` is SASRec (Kang and McAuley 2018, arXiv 1808.09781) with full cross-entropy. `FieldEncoder` is FAMAE
(ReSID, Liang et al. 2026, arXiv 2602.02338), without text: a Transformer reads a history of items as sums of field
embeddings and predicts masked fields of the next item, and an item's vector concatenates its field embeddings, that of
its own id first. Items that occur in no sequence of two or more, including new ones, get zeros (or the mean vector)
for their id. Training is imported on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from capsid.base.blocks.layers import BlockShape
from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.data.augment import training_pieces
from capsid.data.fields import UNKNOWN, Field, FieldValues, field_numbers, learn_fields, tell_fields
from capsid.data.item_table import ItemTable
from capsid.encode.base import (
    RemembersVectors,
    content_hash,
    fitted,
    has_evidence,
    histories_hash,
    pack_strings,
    require_items,
    take,
    unpack_strings,
)
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.settings import setting
from capsid.train.options import Training

# How many items a network reads at most (longer sequences are cut), and the attention heads of FAMAE.
HISTORY, HEADS = 50, 4


def numbered_histories(table: ItemTable) -> tuple[Ragged, np.ndarray]:
    """The table's training sequences in pieces that the networks can read, of two or more items, and which row of the
    table each of their numbers is; an error if there are none."""
    pieces = training_pieces(table.sequences, HISTORY)
    if not len(pieces):
        raise DataError(
            "no training history has two items",
            hint="vectors from sequences need users with two or more training items; use text or attributes",
        )
    seen = np.unique(pieces.values)
    # In id order: an item's vector must not depend on its position in the catalogue.
    seen = seen[np.argsort(np.array(table.items.ids(seen), dtype=np.str_))]
    number_N = np.full(len(table), -1, dtype=np.int64)
    number_N[seen] = np.arange(len(seen))
    return Ragged(number_N[pieces.values], pieces.offsets), seen


def _shape(width: int, *, heads: int, dropout: float) -> BlockShape:
    return BlockShape(layers=2, heads=heads, width=width, feedforward=4 * width, history=HISTORY, dropout=dropout)


def sequence_training() -> Training:
    """About thirty epochs of twenty thousand sequences."""
    return Training(steps=2_500, batch_size=256, learning_rate=3e-3, weight_decay=1e-3)


@dataclass(kw_only=True)
class SequenceEncoder(RemembersVectors):
    """Embeddings that predict the next item of a history; they keep their trained norms."""

    kind: ClassVar[str] = "sasrec"

    dim: int = setting(32, "Width of the vectors and of the network.", least=1)
    unseen: Literal["zeros", "mean"] = setting(
        "zeros", "Vectors of items without training sequences: zeros, or the mean of the other vectors."
    )
    training: Training = setting(factory=sequence_training, about="How the network is trained.")

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Train on the histories; resumes from the checkpoint if there is one."""
        from capsid.encode.networks import learn_embeddings

        require_items(table)
        pieces, seen = numbered_histories(table)
        vectors_ND, shape = np.zeros((len(table), self.dim), dtype=np.float32), _shape(self.dim, heads=1, dropout=0.3)
        vectors_ND[seen] = learn_embeddings(
            pieces, len(seen), shape, self.training, seed=seed, checkpoint=checkpoint, progress=progress
        )
        self.items_, self.vectors_ = table.items, vectors_ND
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """The learnt vectors by item id; zeros or the mean for items unseen in training. Shape: (items, dim)."""
        vectors_ND = self.remembered(table.items)
        if self.unseen == "mean":
            own_ND = fitted(self.vectors_, self)
            vectors_ND[~has_evidence(vectors_ND)] = own_ND[has_evidence(own_ND)].mean(0)
        return vectors_ND

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The training histories, the hyperparameters and the seed."""
        return fingerprint(self, histories_hash(table), seed)


def field_training() -> Training:
    """About thirty-five epochs of twenty thousand sequences."""
    return Training(steps=3_000, batch_size=256, learning_rate=3e-3, weight_decay=1e-5)


def published_fields() -> tuple[Field, ...]:
    """The brand and three category levels below the root, which is the same for a whole catalogue."""
    return (Field(column="brand"), *(Field(column="categories", level=level) for level in (1, 2, 3)))


@dataclass(kw_only=True)
class FieldEncoder(RemembersVectors):
    """Embeddings of an item's id and of its fields, side by side; zeros for the id of an item unseen in training."""

    kind: ClassVar[str] = "famae"

    fields: tuple[Field, ...] = setting(factory=published_fields, about="Fields beside the id.", count=(1, None))
    dim: int = setting(64, "Width of each field's embedding and of the network.", least=1)
    training: Training = setting(factory=field_training, about="How the network is trained.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.values_: tuple[FieldValues, ...] | None = None
        self.tables_: tuple[np.ndarray, ...] = ()

    def check_together(self) -> None:
        if self.dim % HEADS:
            raise ConfigError(f"famae.dim must be a multiple of its {HEADS} attention heads, got {self.dim}")

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Train on the histories; resumes from the checkpoint if there is one."""
        from capsid.encode.networks import learn_fields_of

        require_items(table)
        self.check_together()
        values = learn_fields(self.fields, table.attributes)
        numbers_NF = field_numbers(values, table.attributes)
        tell_fields(values, numbers_NF, progress)
        pieces, seen = numbered_histories(table)
        # The first field is the item itself.
        fields_NF = np.column_stack([np.arange(len(seen)), numbers_NF[seen]])
        item_ND, *tables = learn_fields_of(
            pieces,
            fields_NF,
            (len(seen), *map(len, values)),
            _shape(self.dim, heads=HEADS, dropout=0.1),
            self.training,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
        )
        vectors_ND = np.zeros((len(table), self.dim), dtype=np.float32)
        vectors_ND[seen] = item_ND
        self.items_, self.vectors_ = table.items, vectors_ND
        self.values_, self.tables_ = values, tuple(tables)
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Embeddings of id and fields; all zeros for an item that is new and of which no value is known. Shape: (items,
        (fields + 1) * dim)."""
        values = fitted(self.values_, self)
        numbers_NF = field_numbers(values, table.attributes)
        item_ND = self.remembered(table.items)
        blocks = [item_ND, *(table_VD[number_N] for table_VD, number_N in zip(self.tables_, numbers_NF.T))]
        known_N = item_ND.any(1) | (numbers_NF != UNKNOWN).any(1)
        return np.where(known_N[:, None], np.concatenate(blocks, axis=1), np.float32(0))

    def state(self) -> dict[str, np.ndarray]:
        """Vectors of known items, names of the fields' values, and their embeddings."""
        names = {f"names.{f}": pack_strings(values.names) for f, values in enumerate(fitted(self.values_, self))}
        return {**super().state(), **names, **{f"values.{f}": table for f, table in enumerate(self.tables_)}}

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        names = [tuple(unpack_strings(take(state, f"names.{f}"))) for f in range(len(self.fields))]
        self.values_ = tuple(map(FieldValues, self.fields, names))
        self.tables_ = tuple(take(state, f"values.{f}") for f in range(len(self.fields)))
        return super().load_state(state)

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The items' values, the training histories, the hyperparameters and the seed."""
        values = ["\t".join(map(str, field.values(table.attributes))) for field in self.fields]
        return fingerprint(self, content_hash(values), histories_hash(table), seed)
