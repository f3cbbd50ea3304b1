"""A causal Transformer that predicts the next item, trained for its item embeddings.

Item numbers in, embeddings out. Knows no item ids and no table. Shapes: B pieces, L length, D width, R rows with a
target.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.blocks.cross_entropy import linear_cross_entropy
from capsid.base.blocks.layers import Block, BlockShape, reset
from capsid.base.blocks.packed import dropout
from capsid.base.randomness import child_seed
from capsid.base.run_options import CheckpointFile
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.train.batches import BatchPlan
from capsid.train.lanes import Loss
from capsid.train.loop import Task, train
from capsid.train.options import Training


class SequenceNetwork(nn.Module):
    """One embedding per item, shared by input and output."""

    def __init__(self, items: int, shape: BlockShape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.item = nn.Embedding(items, shape.width)
        self.place = nn.Embedding(shape.history, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, items_BL: Tensor) -> Tensor:
        """Hidden states after every item; padding is at the end, where no real position attends to it."""
        x_BLD = self.item(items_BL) + self.place.weight[: items_BL.shape[1]]
        x_BLD = dropout(x_BLD, self.dropout, self.training)
        for block in self.blocks:
            x_BLD, _ = block(x_BLD)
        out: Tensor = self.norm(x_BLD)
        return out

    def loss(self, pieces: Ragged) -> Tensor:
        """Mean cross-entropy of every item but the first of each piece, over all items."""
        lengths_B = pieces.lengths - 1
        read, targets = pieces.slices(0, lengths_B), pieces.slices(1, lengths_B)
        hidden_BLD = self(torch.as_tensor(read.dense(fill=0)))
        there_BL = torch.arange(hidden_BLD.shape[1]) < torch.as_tensor(lengths_B)[:, None]
        return linear_cross_entropy(hidden_BLD[there_BL], self.item.weight, torch.as_tensor(targets.values))


def learn_embeddings(
    pieces: Ragged,
    items: int,
    *,
    dim: int,
    layers: int,
    history: int,
    dropout: float,
    training: Training,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> np.ndarray:
    """Train on pieces of item numbers. Shape: (items, dim)."""
    shape = BlockShape(layers=layers, heads=1, width=dim, feedforward=4 * dim, history=history, dropout=dropout)
    network = SequenceNetwork(items, shape)
    reset(network, shape.layers, torch.Generator().manual_seed(child_seed(seed, "sasrec", "weights")))
    plan = BatchPlan(pieces.lengths, training.batch_size, seed, training.window)

    def loss(rows: np.ndarray, step: int) -> Loss:
        batch = pieces.take(rows)
        return Loss(network.loss(batch), len(batch.values) - len(batch))

    train(Task(network, plan, loss), training, seed=seed, checkpoint=checkpoint, progress=progress, name="sasrec")
    vectors: np.ndarray = network.item.weight.detach().numpy().copy()
    return vectors
