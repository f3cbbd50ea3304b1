"""How long the ids of the training items are while an RQ-VAE trains (SA2CRQ, Wang et al. 2026, arXiv 2602.23978).

Lengths follow from how many items share a prefix. They are computed once per epoch and kept in a buffer, so that a
resumed run continues with those of its epoch. Knows neither recipes nor the training loop.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from capsid.ids.prefixes import SharedPrefixes, unshared_lengths
from capsid.tokenize.rqvae.network import RQVAENetwork, encode
from capsid.tokenize.rqvae.settings import SHORTEST


class IdLengths(nn.Module):
    """Lengths of the ids of these vectors. Prefixes are counted among them, unless `counted` is given."""

    length_N: Tensor

    def __init__(self, vectors_NI: np.ndarray, crowd: int, counted: SharedPrefixes | None = None) -> None:
        super().__init__()
        self.vectors_NI, self.crowd, self.counted = vectors_NI, crowd, counted
        self.register_buffer("length_N", torch.zeros(len(vectors_NI), dtype=torch.int64))

    def begin(self, network: RQVAENetwork) -> None:
        """Lengths under the current weights."""
        codes_NL = encode(network, self.vectors_NI).dense()
        shared = self.counted or count_prefixes(codes_NL, network, self.crowd)
        self.length_N.copy_(torch.as_tensor(unshared_lengths(codes_NL, shared, SHORTEST)))

    def of(self, rows_B: np.ndarray) -> Tensor:
        """Lengths of some rows. Shape: (rows,)."""
        return self.length_N[torch.as_tensor(rows_B)]


def count_prefixes(codes_NL: np.ndarray, network: RQVAENetwork, crowd: int) -> SharedPrefixes:
    """Prefixes that more than `crowd` items share."""
    return SharedPrefixes.count(codes_NL, [len(book_KD) for book_KD in network.books], crowd, of="items")
