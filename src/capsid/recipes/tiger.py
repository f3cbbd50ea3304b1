"""RQ-VAE ids with TIGER's suffix token, with the shared generator."""

from __future__ import annotations

from capsid.encode.defaults import default_encoder
from capsid.generate.generator import TimelineGenerator
from capsid.generate.next_token import NextToken
from capsid.ids.collisions import Suffix
from capsid.recipe import Phase, Recipe
from capsid.tokenize.rqvae.tokenizer import RQVAE

TIGER = Recipe(
    name="tiger",
    about="RQ-VAE, 3 codes and a suffix; Transformer over items and depths; beam search in the trie",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065)",
    deviations=(
        "item vectors join text with collaborative vectors (tiger-text: text only)",
        "text vectors are MiniLM's, not Sentence-T5's",
        "AdamW for 4,500 steps instead of Adagrad for 20,000 epochs; unused codes are revived",
        "the generator reads one position per item, scores by cosine, is not T5, and has no user token",
        "it learns how likely users are to return to an item (generator.repeats=false: off)",
        "beam search follows the trie, so it never generates an invalid id",
    ),
    encoder=default_encoder(),
    tokenizer=RQVAE(),
    collisions=Suffix(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)
