"""SA2CRQ's ids: an RQ-VAE that learns popular items first; ids end where few popular items share their prefix."""

from __future__ import annotations

import dataclasses

from capsid.ids.collisions import Bucket
from capsid.recipes.tiger import TIGER
from capsid.tokenize.rqvae.tokenizer import RQVAE

SA2CRQ = dataclasses.replace(
    TIGER,
    name="sa2crq",
    about="RQ-VAE of popular items, then of the others with new codes; up to 4 codes, fewer where a prefix is rare",
    paper="SA2CRQ (Wang et al. 2026, arXiv 2602.23978), made for search; only the ids",
    deviations=(
        "popular items are the fewest with 80 % of the training interactions; the paper does not say which they are",
        "an id ends where at most 2 popular items share its prefix; the paper gives a share of its own catalogue",
        "a quarter as many new codes as old ones; the paper does not give their number",
        "lengths are computed once per epoch, and once more when training ends",
        *TIGER.deviations,
    ),
    tokenizer=RQVAE(codebooks=(64, 128, 256, 256), head=0.8, extra=0.25, crowd=2),
    collisions=Bucket(),
)
