"""DIGER: TIGER whose codebooks are trained jointly with the generator through soft codes; ids are refreshed."""

from __future__ import annotations

import dataclasses

from capsid.generate.gumbel_codes import GumbelCodes
from capsid.ids.collisions import Suffix
from capsid.recipe import Phase
from capsid.recipes.tiger import TIGER
from capsid.tokenize.rqvae.assign import Sinkhorn
from capsid.tokenize.rqvae.tokenizer import RQVAE

DIGER = dataclasses.replace(
    TIGER,
    name="diger",
    about="Like tiger, with balanced codes; codebooks and generator learn jointly by Gumbel-softmax, ids are refreshed",
    paper="DIGER (Fu et al. 2026, arXiv 2601.19711), with noise by use of codes and the authors' later gradient paths",
    deviations=(
        *TIGER.deviations,
        "codebooks learn in the first two thirds of the steps, and ids are refreshed 8 times instead of every epoch",
        "the scale of the noise is fixed, not learnt",
    ),
    tokenizer=RQVAE(assign=Sinkhorn(depths=3, catalogue=True)),
    # Capacity for collisions of later ids: the vocabulary must not change with them.
    collisions=Suffix(capacity=64),
    schedule=(Phase(adapt=GumbelCodes()),),
)
