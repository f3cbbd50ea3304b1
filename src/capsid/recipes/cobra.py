"""COBRA: few coarse codes per item, item vectors beside them, and beam search fused with the vectors."""

from __future__ import annotations

import dataclasses

from capsid.recipes.tiger_dense import TIGER_DENSE
from capsid.tokenize.rqvae.tokenizer import RQVAE

COBRA = dataclasses.replace(
    TIGER_DENSE,
    name="cobra",
    about="RQ-VAE, 3 x 32 codes, shared by many items; vectors read beside them and predicted after them; both fused",
    paper="COBRA (Yang et al. 2025, arXiv 2503.02453)",
    deviations=(
        "item vectors are made by a small network from the vectors that all recipes share, not by a text encoder",
        "a vector is added to its item's position instead of standing at one of its own",
        "negatives are the other items of the batch, without those that the user takes later",
        "temperatures of the fusion are ours: none are published",
        *TIGER_DENSE.deviations[2:6],
    ),
    tokenizer=RQVAE(codebooks=(32,) * 3),
)
