"""Transformers that encoders train for their embeddings: one predicts the next item, one masked fields of it.

Numbers of items and of field values in, embeddings out. Knows no item ids and no table. Shapes: B pieces, L length, F
fields, D width, V values of a field, R rows with a target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        return self.norm(x_BLD)

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
    shape: BlockShape,
    training: Training,
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> np.ndarray:
    """Train on pieces of item numbers. Shape: (items, dim)."""
    network = SequenceNetwork(items, shape)
    reset(network, shape.layers, torch.Generator().manual_seed(child_seed(seed, "sasrec", "weights")))
    plan = BatchPlan(pieces.lengths, training.batch_size, seed, training.window)

    def loss(rows: np.ndarray, step: int) -> Loss:
        batch = pieces.take(rows)
        return Loss(network.loss(batch), len(batch.values) - len(batch))

    train(Task(network, plan, loss), training, seed=seed, checkpoint=checkpoint, progress=progress, name="sasrec")
    return network.item.weight.detach().numpy().copy()


class FieldNetwork(nn.Module):
    """One embedding per value of each field, shared by input and output, and one mask vector per field."""

    def __init__(self, sizes: Sequence[int], shape: BlockShape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.values = nn.ParameterList([torch.zeros(size, shape.width) for size in sizes])
        self.mask = nn.Embedding(len(sizes), shape.width)
        self.place = nn.Embedding(shape.history + 1, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, fields_BLF: Tensor, last_B: Tensor, masked_BF: Tensor) -> Tensor:
        """The hidden row of the last item of every piece, some of whose fields are masked. Shape: (B, D)."""
        rows_B = torch.arange(len(fields_BLF))
        embedded_FBLD = [
            F.embedding(number_BL, table_VD) for table_VD, number_BL in zip(self.values, fields_BLF.unbind(-1))
        ]
        x_BLD = torch.stack(embedded_FBLD).sum(0)
        last_FBD = torch.stack([e_BLD[rows_B, last_B] for e_BLD in embedded_FBLD])
        shown_FBD = torch.where(masked_BF.T[..., None], self.mask.weight[:, None], last_FBD)
        x_BLD = x_BLD.index_put((rows_B, last_B), shown_FBD.sum(0)) + self.place.weight[: x_BLD.shape[1]]
        x_BLD = dropout(x_BLD, self.dropout, self.training)
        padding_BL = torch.arange(x_BLD.shape[1]) > last_B[:, None]
        for block in self.blocks:
            x_BLD, _ = block(x_BLD, padding_BL)
        return self.norm(x_BLD[rows_B, last_B])

    def loss(self, fields_BLF: Tensor, last_B: Tensor, masked_BF: Tensor) -> Tensor:
        """Mean over pieces of the summed cross-entropies of their masked fields: sqrt(D) times cosines."""
        hidden_BD = self(fields_BLF, last_B, masked_BF)
        scaled_BD = math.sqrt(hidden_BD.shape[1]) * F.normalize(hidden_BD, dim=1)
        targets_BF = fields_BLF[torch.arange(len(fields_BLF)), last_B]
        total = hidden_BD.new_zeros(())
        for table_VD, target_B, masked_B in zip(self.values, targets_BF.T, masked_BF.T):
            if masked_B.any():
                mean = linear_cross_entropy(scaled_BD[masked_B], F.normalize(table_VD, dim=1), target_B[masked_B])
                total = total + mean * (masked_B.sum() / len(masked_B))
        return total


def draw_masks(rows: int, fields: int) -> Tensor:
    """One to all fields of every row, each number equally likely. Shape: (rows, fields)."""
    count_B1 = torch.randint(1, fields + 1, (rows, 1))
    return torch.rand(rows, fields).argsort(1).argsort(1) < count_B1


def draw_ends(lengths_B: np.ndarray) -> Tensor:
    """The place of the item to predict, anywhere but first. Shape: (rows,)."""
    choices_B = torch.as_tensor(lengths_B - 1)
    # The product may round up to the number of choices, but a place must exist.
    return 1 + (torch.rand(len(choices_B)) * choices_B).long().minimum(choices_B - 1)


def learn_fields_of(
    pieces: Ragged,
    fields_NF: np.ndarray,
    sizes: Sequence[int],
    shape: BlockShape,
    training: Training,
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> list[np.ndarray]:
    """Train on pieces of item numbers whose values are `fields_NF`. One matrix per field, of shape (V, D)."""
    network = FieldNetwork(sizes, shape)
    reset(network, shape.layers, torch.Generator().manual_seed(child_seed(seed, "famae", "weights")))
    plan = BatchPlan(pieces.lengths, training.batch_size, seed, training.window)
    values_NF = torch.as_tensor(fields_NF)

    def loss(rows: np.ndarray, step: int) -> Loss:
        batch = pieces.take(rows)
        last_B, masked_BF = draw_ends(batch.lengths), draw_masks(len(batch), fields_NF.shape[1])
        items_BL = torch.as_tensor(batch.dense(fill=0))[:, : int(last_B.max()) + 1]
        return Loss(network.loss(values_NF[items_BL], last_B, masked_BF), int(last_B.sum()))

    train(Task(network, plan, loss), training, seed=seed, checkpoint=checkpoint, progress=progress, name="famae")
    return [table_VD.detach().numpy().copy() for table_VD in network.values]
