"""LC-Rec's ids: an RQ-VAE whose last codebook is balanced, without a suffix token."""

from __future__ import annotations

import dataclasses

from capsid.ids.collisions import Reassign
from capsid.recipes.tiger import TIGER
from capsid.tokenize.rqvae.assign import Sinkhorn
from capsid.tokenize.rqvae.settings import rqvae_training
from capsid.tokenize.rqvae.tokenizer import RQVAE

LC_REC = dataclasses.replace(
    TIGER,
    name="lc-rec",
    about="RQ-VAE, 4 codes, the last balanced by Sinkhorn and reassigned where items collide; no suffix",
    paper="LC-Rec (Zheng et al. 2023, arXiv 2311.09049), only the ids",
    deviations=(
        "the shared generator instead of LLaMA, without the tasks that align language and ids",
        "item vectors join text with collaborative vectors; text vectors are MiniLM's, not LLaMA's",
        "encoder and decoder have TIGER's three layers, not six; 4,500 steps at 2e-3 instead of 10,000 epochs at 1e-3",
        "losses of the depths are summed and reach the encoder from every depth; the released code averages them",
        "unused codes are revived",
        *TIGER.deviations[3:],
    ),
    tokenizer=RQVAE(
        codebooks=(256, 256, 256, 256),
        assign=Sinkhorn(),
        training=dataclasses.replace(rqvae_training(), batch_size=1024),
    ),
    collisions=Reassign(how="sinkhorn"),
)
