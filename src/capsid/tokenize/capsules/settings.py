"""Settings of the capsule tokenizer: every variant of CapsID's Algorithm 1 (arXiv 2605.05096) is a value of these.

Values that follow from the settings alone (stop rules, target masses) are here too. No network, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from capsid.errors import ConfigError
from capsid.settings import check_settings, setting
from capsid.tokenize.stopping import StopRules
from capsid.train.options import Training


@dataclass(kw_only=True, frozen=True)
class StageOneTraining(Training):
    """Training options that allow 0 steps."""

    steps: int = setting(0, "Optimiser steps of stage 1, at most; 0: keep the initialisation from data.", least=0)

    @classmethod
    def of(cls, training: Training) -> StageOneTraining:
        """Convert plain training options."""
        return cls(**{f.name: getattr(training, f.name) for f in fields(training)})


def stage_one_training() -> StageOneTraining:
    """No steps by default: the initialisation from data is as good. No averaging, since capsules may be re-seeded."""
    return StageOneTraining(
        batch_size=256,
        learning_rate=1e-3,
        weight_decay=1e-5,
        ema=0.0,
        validate_every=100,
        patience=5,
    )


@dataclass(kw_only=True)
class CapsuleSettings:
    """Fields in the order of Algorithm 1: routing, subtraction, stopping, training.

    Fixed length L: L codebooks, confidence 1, residual 0.
    """

    kind: ClassVar[str] = "capsules"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256, 256),
        "Number of capsules at each depth; an id has at most one code per depth.",
        least=1,
        count=(1, None),
    )
    dim: int = setting(0, "Width of the capsules' votes; 0: as wide as the vectors.", least=0)
    rank: int = setting(
        -1,
        "Rank of the pose matrices' differences within a depth; 0: full matrices; -1: one matrix, biases differ.",
        least=-1,
    )
    rounds: int = setting(3, "Rounds of routing by agreement.", least=1)
    readout: str = setting(
        "post", "Whether the code is read after the last update of the routing or before it.", choices=("post", "pre")
    )
    agreement: str = setting(
        "cosine", "How the agreement of a vote with the consensus is measured.", choices=("cosine", "dot")
    )
    on_direction: bool = setting(True, "Whether routing sees the residual's direction only, not its length.")
    shared_poses: bool = setting(
        False, "Whether all depths share their pose matrices; their codebooks must have one size."
    )
    projection: int = setting(0, "Width of a trained projection of the vectors; 0: no projection.", least=0)
    winner_mass: tuple[float, ...] = setting(
        (0.45, 0.65, 0.82, 0.88, 0.92, 0.95),
        "Target mean routing weight of the winner, which sets each depth's temperature; empty: no temperature.",
        above=0,
        below=1,
    )
    winner: str = setting(
        "soft", "Whether the routed mixture or the winner alone is subtracted.", choices=("soft", "hard")
    )
    leak: tuple[float, float] = setting(
        (0.0, 0.0),
        "Share of the input-dependent output in what is subtracted, at the start and at the end of training.",
        least=0,
        most=1,
        count=2,
    )
    confidence: float = setting(0.0, "An id may end where its confidence reaches this; 1: never.", least=0, most=1)
    residual: float = setting(0.0, "An id may end where its residual's norm is no larger than this; 0: never.", least=0)
    residual_of: str = setting("hard", "Residual whose norm the stop rule reads.", choices=("hard", "soft"))
    max_sharing: int = setting(
        1,
        "An id ends only where at most this many distinct code sequences share its prefix; 0: no such rule.",
        least=0,
        formerly="crowd",
    )
    shortest: int = setting(1, "Fewest codes in an id.", least=1)
    start: str = setting("data", "Whether capsules start from the data or at random.", choices=("data", "random"))
    soft_weight: float = setting(1.0, "Weight of the reconstruction loss of routed mixtures.", least=0)
    hard_weight: float = setting(1.0, "Weight of the reconstruction loss of the codes' centres.", least=0)
    spread_weight: float = setting(0.1, "Weight of the spread loss between the winner and its rivals.", least=0)
    rivals: str = setting(
        "strongest", "Which rivals the spread loss compares the winner with.", choices=("strongest", "mean", "sum")
    )
    margin: tuple[float, float] = setting(
        (0.2, 0.9), "Margin of the spread loss, at the start and at the end of training.", least=0, most=1, count=2
    )
    length_weight: float = setting(0.05, "Weight of the loss on the expected length of ids.", least=0)
    tie_weight: float = setting(0.25, "Weight of the loss that ties outputs to centres.", least=0)
    balance_weight: float = setting(0.2, "Weight of the loss that balances the use of capsules.", least=0)
    reseed: bool = setting(True, "Whether capsules that win no item are re-seeded from the data.")
    shrink_step: bool = setting(True, "Whether a depth subtracts less in training where many residuals grow.")
    training: StageOneTraining = setting(factory=stage_one_training, about="How stage 1 trains.")
    sample: int = setting(65_536, "Largest number of items used for initialisation and validation.", least=1)
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))

    def __post_init__(self) -> None:
        if type(self.training) is Training:  # Plain training options are accepted too.
            self.training = StageOneTraining.of(self.training)
        check_settings(self)
        if self.shared_poses and len(set(self.codebooks)) > 1:
            raise ConfigError("shared poses need codebooks of one size", hint="set tokenizer.shared_poses=false")

    def check_together(self) -> None:
        """Capsules learn from the start or from training: see `capsid.settings.check_together`."""
        if self.start == "random" and self.training.steps == 0:
            raise ConfigError("capsules that start at random need training", hint="set tokenizer.training.steps=300")

    @property
    def masses(self) -> tuple[float, ...]:
        """Target winner mass of every depth; the last value applies to all deeper ones. None: no calibration."""
        given = self.winner_mass
        return tuple(given[min(d, len(given) - 1)] for d in range(len(self.codebooks))) if given else ()

    @property
    def rules(self) -> StopRules:
        """When an id ends."""
        return StopRules(self.confidence, self.residual, self.max_sharing, self.shortest)

    @property
    def ends_by_centres(self) -> bool:
        """Whether the stop rules depend on the codes' centres."""
        return self.residual > 0 and self.residual_of == "hard"

    @property
    def stops(self) -> bool:
        """Whether any rule can end an id before the cap: a confidence is below 1 and a norm above 0."""
        return self.confidence < 1 or self.residual > 0
