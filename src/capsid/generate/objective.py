"""Loss terms, each a small value with a weight; a recipe lists the ones it wants.

A term sees the network's hidden rows and the tokens they must predict. It knows no data and no optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from torch import Tensor

from capsid.blocks.cross_entropy import linear_cross_entropy
from capsid.generate.network import GeneratorNetwork, Predictions
from capsid.settings import check_settings, setting


class Term(Protocol):
    """Adds `weight * loss` to the objective."""

    weight: float

    def loss(self, network: GeneratorNetwork, predictions: Predictions) -> Tensor:
        """The mean over predictions."""


@dataclass(kw_only=True, frozen=True)
class NextToken:
    """Cross-entropy of the next token over the whole vocabulary; logits divided by `temperature` (LETTER, eq. 9)."""

    kind: ClassVar[str] = "next-token"
    weight: float = setting(1.0, "Weight of this term in the sum of all terms.", least=0)
    label_smoothing: float = setting(
        0.0, "Share of the target's probability that is spread evenly over the whole vocabulary.", least=0, below=1
    )
    temperature: float = setting(1.0, "Logits are divided by this before the softmax.", above=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def loss(self, network: GeneratorNetwork, predictions: Predictions) -> Tensor:
        """Mean cross-entropy."""
        hidden_ND, added = network.norm(predictions.hidden_ND), predictions.added
        if self.temperature != 1.0:
            hidden_ND = hidden_ND / self.temperature
            added = added and replace(added, value=added.value / self.temperature)
        return linear_cross_entropy(
            hidden_ND,
            predictions.vectors.score_VS,
            predictions.targets_N,
            label_smoothing=self.label_smoothing,
            added=added,
        )


TERMS: dict[str, type] = {t.kind: t for t in (NextToken,)}
