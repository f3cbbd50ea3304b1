"""Settings of the capsule tokenizer: what Algorithm 1 of CapsID (arXiv 2605.05096) leaves open is a value of these.

Values that follow from the settings alone (the form of routing, stop rules) are here too. No network, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from capsid.errors import ConfigError
from capsid.settings import check_settings, setting
from capsid.train.options import Training

# Margins, and the threshold and weight of merges, move over this share of training; selection begins afterwards.
ANNEALED = 0.5


@dataclass(frozen=True)
class StopRules:
    """Stop at depth l if q_l >= confidence or |r_l| <= residual, and at most `max_sharing` codes begin with the prefix.
    With `max_sharing` 1 the prefix must be unique. With 0 prefixes are not counted, which is the paper's rule."""

    confidence: float = 0.82
    residual: float = 0.08
    max_sharing: int = 0


@dataclass(kw_only=True, frozen=True)
class StageOneTraining(Training):
    """Training options that allow 0 steps."""

    steps: int = setting(0, "Optimiser steps of stage 1, at most; 0: keep the start from data.", least=0)

    @classmethod
    def of(cls, training: Training) -> StageOneTraining:
        return cls(**{f.name: getattr(training, f.name) for f in fields(training)})


def stage_one_training() -> StageOneTraining:
    """No steps by default: ids of the closed form need none. No averaging, since capsules may be re-seeded."""
    return StageOneTraining(
        batch_size=256, learning_rate=1e-3, weight_decay=1e-5, ema=0.0, validate_every=100, patience=5
    )


@dataclass(frozen=True)
class Form:
    """What one word of `routing` stands for. `agreements` are made before the weights are read."""

    agreements: int
    unit_votes: bool
    unit_consensus: bool
    on_direction: bool
    fixed_outputs: bool
    learnt_temperature: bool

    @classmethod
    def of(cls, routing: str, rounds: int) -> Form:
        """The form of that name.

        `dot`: Eqs. 2 to 7 as they stand. `unit`: votes are normalised in the agreement, as appendix A.1 asks, and a
        temperature is learnt. `calibrated`: ours, cosines times a temperature that gives `winner_mass`, of the
        residual's direction, read after the last agreement; what is subtracted are fixed outputs.
        """
        if routing == "calibrated":
            return cls(rounds, True, True, True, True, False)
        return cls(rounds - 1, routing == "unit", False, False, False, routing == "unit")


@dataclass(kw_only=True)
class CapsuleSettings:
    """Fields in the order of Algorithm 1: capsules, routing, subtraction, stopping, then the objective of stage 1.
    Fixed length L: L codebooks, confidence 1, residual 0."""

    kind: ClassVar[str] = "capsules"
    dropped: ClassVar[dict[str, str]] = {
        name: "this variant was measured and removed; see docs/tokenizer.md"
        for name in (
            *("rank", "readout", "agreement", "on_direction", "shared_poses", "leak", "residual_of", "shortest"),
            *("soft_weight", "tie_weight", "reseed", "shrink_step", "sample"),
        )
    }
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256, 256),
        "Capsules at each depth (K_l); there are L_max depths, and an id has at most one code of each.",
        least=1,
        count=(1, None),
    )
    dim: int = setting(0, "Width of the votes (d_c, Eq. 1); 0: as wide as the vectors.", least=0)
    poses: str = setting(
        "shared",
        "Pose matrices of a depth (W, Eq. 1): one for all capsules, which then differ by biases, or one each.",
        choices=("shared", "full"),
    )
    rounds: int = setting(3, "Rounds of routing by agreement (T, Eqs. 2 to 5).", least=1)
    routing: str = setting(
        "calibrated",
        "Agreement (Eq. 5): product (dot), of unit votes (unit, appendix A.1), ours with fixed outputs (calibrated).",
        choices=("dot", "unit", "calibrated"),
    )
    winner_mass: tuple[float, ...] = setting(
        (0.45, 0.65, 0.82, 0.88, 0.92, 0.95),
        "Mean weight of the winner by depth that temperatures start at; calibrated ones stay there.",
        above=0,
        below=1,
        count=(1, None),
    )
    winner: str = setting("soft", "Subtracts the routed mixture (Eq. 7) or the winner alone.", choices=("soft", "hard"))
    confidence: float = setting(0.0, "Confidence at which an id may end (tau, Eq. 8); 1: never.", least=0, most=1)
    residual: float = setting(0.0, "Norm of the residual at which an id may end (epsilon, Eq. 8); 0: never.", least=0)
    max_sharing: int = setting(
        1,
        "An id ends only where at most this many distinct code sequences share its prefix; 0: no such rule (Eq. 8).",
        least=0,
        formerly="crowd",
    )
    projection: int = setting(0, "Width of a trained two-layer projection (appendix A.1); 0: none.", least=0)
    start: str = setting("data", "Start from the data or at random; the paper is silent.", choices=("data", "random"))
    spread_weight: float = setting(0.1, "Weight of the spread loss (lambda_s, Eq. 10).", least=0)
    rivals: str = setting(
        "strongest",
        "Rivals of the winner in the spread loss: the strongest, or the mean or sum over all.",
        choices=("strongest", "mean", "sum"),
    )
    margin: tuple[float, ...] = setting(
        (0.2, 0.9),
        "Margin of the spread loss at the start, then at the end of training by depth; the last holds for all deeper.",
        least=0,
        most=1,
        count=(2, None),
    )
    length_weight: float = setting(0.05, "Weight of the loss on the ids' expected length (lambda_l, Eq. 10).", least=0)
    codes_weight: float = setting(
        1.0, "Weight of reconstruction by the codes' centres, not in the paper.", least=0, formerly="hard_weight"
    )
    balance_weight: float = setting(0.2, "Weight of the loss that balances capsules' use, not in the paper.", least=0)
    training: StageOneTraining = setting(factory=stage_one_training, about="How stage 1 trains.")
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))

    def __post_init__(self) -> None:
        if type(self.training) is Training:  # Plain training options are accepted too.
            self.training = StageOneTraining.of(self.training)
        check_settings(self)

    def check_together(self) -> None:
        if self.start == "random" and self.training.steps == 0:
            raise ConfigError("capsules that start at random need training", hint="set tokenizer.training.steps=300")
        if self.start == "random" and self.poses == "shared":
            raise ConfigError(
                "capsules that share a pose matrix cannot start at random: only biases tell them apart",
                hint="set tokenizer.poses=full, or tokenizer.start=data",
            )

    @property
    def form(self) -> Form:
        return Form.of(self.routing, self.rounds)

    @property
    def masses(self) -> tuple[float, ...]:
        """Target winner mass of every depth."""
        return _by_depth(self.winner_mass, len(self.codebooks))

    @property
    def rules(self) -> StopRules:
        """When an id ends."""
        return StopRules(self.confidence, self.residual, self.max_sharing)

    def margins(self, share: float) -> tuple[float, ...]:
        """The margin of every depth when `share` of the annealing is done."""
        first, *last = self.margin
        return tuple(first + (end - first) * share for end in _by_depth(tuple(last), len(self.codebooks)))


def _by_depth(values: tuple[float, ...], depths: int) -> tuple[float, ...]:
    return tuple(values[min(d, len(values) - 1)] for d in range(depths))
