"""An autoencoder with residual codebooks on its latent (Lee et al. 2022, arXiv 2203.01941; TIGER, section 3.1).

Vectors in, codes out, and back. Blocks have one fixed shape, the last one padded, so an item gets the same codes alone
and in a batch. Knows nothing about items, training or the initialisation of codebooks. Shapes: U items, I width of
vectors, C and D of latents, K codes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.weights import load_weights
from capsid.ids.assignment import balanced_columns
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.base import JointReading
from capsid.tokenize.kmeans import padded_blocks


@dataclass(kw_only=True, frozen=True)
class Sinkhorn(Checked):
    """Codes of a batch by a balanced plan, in training (LC-Rec: Zheng et al. 2023, arXiv 2311.09049). A batch much
    larger than the codebook gives each code many items; one as large as the codebook gives one item each. With
    `catalogue`, the ids of a whole catalogue are balanced too (DIGER: Fu et al. 2026, arXiv 2601.19711)."""

    kind: ClassVar[str] = "sinkhorn"
    depths: int = setting(1, "How many depths are balanced, counted from the last.", least=1)
    catalogue: bool = setting(False, "Whether the codes of the fitted catalogue are balanced as well.")


BLOCK = 512
# Weight of the loss that keeps latent vectors near their codes.
COMMITMENT = 0.25


@dataclass(frozen=True, eq=False)
class Quantized:
    """Codes of a batch, their centres, and the residuals before every depth and after the last."""

    codes_BL: Tensor
    chosen_LBD: list[Tensor]
    residuals_LBD: list[Tensor]

    @property
    def through_BD(self) -> Tensor:
        """Sums of the centres; their straight-through gradient reaches the encoder as if they were the latents."""
        return self.residuals_LBD[0] - self.residuals_LBD[-1].detach()

    def cut_BD(self, length_B: Tensor) -> Tensor:
        """`through_BD` of the first `length_B` depths alone."""
        after_BD = torch.stack(self.residuals_LBD)[length_B, torch.arange(len(length_B))]
        return self.residuals_LBD[0] - after_BD.detach()


class RQVAENetwork(nn.Module):
    """`hidden` layers to the latent and, mirrored, back; `sizes[d]` codes at depth d. Inputs are centred on the
    catalogue's mean and divided by one number, their spread. Errors are then shares of the variance for any encoder,
    and distances between items keep their proportions, unlike with a scale per column."""

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: int, hidden: Sequence[int], latent: int, sizes: Sequence[int]) -> None:
        super().__init__()
        widths = [inputs, *hidden, latent]
        self.inputs, self.hidden, self.latent = inputs, tuple(hidden), latent
        self.encoder = _layers(widths)
        self.decoder = _layers(widths[::-1])
        self.books = nn.ParameterList([torch.zeros(size, latent) for size in sizes])
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(()))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Initialise layers to preserve the activations' variance (He et al. 2015, arXiv 1502.01852, Eq. 10)."""
        for side in (self.encoder, self.decoder):
            linear = [layer for layer in side if isinstance(layer, nn.Linear)]
            for layer in linear:
                nn.init.kaiming_normal_(
                    layer.weight, nonlinearity="linear" if layer is linear[-1] else "relu", generator=generator
                )
                nn.init.zeros_(layer.bias)
        # The first reconstruction is close to the catalogue's mean, which is better than a random one.
        linear[-1].weight.mul_(0.1)

    @torch.no_grad()
    def measure(self, x_NI: Tensor) -> None:
        """Take mean and spread from a sample; a catalogue of equal items has no spread to divide by."""
        self.mean.copy_(x_NI.mean(0))
        spread = (x_NI - self.mean).square().mean().sqrt()
        self.scale.copy_(spread if float(spread) > 0 else torch.ones(()))

    def enter(self, x_BI: Tensor) -> Tensor:
        return (x_BI - self.mean) / self.scale

    def quantize(self, z_BD: Tensor, assign: Sinkhorn | None = None) -> Quantized:
        """A centre at every depth for the residual so far: the nearest, or at some depths a balanced assignment."""
        left, chosen, codes = [z_BD], [], []
        first_balanced = len(self.books) - (assign.depths if assign is not None else 0)
        for depth, book_KD in enumerate(self.books):
            if assign is None or depth < first_balanced:
                code_B = nearest(left[-1].detach(), book_KD.detach())
            else:
                code_B = balanced(left[-1].detach(), book_KD.detach())
            codes.append(code_B)
            chosen.append(book_KD[code_B])
            left.append(left[-1] - chosen[-1].detach())
        return Quantized(torch.stack(codes, 1), chosen, left)

    def loss_of(self, x_BI: Tensor, found: Quantized, length_B: Tensor | None = None) -> Tensor:
        """Mean squared reconstruction, codebook and commitment loss (TIGER, section 3.1, after van den Oord et al.
        2017, arXiv 1711.00937, Eq. 3) of standardised vectors. With lengths, depths beyond an id's end count nothing.
        """
        if length_B is not None:
            return self._cut_loss(x_BI, found, length_B)
        total: Tensor = F.mse_loss(self.decoder(found.through_BD), x_BI)
        for centre_BD, left_BD in zip(found.chosen_LBD, found.residuals_LBD):
            total = total + F.mse_loss(centre_BD, left_BD.detach())
            total = total + COMMITMENT * F.mse_loss(left_BD, centre_BD.detach())
        return total

    def _cut_loss(self, x_BI: Tensor, found: Quantized, length_B: Tensor) -> Tensor:
        total: Tensor = F.mse_loss(self.decoder(found.cut_BD(length_B)), x_BI)
        for depth, (centre_BD, left_BD) in enumerate(zip(found.chosen_LBD, found.residuals_LBD)):
            there_B1 = (depth < length_B)[:, None]
            total = total + (there_B1 * (centre_BD - left_BD.detach()).square()).mean()
            total = total + COMMITMENT * (there_B1 * (left_BD - centre_BD.detach()).square()).mean()
        return total

    @torch.no_grad()
    def grown(self, extra: Sequence[int]) -> RQVAENetwork:
        """A copy with `extra[d]` more codes, all zeros, at the end of each codebook."""
        sizes = [len(book_KD) + more for book_KD, more in zip(self.books, extra)]
        network = RQVAENetwork(self.inputs, self.hidden, self.latent, sizes)
        state = self.state_dict()
        for depth, more in enumerate(extra):
            state[f"books.{depth}"] = F.pad(state[f"books.{depth}"], (0, 0, 0, more))
        network.load_state_dict(state)
        return network

    def leave(self, total_BD: Tensor) -> Tensor:
        """Decode sums of centres to input vectors."""
        return self.decoder(total_BD) * self.scale + self.mean


def nearest(r_BD: Tensor, book_KD: Tensor) -> Tensor:
    """Nearest centre of every row; the first one on ties."""
    return _distances(r_BD, book_KD).argmin(1)


def balanced(r_BD: Tensor, book_KD: Tensor) -> Tensor:
    """A centre for every row such that all centres are used about equally often in the batch."""
    return torch.as_tensor(balanced_columns(squared_distances(r_BD, book_KD).numpy()))


def _distances(r_BD: Tensor, book_KD: Tensor) -> Tensor:
    """Squared distances of rows to centres, minus the row's squared norm. Shape: (rows, centres)."""
    return book_KD.square().sum(1) - 2 * r_BD @ book_KD.T


def squared_distances(r_BD: Tensor, book_KD: Tensor) -> Tensor:
    """Squared distances of rows to centres. Shape: (rows, centres)."""
    return r_BD.square().sum(1, keepdim=True) + _distances(r_BD, book_KD)


def quantized_blocks(network: RQVAENetwork, vectors_NI: np.ndarray) -> Iterator[tuple[Tensor, Quantized]]:
    """Blocks of standardised input and their quantised results; rows are read on demand."""
    for padded_BI, rows in padded_blocks(vectors_NI, BLOCK):
        with torch.inference_mode():
            x_BI = network.enter(padded_BI)
            found = network.quantize(network.encoder(x_BI))
        cut = (found.codes_BL[:rows], [c[:rows] for c in found.chosen_LBD], [r[:rows] for r in found.residuals_LBD])
        yield x_BI[:rows], Quantized(*cut)


def encode(network: RQVAENetwork, vectors_NI: np.ndarray) -> Ragged:
    """Codes of every row."""
    parts = [found.codes_BL.to(torch.int32).numpy() for _, found in quantized_blocks(network, vectors_NI)]
    return Ragged.from_dense(np.concatenate([np.zeros((0, len(network.books)), dtype=np.int32), *parts]))


def latents(network: RQVAENetwork, vectors_NI: np.ndarray) -> np.ndarray:
    """The latent vector of every row. Shape: (items, D)."""
    parts = [found.residuals_LBD[0].numpy() for _, found in quantized_blocks(network, vectors_NI)]
    return np.concatenate([np.zeros((0, network.books[0].shape[1]), dtype=np.float32), *parts])


@torch.no_grad()
def balanced_codes(network: RQVAENetwork, latents_ND: np.ndarray, assign: Sinkhorn) -> Ragged:
    """Codes of all rows, chosen jointly: at the last depths all codes are used about equally often."""
    found = network.quantize(torch.as_tensor(latents_ND), assign)
    return Ragged.from_dense(found.codes_BL.to(torch.int32).numpy())


def last_distances(network: RQVAENetwork, vectors_NI: np.ndarray, codes: Ragged) -> np.ndarray:
    """Squared distances from what an id leaves of the latent before its last code to the codebook of that depth.
    `codes` are the items' ids. Columns beyond a depth's codebook are zeros. Shape: (items, K)."""
    left_ND, codes_NL = torch.as_tensor(latents(network, vectors_NI)), torch.as_tensor(codes.dense().astype(np.int64))
    last_N = torch.as_tensor(codes.lengths) - 1
    out_NK = np.zeros((len(left_ND), max(map(len, network.books))), dtype=np.float32)
    for depth, book_KD in enumerate(book.detach() for book in network.books):
        ends_R, goes_on_R = (last_N == depth).nonzero()[:, 0], (last_N > depth).nonzero()[:, 0]
        out_NK[ends_R.numpy(), : len(book_KD)] = squared_distances(left_ND[ends_R], book_KD).numpy()
        if len(goes_on_R):
            left_ND[goes_on_R] -= book_KD[codes_NL[goes_on_R, depth]]
    return out_NK


def decode(network: RQVAENetwork, codes: Ragged) -> np.ndarray:
    """Vectors that the codes represent; ids may be truncated. Shape: (items, inputs)."""
    dense_NL = codes.dense()
    out = np.empty((len(codes), network.inputs), dtype=np.float32)
    for start in range(0, len(codes), BLOCK):
        part_BL = torch.as_tensor(dense_NL[start : start + BLOCK].astype(np.int64))
        total_BD = torch.zeros(len(part_BL), network.books[0].shape[1])
        with torch.inference_mode():
            for book_KD, code_B in zip(network.books, part_BL.T):
                total_BD += torch.where((code_B >= 0)[:, None], book_KD[code_B.clamp_min(0)], torch.zeros(()))
            out[start : start + BLOCK] = network.leave(total_BD).numpy()
    return out


def load_network(hidden: Sequence[int], latent: int, state: Mapping[str, np.ndarray]) -> RQVAENetwork:
    """Rebuild a network from its saved arrays, which also give the codebook sizes."""
    sizes = [len(state[f"books.{d}"]) for d in itertools.takewhile(lambda d: f"books.{d}" in state, range(99))]
    tensors = {name: torch.tensor(array) for name, array in state.items()}
    return load_weights(lambda: RQVAENetwork(len(state["mean"]), hidden, latent, sizes), tensors).requires_grad_(False)


def _layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class JointRQVAE(RQVAENetwork):
    """A copy of a network, with weights of the same names, all of which learn."""

    def __init__(self, network: RQVAENetwork) -> None:
        super().__init__(network.inputs, network.hidden, network.latent, [len(book_KC) for book_KC in network.books])
        self.load_state_dict(network.state_dict())

    def scores(self, z_UC: Tensor) -> list[Tensor]:
        """Minus the squared distances of latents, then of their residuals, to all codes by depth."""
        return self._scores(self.quantize(z_UC).residuals_LBD)

    def read(self, x_UI: Tensor) -> JointReading:
        """How item vectors are encoded, quantised and reconstructed; reconstructions are standardised vectors."""
        entered_UI = self.enter(x_UI)
        found = self.quantize(self.encoder(entered_UI))
        loss = self.loss_of(entered_UI, found)
        return JointReading(self._scores(found.residuals_LBD), self.decoder(found.through_BD), loss)

    def _scores(self, residuals_LUC: Sequence[Tensor]) -> list[Tensor]:
        return [-squared_distances(left_UC, book_KC) for left_UC, book_KC in zip(residuals_LUC, self.books)]
