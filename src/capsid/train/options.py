"""Hyperparameters of training, the same for every network. All defaults are defined here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from capsid.settings import Checked, setting


@dataclass(kw_only=True, frozen=True)
class Training(Checked):
    """AdamW, linear warm-up, cosine to `final_rate`, clipping, EMA, early stopping by validation."""

    kind: ClassVar[str] = "training"
    dropped: ClassVar[dict[str, str]] = {
        "checkpoint_seconds": "how often to write a checkpoint is not part of a recipe: use --checkpoint-every",
        "begun": "which steps of a schedule to train is not part of a recipe",
        "whole": "which steps of a schedule to train is not part of a recipe",
    }
    steps: int = setting(5_000, "Maximum number of optimiser steps.", least=1)
    unit: str = setting(
        "steps",
        "What `steps` and `validate_every` count: optimiser steps, or epochs, which are passes over the training rows.",
        choices=("steps", "epochs"),
    )
    batch_size: int = setting(64, "Sequences (or vectors, or pairs) per step.", least=1)
    lanes: int = setting(1, "Parts of a batch that processes can share; 2 or more have their own dropout.", least=1)
    window: int = setting(32, "Batches sorted by length together: more pad less, 1 mixes all lengths.", least=1)
    learning_rate: float = setting(1e-3, "Highest learning rate, reached after the warm-up.", above=0)
    final_rate: float = setting(0.01, "Learning rate of the last step, relative to the highest.", least=0, most=1)
    warmup: float = setting(0.05, "Share of the steps during which the learning rate rises from 0.", least=0, most=1)
    weight_decay: float = setting(0.01, "AdamW's weight decay for matrices; biases and norms do not decay.", least=0)
    beta2: float = setting(0.98, "AdamW's decay rate for the mean of squared gradients.", least=0, below=1)
    clip: float = setting(1.0, "Gradients with a larger norm are scaled down to this norm.", above=0)
    ema: float = setting(0.999, "Decay of the average of weights, which is validated; 0: no average.", least=0, below=1)
    validate_every: int = setting(1_000, "Steps between validations.", least=1)
    patience: int = setting(8, "Training stops after this many validations without improvement.", least=1)
    patience_from: float = setting(0.0, "Share of the steps before which validations do not count.", least=0, below=1)
    validation_users: int = setting(5_000, "Maximum number of users in a validation.", least=1)
    snapshots: int = setting(1, "How many best weights to average if their mean validates better; 1: none.", least=1)
    select: str = setting("recall@10", "Metric that selects the weights to keep.", choices=("recall@10", "ndcg@10"))
    select_filtered: bool = setting(False, "Whether validation excludes the items of a user's history.")
    equal_targets: bool = setting(False, "Whether every target item weighs the same; otherwise every batch does.")

    def in_steps(self, rows: int) -> Self:
        """The same with `steps` and `validate_every` in optimiser steps, for this many training rows."""
        if self.unit == "steps":
            return self
        epoch = max(1, -(-rows // self.batch_size))
        return replace(self, unit="steps", steps=self.steps * epoch, validate_every=self.validate_every * epoch)

    def rate(self, step: int) -> float:
        """Learning rate of a step (counted from 0)."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        share = (step - warm) / max(1, self.steps - warm)
        floor = self.final_rate * self.learning_rate
        return floor + (self.learning_rate - floor) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
