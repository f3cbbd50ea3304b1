"""A small regression with dropout, for the tests of the training loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsid.base.blocks.packed import dropout
from capsid.train.options import Training

ROWS = 50
STEPS = 23


class Network(nn.Module):
    """Parameters of equal shapes and names in no alphabetical order, so that mixed-up pairs would go unnoticed."""

    def __init__(self) -> None:
        super().__init__()
        self.zeta = nn.Linear(6, 6)
        self.alpha = nn.Linear(6, 6)
        self.out = nn.Linear(6, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.alpha(dropout(torch.tanh(self.zeta(x)), 0.25, self.training))))[:, 0]


def make_network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Network()


X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = torch.sin(X.sum(1))
OPTIONS = Training(steps=STEPS, learning_rate=0.02, validate_every=5, ema=0.9)


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in network.named_parameters()}
