"""The parameters of Algorithm 1: the capsules of each depth, and the way into and out of routing space.

Each depth has one vector per token as well, its centre: `decode` of the tokenizer adds them up (the c of the paper's
Proposition 1). Knows no rounds, losses or items.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.blocks.weights import load_weights
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.votes import FullPoses, SharedPoses, Votes, norm


class LowRank(nn.Module):
    """`scale` A B; B starts random and A at zero, so nothing changes before training."""

    scale: Tensor

    def __init__(self, dim: int, width: int, rank: int, rng: torch.Generator) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(dim, rank))
        self.down = nn.Parameter(torch.randn(rank, width, generator=rng) / width**0.5)
        self.register_buffer("scale", torch.tensor(1.0), persistent=False)

    def forward(self, r_BD: Tensor) -> Tensor:
        """The term added to every vote. Shape: (B, C)."""
        return self.scale * ((r_BD @ self.down.T) @ self.up.T)

    def matrix(self) -> Tensor:
        """The scaled product A B. Shape: (C, D)."""
        return self.scale * (self.up @ self.down)

    def norm(self) -> float:
        return float(self.matrix().detach().norm())


Poses = SharedPoses | FullPoses


class Capsules(nn.Module):
    """One depth: poses W and b, a temperature, and what turns capsule outputs into a reconstruction. With fixed outputs
    every token has a vector of the items' width; otherwise `lift` (D, C) maps squashed votes to that width, which Eq. 7
    leaves open for d_c below d. `step` is the paper's eta, `centres` are fitted to the codes."""

    step: Tensor
    fixed_kappa: Tensor

    def __init__(self, settings: CapsuleSettings, capsules: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        dim = settings.dim or width
        poses = SharedPoses if settings.poses == "shared" else FullPoses
        self.poses: Poses = poses(capsules, dim, width, rng)
        self.form = settings.form
        self.hard_winner = settings.winner == "hard"
        # Trained in stage 2: see `capsid.tokenize.capsules.stage_two`.
        self.adapter: LowRank | None = None
        fixed = self.form.fixed_outputs
        self.outputs = nn.Parameter(torch.zeros(capsules, width)) if fixed else None
        self.lift = nn.Parameter(torch.eye(width, dim)) if not fixed and dim != width else None
        self.centres = nn.Parameter(torch.zeros(capsules, width))
        # Fixed by calibration, or learnt, as a logarithm; the paper's Eq. 5 has none.
        self.register_buffer("step", torch.tensor(1.0))
        if self.form.learnt_temperature:
            self.log_kappa = nn.Parameter(torch.zeros(()))
        else:
            self.register_buffer("fixed_kappa", torch.tensor(1.0))

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def kappa(self) -> Tensor:
        """The temperature that agreement is multiplied with."""
        return self.log_kappa.exp() if self.form.learnt_temperature else self.fixed_kappa

    @torch.no_grad()
    def set_kappa(self, value: float) -> None:
        if self.form.learnt_temperature:
            self.log_kappa.fill_(value).log_()
        else:
            self.fixed_kappa.fill_(value)

    def seen(self, r_BD: Tensor) -> Tensor:
        """What the poses see of residuals: their directions where lengths must not matter. Shape: (B, D)."""
        return r_BD / norm(r_BD)[:, None] if self.form.on_direction else r_BD

    def votes(self, r_BD: Tensor) -> Votes:
        """The capsules' votes (Eq. 1)."""
        seen_BD = self.seen(r_BD)
        return self.poses(seen_BD, None if self.adapter is None else self.adapter(seen_BD))

    def decoded(self, z_BC: Tensor) -> Tensor:
        """Capsule outputs in the items' width. Shape: (B, D)."""
        return z_BC if self.lift is None else z_BC @ self.lift.T


class Projection(nn.Module):
    """Maps input vectors to routing space by a two-layer network plus a linear map, with a decoder back. The decoder's
    loss keeps the items apart: a constant projection would reconstruct perfectly in routing space."""

    def __init__(self, inputs: int, width: int, rng: torch.Generator) -> None:
        super().__init__()
        self.linear = nn.Parameter(torch.randn(width, inputs, generator=rng) / inputs**0.5)
        self.first = nn.Parameter(torch.randn(width, inputs, generator=rng) / inputs**0.5)
        self.second = nn.Parameter(torch.zeros(width, width))
        self.back = nn.Parameter(torch.randn(inputs, width, generator=rng) / width**0.5)
        self.back_first = nn.Parameter(torch.randn(width, width, generator=rng) / width**0.5)
        self.back_second = nn.Parameter(torch.zeros(inputs, width))

    def forward(self, x_BI: Tensor) -> Tensor:
        """Map to routing space. Shape: (B, width)."""
        hidden = nn.functional.gelu(x_BI @ self.first.T)
        return x_BI @ self.linear.T + hidden @ self.second.T

    def decode(self, z_BD: Tensor) -> Tensor:
        """Map back to input space. Shape: (B, inputs)."""
        return z_BD @ self.back.T + nn.functional.gelu(z_BD @ self.back_first.T) @ self.back_second.T


class CapsuleNetwork(nn.Module):
    """The depths in order, and the projection if there is one."""

    def __init__(self, settings: CapsuleSettings, inputs: int, rng: torch.Generator) -> None:
        super().__init__()
        width = settings.projection or inputs
        self.inputs, self.rounds = inputs, settings.rounds
        self.project = Projection(inputs, width, rng) if settings.projection else None
        self.layers = nn.ModuleList(Capsules(settings, capsules, width, rng) for capsules in settings.codebooks)

    @property
    def depths(self) -> list[Capsules]:
        """The layers, typed."""
        return list(self.layers)  # type: ignore[arg-type]

    def enter(self, x_BI: Tensor) -> Tensor:
        """Unit vectors in routing space (Algorithm 1, line 1)."""
        x_BI = x_BI / norm(x_BI)[:, None]
        z_BD = x_BI if self.project is None else self.project(x_BI)
        return z_BD / norm(z_BD)[:, None]

    def leave(self, z_ND: np.ndarray) -> np.ndarray:
        """Map vectors from routing space to input space. Shape: (items, inputs)."""
        if self.project is None:
            return z_ND
        with torch.inference_mode():
            return self.project.decode(torch.as_tensor(z_ND)).numpy()


def load_network(settings: CapsuleSettings, state: Mapping[str, np.ndarray]) -> CapsuleNetwork:
    """Rebuild a network from its saved arrays."""
    prefix = "network/"
    own = {n[len(prefix) :]: torch.tensor(a) for n, a in state.items() if n.startswith(prefix)}
    own = {n.replace(".kappa", ".fixed_kappa"): t for n, t in own.items() if not n.endswith(".leak")}
    inputs = int(state["inputs"])
    return load_weights(lambda: CapsuleNetwork(settings, inputs, torch.Generator()), own).requires_grad_(False)
