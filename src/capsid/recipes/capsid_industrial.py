"""The CapsID paper's system with the sizes of its industrial run: 1,024 capsules per depth and a T5 of 8 layers."""

from __future__ import annotations

import dataclasses

from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.recipes.capsid_paper import CAPSID_PAPER, CAPSULES

CAPSID_INDUSTRIAL = dataclasses.replace(
    CAPSID_PAPER,
    name="capsid-industrial",
    about="The CapsID paper's system as in its industrial run: more capsules per depth and an encoder-decoder",
    deviations=(*CAPSID_PAPER.deviations, "every item of a sequence is a target, so the encoder is causal"),
    tokenizer=dataclasses.replace(CAPSULES, codebooks=(1024,) * 6, dim=96),
    # Appendix A.3: 8 layers, width 512, 8 heads; the width of the feed-forward layers is T5's for this width.
    generator=EncoderDecoderGenerator(
        layers=8, depth_layers=8, heads=8, head_width=64, width=512, feedforward=2048, compose=False
    ),
)
