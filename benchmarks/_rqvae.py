"""A plain RQ-VAE, what `tokenizer.py` measures against (Lee et al. 2022; as an item tokenizer Rajput et al. 2023).

Two-layer encoder and decoder, residual codebooks on the latent with a straight-through gradient, codebooks started by
k-means on a sample, codebook and commitment losses. As small as it can be and still be one; for timing, not for use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import faiss
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLE = 65_536
COMMITMENT = 0.25


class _Network(nn.Module):
    def __init__(self, inputs: int, hidden: int, latent: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, inputs))
        self.books = nn.ParameterList([torch.zeros(k, latent) for k in sizes])

    def quantize(self, z_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of the nearest codes with a straight-through gradient, the loss of the codebooks, the codes."""
        residual_BD, total_BD, loss, codes = z_BD, torch.zeros_like(z_BD), z_BD.new_zeros(()), []
        for book_KD in self.books:
            with torch.no_grad():
                code_B = (book_KD.square().sum(1) - 2 * residual_BD @ book_KD.T).argmin(1)
            chosen_BD = book_KD[code_B]
            loss = loss + F.mse_loss(chosen_BD, residual_BD.detach())
            loss = loss + COMMITMENT * F.mse_loss(residual_BD, chosen_BD.detach())
            residual_BD, total_BD = residual_BD - chosen_BD.detach(), total_BD + chosen_BD.detach()
            codes.append(code_B)
        return z_BD + (total_BD - z_BD).detach(), loss, torch.stack(codes, 1)


@dataclass
class RQVAE:
    """`steps` batches of `batch_size` rows, in an order that `seed` gives."""

    sizes: tuple[int, ...]
    steps: int
    batch_size: int
    hidden: int = 512
    latent: int = 64
    network: _Network = field(init=False)

    def fit(self, vectors_ND: np.ndarray, *, seed: int = 0) -> RQVAE:
        """Start the codebooks from data, then train all of it together."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = _Network(vectors_ND.shape[1], self.hidden, self.latent, self.sizes)
        rng = np.random.default_rng(seed)
        self._start(vectors_ND[np.sort(rng.permutation(len(vectors_ND))[:SAMPLE])], seed)
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-3, fused=True)
        rows = rng.permutation(len(vectors_ND))
        for step in range(self.steps):
            at = np.arange(step * self.batch_size, (step + 1) * self.batch_size) % len(rows)
            x_BD = torch.from_numpy(np.array(vectors_ND[np.sort(rows[at])]))
            z_BD, loss, _ = self.network.quantize(self.network.encoder(x_BD))
            loss = loss + F.mse_loss(self.network.decoder(z_BD), x_BD)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return self

    @torch.no_grad()
    def _start(self, sample_ND: np.ndarray, seed: int) -> None:
        residual_ND = self.network.encoder(torch.from_numpy(np.array(sample_ND)))
        for book_KD in self.network.books:
            means = faiss.Kmeans(self.latent, len(book_KD), niter=10, seed=seed + 1, min_points_per_centroid=1)
            means.train(residual_ND.numpy())
            book_KD.copy_(torch.from_numpy(means.centroids))
            code_N = (book_KD.square().sum(1) - 2 * residual_ND @ book_KD.T).argmin(1)
            residual_ND = residual_ND - book_KD[code_N]

    @torch.inference_mode()
    def encode(self, vectors_ND: np.ndarray, block: int = 4096) -> np.ndarray:
        """Codes of every row. Shape: (items, depths)."""
        parts = []
        for start in range(0, len(vectors_ND), block):
            x_BD = torch.from_numpy(np.array(vectors_ND[start : start + block]))
            parts.append(self.network.quantize(self.network.encoder(x_BD))[2].numpy())
        return np.concatenate(parts)

    @torch.inference_mode()
    def decode(self, vectors_ND: np.ndarray) -> np.ndarray:
        """What the network makes of its own codes. Shape: (items, d)."""
        z_ND, _, _ = self.network.quantize(self.network.encoder(torch.from_numpy(np.array(vectors_ND))))
        return self.network.decoder(z_ND).numpy()
