"""Hyperparameters of training, the same fields for every network. Each default is written here and nowhere else."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from capsid.errors import ConfigError


@dataclass(kw_only=True, frozen=True)
class Training:
    """AdamW, linear warm-up, cosine to `final_rate`, clipping, EMA, early stopping by validation.

    A part of a longer run follows that run's learning rates: `begun` steps of its `whole` came before (0: no part).
    """

    kind: ClassVar[str] = "training"
    steps: int = 5_000
    batch_size: int = 64
    learning_rate: float = 1e-3
    final_rate: float = 0.01
    warmup: float = 0.05
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    ema: float = 0.999
    validate_every: int = 1_000
    patience: int = 8
    validation_users: int = 5_000
    checkpoint_seconds: float = 60.0
    begun: int = 0
    whole: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "validate_every", "patience", "validation_users"):
            if getattr(self, name) < 1:
                raise ConfigError(f"training.{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"training.{name} is {getattr(self, name)}, but must be above 0")
        for name in ("warmup", "ema", "final_rate", "beta1", "beta2"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"training.{name} is {getattr(self, name)}, but must be from 0 to 1")

    def rate(self, step: int) -> float:
        """Learning rate of a step (counted from 0)."""
        whole, step = self.whole or self.steps, step + self.begun
        warm = max(1, round(self.warmup * whole))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        share = (step - warm) / max(1, whole - warm)
        floor = self.final_rate * self.learning_rate
        return floor + (self.learning_rate - floor) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

    def part(self, begin: int, end: int) -> Training:
        """Steps `begin` to `end` of this run, at the learning rates that they would have had."""
        return replace(self, steps=end - begin, begun=self.begun + begin, whole=self.whole or self.steps)
