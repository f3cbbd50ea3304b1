"""Parallel experts with codebooks over two views of an item, gates and a router (ADA-SID, arXiv 2510.25622).

Rows in, codes out, and back. A row holds content, behaviour and, as one number from 0 to 1, how much behaviour the item
has (its richness); a behaviour of zeros means none. Blocks have one fixed shape, so an item gets the same codes alone
and in a batch. Knows nothing about items or training. Shapes: B batch, I content width, J behaviour width, E experts, D
width of experts, K codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.weights import load_weights
from capsid.ids.layout import ABSENT
from capsid.ragged import Ragged
from capsid.settings import Checked, setting
from capsid.tokenize.kmeans import padded_blocks
from capsid.tokenize.rivals.rqvae_terms import rqvae_training
from capsid.train.options import Training


@dataclass(kw_only=True)
class MixtureSettings(Checked):
    """Experts with a codebook each: some read both views, some content alone, some behaviour alone. An item has one
    code of every expert, except of behaviour experts that its router closes."""

    kind: ClassVar[str] = "mixture"
    shared_experts: int = setting(2, "Experts that read both views.", least=1)
    content_experts: int = setting(2, "Experts that read content alone.", least=0)
    behaviour_experts: int = setting(3, "Experts that read behaviour alone; closed ones give no code.", least=0)
    codebook: int = setting(256, "Codes of every expert, fewer where there are fewer different items.", least=1)
    dim: int = setting(64, "Width of projections, experts and codes.", least=1)
    behaviour_block: str = setting("behaviour", "Name of the behaviour vectors; zeros: no behaviour.", count=(1, None))
    training: Training = setting(factory=rqvae_training, about="How the whole network trains.")

    @property
    def experts(self) -> tuple[int, int, int]:
        """How many experts read both views, content alone and behaviour alone, in the order of their codes."""
        return self.shared_experts, self.content_experts, self.behaviour_experts


BLOCK = 512


# Slope of the router's gradient where an expert is closed.
LEAK = 0.1


@dataclass(frozen=True, eq=False)
class Mixed:
    """A batch after its experts: gates, outputs, codes and centres by expert, and what the views looked like."""

    views_BI: Tensor
    content_BD: Tensor
    behaviour_BD: Tensor
    has_B: Tensor
    richness_B: Tensor
    gates_BE: Tensor
    outputs_BED: Tensor
    codes_BE: Tensor
    chosen_BED: Tensor

    @property
    def open_BE(self) -> Tensor:
        """Experts that give a code."""
        return self.gates_BE > 0

    @property
    def through_BD(self) -> Tensor:
        """Gated sums of the centres; their straight-through gradient reaches the experts and gates."""
        soft_BD = (self.gates_BE[..., None] * self.outputs_BED).sum(1)
        hard_BD = (self.gates_BE[..., None] * self.chosen_BED).sum(1)
        return soft_BD + (hard_BD - soft_BD).detach()


class MixtureNetwork(nn.Module):
    """`experts` counts those of both views, of content and of behaviour; `sizes[e]` codes of expert e."""

    mean: Tensor
    scale: Tensor
    typical: Tensor

    def __init__(self, inputs: tuple[int, int], experts: tuple[int, int, int], dim: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.inputs, self.experts = inputs, experts
        content, behaviour = inputs
        self.content, self.behaviour = _layers(content, dim, dim), _layers(behaviour, dim, dim)
        widths = [2 * dim] * experts[0] + [dim] * (experts[1] + experts[2])
        self.expert = nn.ModuleList(_layers(width, dim, dim) for width in widths)
        self.books = nn.ParameterList([torch.zeros(size, dim) for size in sizes])
        self.gate = _layers(content, dim, max(experts[1], 1))
        self.router = _layers(behaviour + 1, dim, max(experts[2], 1))
        self.decoder = _layers(dim, 2 * dim, content + behaviour)
        # Mean of content (behaviour is not centred, so that zeros stay zeros) and spread of both views.
        self.register_buffer("mean", torch.zeros(content))
        self.register_buffer("scale", torch.ones(2))
        # Mean gates over the items for which an expert is open: what `decode` assumes.
        self.register_buffer("typical", torch.ones(sum(experts)))

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Initialise layers to preserve the activations' variance; the router starts open."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
                nn.init.zeros_(layer.bias)
        for part in (self.router, self.gate, self.decoder):
            part.get_parameter("2.weight").mul_(0.1)
        nn.init.ones_(self.router.get_parameter("2.bias"))

    @torch.no_grad()
    def measure(self, x_NI: Tensor) -> None:
        """Take mean and spreads from a sample."""
        content_NI, behaviour_NJ, _ = x_NI.split((*self.inputs, 1), dim=1)
        self.mean.copy_(content_NI.mean(0))
        seen_NJ = behaviour_NJ[behaviour_NJ.any(1)]
        for place, part in enumerate((content_NI - self.mean, seen_NJ)):
            spread = part.square().mean().sqrt()
            self.scale[place] = spread if len(part) and float(spread) > 0 else 1.0

    def forward(self, x_BI: Tensor) -> Mixed:
        """Gates and codes of a batch; of each expert, the code with the largest cosine to its output."""
        content_BI, behaviour_BJ, richness_B1 = x_BI.split((*self.inputs, 1), dim=1)
        has_B, richness_B = behaviour_BJ.any(1), richness_B1[:, 0]
        content_BI, behaviour_BJ = (content_BI - self.mean) / self.scale[0], behaviour_BJ / self.scale[1]
        views = self.content(content_BI), self.behaviour(behaviour_BJ)
        shared, content, behaviour = self.experts
        reads = [torch.cat(views, 1)] * shared + [views[0]] * content + [views[1]] * behaviour
        outputs_BED = torch.stack([expert(read) for expert, read in zip(self.expert, reads)], 1)
        gates_BE = torch.cat(
            [
                torch.ones(len(x_BI), shared),
                self.gate(content_BI).softmax(1)[:, :content],
                self._routed(behaviour_BJ, richness_B, has_B)[:, :behaviour],
            ],
            1,
        )
        codes_BE = torch.stack([_nearest(outputs_BED[:, e], book) for e, book in enumerate(self.books)], 1)
        chosen_BED = torch.stack([book[codes_BE[:, e]] for e, book in enumerate(self.books)], 1)
        entered_BI = torch.cat([content_BI, behaviour_BJ], 1)
        return Mixed(entered_BI, *views, has_B, richness_B, gates_BE, outputs_BED, codes_BE, chosen_BED)

    def _routed(self, behaviour_BJ: Tensor, richness_B: Tensor, has_B: Tensor) -> Tensor:
        """Weights of behaviour experts, exactly 0 where one is closed; all are for an item without behaviour. Closed
        experts get a part of the gradient that a linear unit would have, so that they can open again."""
        # The amount of behaviour is one number: as the length of a vector it would drown what the vector says.
        direction_BJ = F.normalize(behaviour_BJ, dim=1)
        open_BE = self.router(torch.cat([direction_BJ, richness_B[:, None]], 1))
        open_BE = torch.where(open_BE > 0, open_BE, LEAK * (open_BE - open_BE.detach()))
        return has_B[:, None] * richness_B.sigmoid()[:, None] * open_BE

    def leave(self, total_BD: Tensor) -> Tensor:
        """Decode sums of centres to content vectors."""
        content_BI = self.decoder(total_BD)[:, : self.inputs[0]]
        return content_BI * self.scale[0] + self.mean


def _nearest(output_BD: Tensor, book_KD: Tensor) -> Tensor:
    """The code with the largest cosine; the first one on ties. Shape: (B,)."""
    return (output_BD.detach() @ F.normalize(book_KD.detach(), dim=1).T).argmax(1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def mixed_blocks(network: MixtureNetwork, vectors_NI: np.ndarray) -> Iterator[Mixed]:
    """Blocks of rows after the experts; the last one is padded and cut."""
    for padded_BI, rows in padded_blocks(vectors_NI, BLOCK):
        with torch.inference_mode():
            # A copy, because some results are views of what is read.
            found = network(padded_BI.clone())
        yield Mixed(**{name: tensor[:rows] for name, tensor in vars(found).items()})


def encode(network: MixtureNetwork, vectors_NI: np.ndarray) -> Ragged:
    """Codes of every row, -1 where an expert is closed."""
    parts = [torch.where(m.open_BE, m.codes_BE, ABSENT).int().numpy() for m in mixed_blocks(network, vectors_NI)]
    return Ragged.from_dense(np.concatenate([np.zeros((0, len(network.books)), dtype=np.int32), *parts]), None)


def decode(network: MixtureNetwork, codes: Ragged) -> np.ndarray:
    """Content vectors that the codes represent, with typical gates; ids may be truncated. Shape: (items, I)."""
    dense_NE = codes.dense()
    out = np.empty((len(codes), network.inputs[0]), dtype=np.float32)
    for start in range(0, len(codes), BLOCK):
        part_BE = torch.as_tensor(dense_NE[start : start + BLOCK].astype(np.int64))
        total_BD = torch.zeros(len(part_BE), network.books[0].shape[1])
        with torch.inference_mode():
            for expert, (book_KD, code_B) in enumerate(zip(network.books, part_BE.T)):
                there_B1 = (code_B >= 0)[:, None]
                total_BD += there_B1 * network.typical[expert] * book_KD[code_B.clamp_min(0)]
            out[start : start + BLOCK] = network.leave(total_BD).numpy()
    return out


def load_network(experts: tuple[int, int, int], dim: int, state: Mapping[str, np.ndarray]) -> MixtureNetwork:
    """Rebuild a network from its saved arrays, which also give the widths and the codebook sizes."""
    sizes = [len(state[f"books.{e}"]) for e in range(sum(experts)) if f"books.{e}" in state]
    inputs = (state["content.0.weight"].shape[1], state["behaviour.0.weight"].shape[1])
    tensors = {name: torch.tensor(array) for name, array in state.items()}
    return load_weights(lambda: MixtureNetwork(inputs, experts, dim, sizes), tensors).requires_grad_(False)
