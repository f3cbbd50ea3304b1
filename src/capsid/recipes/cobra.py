"""COBRA: a few coarse codes per item plus dense item vectors; beam search fused with the vectors."""

from __future__ import annotations

import dataclasses

from capsid.recipes.tiger_dense import TIGER_DENSE
from capsid.tokenize.rqvae.tokenizer import RQVAE

COBRA = dataclasses.replace(
    TIGER_DENSE,
    name="cobra",
    about="RQ-VAE, ids of 3 codes, shared by many items; vectors read with them and predicted after them; both fused",
    paper="COBRA (Yang et al. 2025, arXiv 2503.02453)",
    deviations=(
        "a small network makes item vectors from the vectors that all recipes share, not a text encoder",
        "a vector is added to its item's position instead of having its own position",
        "negatives are the other items of the batch, without those that the user takes later",
        "vectors compare items of the same id, not all items that were found (decoder.among=found: as published)",
        "cosines are multiplied by 32, chosen by validation; published temperatures (16) are for industrial data",
        *TIGER_DENSE.deviations[2:6],
    ),
    tokenizer=RQVAE(codebooks=(32,) * 3),
)
