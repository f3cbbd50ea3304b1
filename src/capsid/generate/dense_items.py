"""Item vectors beside ids: a small network that computes them, reads them and predicts the next one.

An item's vector is computed from the encoder's, so a new item has one immediately. It is added to the input at the
item's position, and the row after an id's last token is mapped to the vector that is expected there (COBRA, Yang et al.
2025, arXiv 2503.02453, where the vector has a position of its own). Knows neither losses nor searches. Shapes: I width
of the encoder's vectors, C of these vectors, D of hidden rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.weights import load_weights
from capsid.base.storage import untrusted
from capsid.ids.reading import TokenBatch

# Items at once where all items of a catalogue get vectors.
_CHUNK = 8_192


class DenseNetwork(nn.Module):
    """Items to vectors, vectors to inputs (if `reads`), hidden rows to expected vectors. All vectors have length 1."""

    mean_I: Tensor
    scale: Tensor

    def __init__(self, inputs: int, hidden: int, dim: int, width: int, *, reads: bool) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, dim)
        self.enter = nn.Linear(dim, width, bias=False) if reads else None
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, dim)
        self.register_buffer("mean_I", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(()))

    def reset(self, x_NI: np.ndarray, generator: torch.Generator) -> None:
        """Fresh weights for a catalogue with these vectors: its mean is subtracted, and one number scales the rest."""
        for layer in (self.up, self.down, self.head):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)
        if self.enter is not None:
            # As token embeddings start, so that a vector of length 1 enters like one more token.
            nn.init.normal_(self.enter.weight, std=0.02, generator=generator)
        mean_I = np.asarray(x_NI, dtype=np.float64).mean(0)
        self.mean_I.copy_(torch.as_tensor(mean_I))
        self.scale.fill_(max(float((np.asarray(x_NI, dtype=np.float64) - mean_I).std()), 1e-6))

    def items(self, x_NI: Tensor) -> Tensor:
        return F.normalize(self.down(F.gelu(self.up((x_NI - self.mean_I) / self.scale))), dim=-1)

    def inputs(self, batch: TokenBatch, vectors_EC: Tensor) -> Tensor | None:
        """What the vectors of a batch's items, in turn, add to what is read: one row per token, at each item's first.
        Shape: (R, D)."""
        if self.enter is None:
            return None
        first_E = torch.as_tensor(batch.own.offsets[:-1])
        entered_ED: Tensor = self.enter(vectors_EC)
        return entered_ED.new_zeros(len(batch.own.values), entered_ED.shape[1]).index_copy(0, first_E, entered_ED)

    def expected(self, rows: Tensor) -> Tensor:
        """The vectors that are expected after rows behind ids' last tokens. Shape: (..., C)."""
        return F.normalize(self.head(self.norm(rows)), dim=-1)


@dataclass(frozen=True, eq=False)
class DenseItems:
    """The vectors of a catalogue, and the network as it was when they were made. Other weights ask for another one."""

    network: DenseNetwork
    vectors_NC: Tensor

    @classmethod
    def of(cls, network: DenseNetwork, x_NI: np.ndarray) -> DenseItems:
        """The vectors that the weights give now."""
        frozen = copy.deepcopy(network).requires_grad_(False).eval()
        return cls(frozen, _vectors(frozen, x_NI))

    def extended(self, x_NI: np.ndarray) -> DenseItems:
        """The same with more items at the end."""
        return replace(self, vectors_NC=torch.cat([self.vectors_NC, _vectors(self.network, x_NI)]))

    def inputs(self, histories: TokenBatch) -> Tensor | None:
        """What the items of histories add to what is read; None: nothing. Shape: (R, D)."""
        return self.network.inputs(histories, self.vectors_NC[torch.as_tensor(histories.items.values.astype(np.int64))])

    def expected(self, rows: Tensor) -> Tensor:
        """The vectors that are expected after rows behind ids' last tokens. Shape: (..., C)."""
        return self.network.expected(rows)

    def state(self) -> dict[str, Tensor]:
        weights = {f"network.{name}": t.detach().clone() for name, t in self.network.state_dict().items()}
        return {"vectors": self.vectors_NC, **weights}

    @classmethod
    def load(
        cls, make: Callable[[], DenseNetwork], state: Mapping[str, Tensor], items: int, *, checked: bool = False
    ) -> Self:
        """What `state` gave, into a network of the same shape, for so many items. `checked`: another process has looked
        at the vectors, so that mapped ones need not be read here."""
        weights = {name.removeprefix("network."): t for name, t in state.items() if name != "vectors"}
        network = load_weights(make, weights).requires_grad_(False)
        vectors = state.get("vectors")
        fits = vectors is not None and vectors.shape == (items, network.down.out_features)
        if vectors is None or not fits or not (checked or vectors.isfinite().all()):
            raise untrusted.refuse(f"dense.safetensors does not hold a vector for each of {items:,} items")
        return cls(network, vectors)


@torch.no_grad()
def _vectors(network: DenseNetwork, x_NI: np.ndarray) -> Tensor:
    parts = [np.array(x_NI[start : start + _CHUNK], dtype=np.float32) for start in range(0, len(x_NI), _CHUNK)]
    return torch.cat([network.items(torch.as_tensor(part)) for part in parts])
