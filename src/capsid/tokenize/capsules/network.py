"""All depths of the capsule tokenizer as one network: residuals in, routing weights, tokens and residuals out.

Each depth has two tables. Routing subtracts `outputs`, mixed by the weights (with `leak` 1: the capsules' own
input-dependent outputs, as in the paper). `centres` hold one vector per token: `decode` adds them up. The paper's
Proposition 1 bounds the distance between the two. Knows nothing about losses, stopping or items.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsid.tokenize.capsules.low_rank import LowRank
from capsid.tokenize.capsules.routing import Rounds, Routed, route
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.votes import Votes, new_poses, norm, squash, squash_scale


@dataclass(frozen=True, eq=False)
class Depth:
    """Result of one depth on a batch. `soft_BD` is the residual after it, `hard_BD` the residual after the centres."""

    routed: Routed
    code_B: Tensor
    mass_B: Tensor
    confidence_B: Tensor
    output_BD: Tensor
    winner_BD: Tensor
    soft_BD: Tensor
    hard_BD: Tensor


@dataclass(frozen=True, eq=False)
class Assigned:
    """Codes of a batch at one depth, their confidences if they were asked for, and the residual after it."""

    code_B: Tensor
    confidence_B: Tensor | None
    soft_BD: Tensor


class CapsuleLayer(nn.Module):
    """One depth. `kappa` (temperature), `step` (the paper's eta) and `leak` are set, not trained."""

    kappa: Tensor
    step: Tensor
    leak: Tensor

    def __init__(self, settings: CapsuleSettings, capsules: int, width: int, poses: nn.Module) -> None:
        super().__init__()
        self.poses = poses
        self.rounds = Rounds(settings.rounds, settings.readout, settings.agreement)
        self.on_direction = settings.on_direction
        self.hard_winner = settings.winner == "hard"
        self.capsules = capsules
        # Trained in stage 2: see `capsid.tokenize.capsules.adapters`.
        self.adapter: LowRank | None = None
        self.outputs = nn.Parameter(torch.zeros(capsules, width))
        self.centres = nn.Parameter(torch.zeros(capsules, width))
        # The lift from capsule space back to item space (Eq. 7 subtracts capsule outputs from item residuals,
        # which differ in width); not needed where the widths agree.
        leaks = max(settings.leak) > 0 and settings.dim not in (0, width)
        self.lift = nn.Parameter(torch.eye(width, settings.dim)) if leaks else None
        for name, value in (("kappa", 1.0), ("step", 1.0), ("leak", settings.leak[0])):
            self.register_buffer(name, torch.tensor(value))

    def votes(self, r_BD: Tensor) -> Votes:
        """Votes for residuals, or for their directions, which keep confidences comparable while residuals shrink."""
        seen_BD = r_BD / norm(r_BD)[:, None] if self.on_direction else r_BD
        return self.poses(seen_BD) if self.adapter is None else self.poses(seen_BD, self.adapter(seen_BD))

    def assign(self, r_BD: Tensor, *, confident: bool = True) -> Assigned:
        """What encoding needs of `forward`, to the same bits. Without gradients."""
        votes = self.votes(r_BD)
        routed = route(votes, self.capsules, len(r_BD), self.rounds, self.kappa, agreed=confident)
        mass_B, code_B = routed.weights_BK.max(1)
        own_B = self._own(r_BD)
        if self.hard_winner:
            output_BD = self._winner(votes, code_B, own_B)
        else:
            output_BD = self._mixture(votes, routed.weights_BK, own_B)
        return Assigned(code_B, _confidence(mass_B, routed) if confident else None, r_BD - output_BD)

    def forward(self, r_BD: Tensor, hard_BD: Tensor) -> Depth:
        """Route a batch; `hard_BD` is the items' residual after the centres of the earlier depths."""
        votes = self.votes(r_BD)
        routed = route(votes, self.capsules, len(r_BD), self.rounds, self.kappa)
        # Among equal weights the first wins (with the literal T=1 all are equal).
        mass_B, code_B = routed.weights_BK.max(1)
        own_B = self._own(r_BD)
        winner_BD = self._winner(votes, code_B, own_B)
        chosen_BD = self._chosen(self.centres, routed.weights_BK, code_B)
        if self.hard_winner:
            output_BD = self._hard_output(routed.weights_BK, code_B, winner_BD)
        else:
            output_BD = self._mixture(votes, routed.weights_BK, own_B)
        return Depth(
            routed=routed,
            code_B=code_B,
            mass_B=mass_B,
            confidence_B=_confidence(mass_B, routed),
            output_BD=output_BD,
            winner_BD=winner_BD,
            soft_BD=r_BD - output_BD,
            hard_BD=hard_BD - chosen_BD,
        )

    def _own(self, r_BD: Tensor) -> Tensor:
        """Scale of input-dependent outputs: those for directions have unit scale and get the residual's length."""
        if not float(self.leak):
            return self.step
        return self.step * (norm(r_BD) if self.on_direction else torch.ones(len(r_BD)))

    def _mixture(self, votes: Votes, weights_BK: Tensor, own_B: Tensor) -> Tensor:
        """z = sum_k c_k o_k (CapsID, Eq. 7); o_k is a fixed vector, the squashed vote, or a blend of the two."""
        fixed_BD = self.step * (weights_BK @ self.outputs)
        if not float(self.leak):
            return fixed_BD
        votes_BC = votes.mix(weights_BK * squash_scale(votes.norms()))
        return (1 - self.leak) * fixed_BD + self.leak * own_B[:, None] * self._lifted(votes_BC)

    def _winner(self, votes: Votes, code_B: Tensor, own_B: Tensor) -> Tensor:
        fixed_BD = self.step * self.outputs[code_B]
        if not float(self.leak):
            return fixed_BD
        return (1 - self.leak) * fixed_BD + self.leak * own_B[:, None] * self._lifted(squash(votes.pick(code_B)))

    def _hard_output(self, weights_BK: Tensor, code_B: Tensor, winner_BD: Tensor) -> Tensor:
        """Subtract the winner alone; the gradient reaches the weights as if the fixed outputs were mixed."""
        if not torch.is_grad_enabled():
            return winner_BD
        slope_BD = self._chosen(self.outputs.detach(), weights_BK, code_B)
        return winner_BD + slope_BD - slope_BD.detach()

    def _chosen(self, table_KD: Tensor, weights_BK: Tensor, code_B: Tensor) -> Tensor:
        """The winners' rows of a table; the gradient reaches the weights as if all rows were mixed."""
        if not torch.is_grad_enabled():
            return table_KD[code_B]
        return _straight_through(weights_BK, code_B) @ table_KD

    def _lifted(self, z_BC: Tensor) -> Tensor:
        return z_BC if self.lift is None else z_BC @ self.lift.T


class Projection(nn.Module):
    """Maps input vectors to routing space by a two-layer network plus a linear map, with a decoder back.

    The decoder's loss keeps the items apart: a constant projection would reconstruct perfectly in routing space.
    """

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
    """The depths in order, each on the residuals of the one before."""

    def __init__(self, settings: CapsuleSettings, inputs: int, rng: torch.Generator) -> None:
        super().__init__()
        width = settings.projection or inputs
        self.inputs = inputs
        self.project = Projection(inputs, width, rng) if settings.projection else None
        layers: list[CapsuleLayer] = []
        for capsules in settings.codebooks:
            if settings.shared_poses and layers:
                poses = layers[0].poses
            else:
                poses = new_poses(capsules, settings.dim or width, width, settings.rank, rng)
            layers.append(CapsuleLayer(settings, capsules, width, poses))
        self.layers: nn.ModuleList = nn.ModuleList(layers)

    @property
    def depths(self) -> list[CapsuleLayer]:
        """The layers, typed."""
        return list(self.layers)  # type: ignore[arg-type]

    def enter(self, x_BI: Tensor) -> Tensor:
        """Unit vectors in routing space (Algorithm 1, line 1)."""
        x_BI = x_BI / norm(x_BI)[:, None]
        z_BD = x_BI if self.project is None else self.project(x_BI)
        return z_BD / norm(z_BD)[:, None]

    def forward(self, unit_BD: Tensor) -> list[Depth]:
        """All depths, for all rows."""
        soft_BD, hard_BD, out = unit_BD, unit_BD, []
        for layer in self.layers:
            depth = layer(soft_BD, hard_BD)
            soft_BD, hard_BD = depth.soft_BD, depth.hard_BD
            out.append(depth)
        return out


def _confidence(mass_B: Tensor, routed: Routed) -> Tensor:
    return mass_B * norm(routed.consensus_BC)


def _straight_through(weights_BK: Tensor, code_B: Tensor) -> Tensor:
    """One-hot winners whose gradient goes to the routing weights (straight-through estimator)."""
    hard_BK = torch.zeros_like(weights_BK).scatter_(1, code_B[:, None], 1.0)
    # The difference is exactly zero, so values do not depend on whether gradients are enabled.
    return hard_BK + (weights_BK - weights_BK.detach())
