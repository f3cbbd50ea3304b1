"""Settings of the RQ-VAE tokenizer (TIGER, Rajput et al. 2023, arXiv 2305.05065, section 3.1), of its terms, and of
training in two stages with ids of varying length (SA2CRQ, Wang et al. 2026, arXiv 2602.23978). No network, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from capsid.settings import check_settings, setting
from capsid.tokenize.rqvae.assign import Sinkhorn
from capsid.tokenize.rqvae.terms import CodeTerm
from capsid.train.options import Training

# The first codes of an id whatever shares them (SA2CRQ: the rule begins after two levels).
SHORTEST = 2


def rqvae_training() -> Training:
    """Takes 90 seconds on one core for 12,000 items. No averaging, since codes may be revived."""
    return Training(
        steps=4_500,
        batch_size=256,
        learning_rate=2e-3,
        weight_decay=1e-4,
        ema=0.0,
        validate_every=500,
        patience=9,
    )


@dataclass(kw_only=True)
class RQVAESettings:
    """An encoder with ReLU layers to a latent vector, residual codebooks there, and a mirrored decoder."""

    kind: ClassVar[str] = "rq-vae"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256),
        "Number of codes at each depth, fewer where there are fewer different items.",
        least=1,
        count=(1, None),
    )
    hidden: tuple[int, ...] = setting(
        (512, 256, 128), "Widths of the encoder's layers, mirrored in the decoder.", least=1
    )
    latent: int = setting(32, "Width of the latent vectors that are quantised.", least=1)
    commitment: float = setting(0.25, "Weight of the loss that keeps latent vectors near their codes.", least=0)
    assign: Sinkhorn | None = setting(
        None, "How training chooses codes at the last depths; none: the nearest code at every depth."
    )
    terms: tuple[CodeTerm, ...] = setting((), "Loss terms on the codes, beside reconstruction and commitment.")
    start: Literal["k-means", "bounded"] = setting(
        "k-means", "Initialisation of the codebooks: k-means of the latents, or k-means with clusters of bounded size."
    )
    revive: bool = setting(True, "Whether codes that no item uses are re-seeded between epochs.")
    head: float = setting(
        1.0,
        "Share of the training interactions whose items, the most popular ones, train first; 1: all items at once.",
        above=0,
        most=1,
    )
    extra: float = setting(
        0.0, "New codes for the other items, as a share of each codebook; the popular items' codes are frozen.", least=0
    )
    crowd: int = setting(
        0,
        "Ids end after two or more codes, where at most this many popular items share the prefix; 0: never earlier.",
        least=0,
    )
    training: Training = setting(factory=rqvae_training, about="How encoder, codebooks and decoder train.")
    sample: int = setting(65_536, "Largest number of items used for initialisation and validation.", least=1)
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))

    def __post_init__(self) -> None:
        check_settings(self)
