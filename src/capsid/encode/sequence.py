"""Item vectors learnt from training sequences: the item embeddings of a small SASRec (Kang and McAuley 2018, arXiv
1808.09781) with full cross-entropy.

Reads only the table's training sequences. Items that occur in no sequence of two or more, including new ones, get
zeros, or the mean vector. The network and torch are imported on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import RemembersVectors, fitted, has_evidence, histories_hash, require_items
from capsid.encode.training_histories import numbered_histories
from capsid.progress import Progress, silent
from capsid.settings import setting
from capsid.train.options import Training


def sequence_training() -> Training:
    """About thirty epochs of twenty thousand sequences."""
    return Training(steps=2_500, batch_size=256, learning_rate=3e-3, weight_decay=1e-3)


@dataclass(kw_only=True)
class SequenceEncoder(RemembersVectors):
    """Embeddings that predict the next item of a history; they keep their trained norms."""

    kind: ClassVar[str] = "sasrec"
    version: ClassVar[int] = 1

    dim: int = setting(32, "Width of the vectors and of the network.", least=1)
    layers: int = setting(2, "Number of Transformer blocks.", least=1, most=1_000)
    history: int = setting(50, "How many items the network reads at most; longer sequences are cut.", least=1)
    dropout: float = setting(0.3, "Dropout rate in training.", least=0, most=0.99)
    unseen: Literal["zeros", "mean"] = setting(
        "zeros", "Vectors of items without training sequences: zeros, or the mean of the other vectors."
    )
    training: Training = setting(factory=sequence_training, about="How the network is trained.")

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Train on the histories; resumes from the checkpoint if there is one."""
        from capsid.encode.sequence_network import learn_embeddings

        require_items(table)
        histories = numbered_histories(table, self.history)
        vectors_ND = np.zeros((len(table), self.dim), dtype=np.float32)
        vectors_ND[histories.seen] = learn_embeddings(
            histories.pieces,
            len(histories.seen),
            dim=self.dim,
            layers=self.layers,
            history=self.history,
            dropout=self.dropout,
            training=self.training,
            seed=seed,
            checkpoint=checkpoint,
            progress=progress,
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
        return fingerprint(self, self.version, histories_hash(table), seed)
