"""Settings of the mixture of quantisers (ADA-SID: Xu et al. 2025, arXiv 2510.25622). No network, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from capsid.settings import check_settings, setting
from capsid.tokenize.rqvae.settings import rqvae_training
from capsid.train.options import Training


@dataclass(kw_only=True)
class MixtureSettings:
    """Experts with a codebook each: some read both views, some content alone, some behaviour alone.

    An item has one code of every expert, except of behaviour experts that its router closes.
    """

    kind: ClassVar[str] = "mixture"
    shared_experts: int = setting(2, "Experts that read both views.", least=1)
    content_experts: int = setting(2, "Experts that read content alone.", least=0)
    behaviour_experts: int = setting(3, "Experts that read behaviour alone; closed ones give no code.", least=0)
    codebook: int = setting(256, "Codes of every expert, fewer where there are fewer different items.", least=1)
    dim: int = setting(64, "Width of projections, experts and codes.", least=1)
    commitment: float = setting(0.25, "Weight of the loss that keeps experts near their codes.", least=0)
    alignment: float = setting(0.1, "Weight of the loss that aligns both views of items with much behaviour.", least=0)
    temperature: float = setting(0.07, "Temperature of that loss.", above=0)
    sparsity: float = setting(1e-3, "First weight of the loss that closes behaviour experts; 0: none.", least=0)
    closed: float = setting(
        0.6,
        "Share of behaviour experts to close for items with the least behaviour; 0 for those with most.",
        least=0,
        most=1,
    )
    revive: bool = setting(True, "Whether codes that no item uses are re-seeded between epochs.")
    training: Training = setting(factory=rqvae_training, about="How the whole network trains.")
    sample: int = setting(65_536, "Largest number of items used for initialisation and validation.", least=1)
    block: str = setting("item", "Name of the content vectors.", count=(1, None))
    behaviour_block: str = setting("behaviour", "Name of the behaviour vectors; zeros: no behaviour.", count=(1, None))

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def experts(self) -> tuple[int, int, int]:
        """How many experts read both views, content alone and behaviour alone, in the order of their codes."""
        return self.shared_experts, self.content_experts, self.behaviour_experts
