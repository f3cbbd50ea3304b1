"""CapsID exactly as in the paper's equations, without fixes."""

from __future__ import annotations

import dataclasses

from capsid.generate.generator import TransformerGenerator
from capsid.recipes.capsid import CAPSID
from capsid.tokenize.capsules.settings import stage_one_training
from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer

CAPSID_LITERAL = dataclasses.replace(
    CAPSID,
    name="capsid-literal",
    about="CapsID to the letter: raw dot products, no temperature, random start, outputs that depend on the input",
    deviations=("centres of tokens, which the paper leaves undefined, are fitted to the codes after training",),
    generator=TransformerGenerator(),
    tokenizer=CapsuleTokenizer(
        codebooks=(256,) * 6,
        rank=0,
        readout="pre",
        agreement="dot",
        on_direction=False,
        winner_mass=(),
        leak=(1.0, 1.0),
        confidence=0.82,
        residual=0.08,
        residual_of="soft",
        max_sharing=0,
        start="random",
        hard_weight=0.0,
        rivals="sum",
        tie_weight=0.0,
        balance_weight=0.0,
        reseed=False,
        shrink_step=False,
        training=dataclasses.replace(stage_one_training(), steps=300),
    ),
)
